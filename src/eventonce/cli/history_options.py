"""The history of a command: which it is, and how it is opened to look at it or to write to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from eventonce.cli.options import configured
from eventonce.config import Config
from eventonce.consumer import Consumer

if TYPE_CHECKING:
    from eventonce.history import History

DASHBOARD_HISTORY: Final = "sqlite:///eventonce-history.db"
"""The history of a worker that has a dashboard and names none."""


history_option: Final = configured(
    "--history",
    "uri",
    metavar="URI",
    help="The history, such as sqlite:///history.db.  [default: store of the file's [history]]",
)


def history_of(file: Config) -> str:
    """The URI of the history that the file names, or else of that which a dashboard began in this
    folder; empty for none."""
    from eventonce.history import recorder  # noqa: PLC0415  for those who keep one

    begun = DASHBOARD_HISTORY if recorder.exists(DASHBOARD_HISTORY) else ""
    return file.history.store or begun


def open_history(file: Config, uri: str) -> History:
    """This history, to write to it as the file says."""
    from eventonce.history import History  # noqa: PLC0415  for those who keep one

    table, secrets = file.history, file.secret_bytes if file.privacy.digests else ()
    return History(uri, keep=table.keep, most=table.most, secrets=secrets)


@contextmanager
def looking_back(file: Config, given: str | None = None) -> Iterator[History | None]:
    """The history, to look at: the one that is given, or else the file's; None without one, or
    before the file's is begun."""
    from eventonce.history import History, recorder  # noqa: PLC0415  for those who keep one

    uri = given or history_of(file)
    if not uri or not (given or recorder.exists(uri)):
        yield None
        return
    table, secrets = file.history, file.secret_bytes
    with History(uri, keep=table.keep, most=table.most, look=True, secrets=secrets) as history:
        yield history


@contextmanager
def keeping_history(
    file: Config,
    consumer: Consumer,
    channel: str,
    in_flight: Callable[[], int] | None = None,
) -> Iterator[History | None]:
    """Keep what the consumer decides, and tell which leases it holds, where the file says so."""
    if not file.history.store:
        yield None
        return
    with open_history(file, file.history.store) as history:
        consumer.observers.append(history.observer(consumer, channel, in_flight=in_flight))
        history.keep_up()
        yield history
