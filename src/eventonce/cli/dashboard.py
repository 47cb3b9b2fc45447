"""`eventonce dashboard`: pages for people about a store and its history; and the same pages for
`run` and `serve`."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any, Final

import click
import msgspec
from click.core import ParameterSource

from eventonce.cli.checks import FILE_FIELDS, check_settings
from eventonce.cli.history_options import DASHBOARD_HISTORY, history_of, history_option
from eventonce.cli.letter_options import runners_of
from eventonce.cli.logs import log_format_option, log_to_stderr
from eventonce.cli.options import Settings, handler_option, with_settings
from eventonce.cli.output import remark
from eventonce.cli.signals import ended_by_signals, wait_for_signal
from eventonce.consumer import Consumer
from eventonce.core.masking import may_hold_secret
from eventonce.letters.runners import Runners
from eventonce.letters.selection import quoted

DEFAULT_LISTEN: Final = "8090"

dashboard_option = click.option(
    "--dashboard",
    metavar="[HOST:]PORT",
    help="Show what is done in a browser, at this address.  [default: listen of [dashboard]]",
)


@click.command()
@click.option(
    "--listen",
    metavar="[HOST:]PORT",
    help=f"The address to listen on; port 0 takes a free one.  [default: {DEFAULT_LISTEN}]",
)
@history_option
@handler_option
@log_format_option
@with_settings("store", "name", "config")
def dashboard(
    settings: Settings, listen: str | None, uri: str | None, handler: str | None, log_format: str
) -> None:
    """Show rates, the story of a call, workers, the store and dead letters in a browser.

    It looks at the store and the history of workers that run elsewhere; `run` and `serve` have
    the same pages with --dashboard. Dead letters are redriven with the handler, or with the sinks
    of the file. Ctrl-C ends it.
    """
    from eventonce.dashboard import server  # noqa: PLC0415  an extra that --help does without

    uri = uri or history_of(settings.file)
    if uri:
        settings = settings.also(history=msgspec.structs.replace(settings.file.history, store=uri))
    said = listen or str(settings.file.dashboard.listen) or DEFAULT_LISTEN
    settings = _at_address(settings, said)
    # The store is opened later, and may be unavailable now; a wrong URI is an error at once.
    check_settings(settings.file, "history", "privacy", "dashboard", files=("audit",))
    log_to_stderr(log_format)
    ended = threading.Event()
    with (
        runners_of(settings, handler) as runners,
        _listening(
            settings,
            said,
            handler,
            runners=runners if handler is not None or settings.file.sink else None,
        ) as (app, listening),
        # At the end of this block, running actions end after their batch, with their audit lines.
        server.serving(app, listening),
        ended_by_signals(lambda _: ended.set()),
    ):
        wait_for_signal(ended)


def checked_settings(
    settings: Settings, listen: str | None, *, taps: bool = True, **asked: Any
) -> Settings:
    """The settings of `run` and `serve`, with the dashboard of the option and a history for it to
    show. ConfigError names every wrong value of the file and of `asked`, which are its fields as
    other options change them."""
    if listen is not None:
        settings = _at_address(settings, listen)
    shown = settings.file.dashboard.listen != ""
    tables = (*asked, "history", "privacy", *(("dashboard",) if shown else ()))
    # In these two commands only the dashboard writes audit lines.
    written = {"tap": taps, "audit": shown}
    files = [name for name in FILE_FIELDS if written.get(name, True)]
    check_settings(settings.also(**asked).file, *tables, files=files)
    history = settings.file.history
    if not shown or history.store:
        return settings
    remark(
        f"the dashboard shows the history, and none is named: it is kept in {DASHBOARD_HISTORY}; "
        "[history] of eventonce.toml names another"
    )
    return settings.also(history=msgspec.structs.replace(history, store=DASHBOARD_HISTORY))


def _at_address(settings: Settings, listen: str) -> Settings:
    return settings.also(dashboard=msgspec.structs.replace(settings.file.dashboard, listen=listen))


@contextmanager
def watched_by_people(
    settings: Settings,
    consumer: Consumer,
    handler: str | None,
    state: Callable[[], Mapping[str, Any]] | None = None,
) -> Iterator[None]:
    """Serve the dashboard of a worker or a receiver, if the settings have its address."""
    said = str(settings.file.dashboard.listen)
    if not said:
        yield
        return
    from eventonce.dashboard import server  # noqa: PLC0415  an extra that most do without

    with (
        _listening(settings, said, handler, None, consumer, state) as (app, listening),
        server.serving(app, listening),
    ):
        yield


@contextmanager
def _listening(
    settings: Settings,
    said: str,
    handler: str | None,
    runners: Runners | None,
    consumer: Consumer | None = None,
    state: Callable[[], Mapping[str, Any]] | None = None,
) -> Iterator[tuple[Any, socket.socket]]:
    from eventonce.dashboard import Resources, server  # noqa: PLC0415  an extra
    from eventonce.dashboard import dashboard as pages  # noqa: PLC0415  likewise

    file = settings.file
    own = consumer if runners is None else runners.own
    resources = Resources(
        settings.open_store if own is None else lambda: own.admin,
        name=own.name if own is not None else file.name,
        history=file.history.store,
        secrets=file.secret_bytes,
        consumer=consumer,
        state=state,
        shadow_log=file.shadow_log,
        runners=runners,
        letters=file.letters,
        sealer=settings.sealer,
        audit=file.audit,
        options=_options(settings, handler),
    )
    with closing(resources), server.listen(said) as listening:
        app = pages(resources, file.dashboard)
        remark(f"the dashboard is at {server.link_of(app, listening)}")
        yield app, listening


def _options(settings: Settings, handler: str | None) -> dict[str, list[str]]:
    """Return the options of another command for the same file, store, history and handler, quoted
    for a shell. Values of the file or the environment need no option."""
    history = settings.file.history.store
    given = history if history != settings.in_file.history.store else None
    return {
        "config": ["--config", quoted(str(settings.path))] if settings.path else [],
        "store": _option("store", "store", settings.given_store),
        "history": _option("history", "uri", given),
        "redrive": ["--handler", quoted(handler)] if handler is not None else [],
    }


def _option(name: str, parameter: str, uri: str | None) -> list[str]:
    source = click.get_current_context().get_parameter_source(parameter)
    if not uri or source is ParameterSource.ENVIRONMENT:
        return []
    # `:?` makes the shell refuse an unset variable; otherwise the command would use another store.
    variable = f'"${{EVENTONCE_{name.upper()}:?}}"'
    return [f"--{name}", variable if may_hold_secret(uri) else quoted(uri)]
