"""The history of a command: its URI, and how it is opened for reading or writing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Final

from eventonce.cli.options import configured
from eventonce.config import Config
from eventonce.consumer import Consumer
from eventonce.errors import ConfigError

if TYPE_CHECKING:
    from eventonce.history import History

DASHBOARD_HISTORY: Final = "sqlite:///eventonce-history.db"
"""The history of a worker that has a dashboard but names no history."""


NO_HISTORY: Final = (
    "no history is kept: name a database in eventonce.toml, such as\n\n"
    '  [history]\n  store = "sqlite:///history.db"\n\n'
    "and `run` and `serve` keep what they decide from then on; or name one with --history URI"
)

history_option: Final = configured(
    "--history",
    "uri",
    metavar="URI",
    help="The history, such as sqlite:///history.db.  [default: store of the file's [history]]",
)


def history_of(file: Config) -> str:
    """Return the URI of the history in the file; otherwise of the one that a dashboard created in
    this folder; empty for none."""
    from eventonce.history.connection import exists  # noqa: PLC0415  for those who keep one

    begun = DASHBOARD_HISTORY if exists(DASHBOARD_HISTORY) else ""
    return file.history.store or begun


def open_history(file: Config, uri: str) -> History:
    """Open this history for writing, with the settings of the file."""
    from eventonce.history import History  # noqa: PLC0415  for those who keep one

    table, secrets = file.history, file.secret_bytes if file.privacy.digests else ()
    return History(uri, keep=table.keep, most=table.most, secrets=secrets)


def history_to_read(file: Config, given: str | None = None) -> History:
    """Open the given history, otherwise the file's, for reading; ConfigError without one."""
    from eventonce.history import History  # noqa: PLC0415  for those who keep one

    uri = given or history_of(file)
    if not uri:
        raise ConfigError(NO_HISTORY)
    return History(uri, look=True, secrets=file.secret_bytes)


def looking_back(file: Config, given: str | None = None) -> AbstractContextManager[History | None]:
    """Open the given history, otherwise the file's, for reading; None without one, or if the
    file's does not exist yet."""
    from eventonce.history import History  # noqa: PLC0415  for those who keep one
    from eventonce.history.connection import exists  # noqa: PLC0415

    uri = given or history_of(file)
    if not uri or not (given or exists(uri)):
        return nullcontext()
    table, secrets = file.history, file.secret_bytes
    return History(uri, keep=table.keep, most=table.most, look=True, secrets=secrets)


@contextmanager
def keeping_history(
    file: Config, consumer: Consumer, channel: str, in_flight: Callable[[], int] | None = None
) -> Iterator[History | None]:
    """Write the decisions and the leases of the consumer to the history, if the file names one."""
    if not file.history.store:
        yield None
        return
    with open_history(file, file.history.store) as history:
        consumer.observers.append(history.observer(consumer, channel, in_flight=in_flight))
        history.keep_up()
        yield history
