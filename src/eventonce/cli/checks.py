"""The checks of settings that one command alone knows, for that command and for `eventonce check`.

`config.checks` has those that need no extra and no folder of the worker's machine.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import msgspec

from eventonce.config import Config, DashboardTable, HistoryTable, Serve, resolved
from eventonce.config.checks import Checks, check_values
from eventonce.errors import ConfigError
from eventonce.rules.tomltext import Place
from eventonce.sinks import open_sink
from eventonce.sockets import address
from eventonce.stores.sqlite.uri import read

CAPTURE_FIELDS: Final = ("tap", "shadow_log")
"""The fields that name a file in the format of a capture."""

FILE_FIELDS: Final = (*CAPTURE_FIELDS, "audit")
"""The fields that name a file to write; its folder must exist."""

FROM_ENVIRONMENT: Final = (
    "api_keys",
    "webhook_secrets",
    "stripe_secrets",
    "shopify_secrets",
    "github_secrets",
    "sns_topics",
)
"""Lists of the table `[serve]` that the environment may extend: `EVENTONCE_API_KEYS`, …"""


def check_settings(config: Config, *tables: str, files: Iterable[str] = ()) -> None:
    """Raise ConfigError with every wrong value of these tables, of the fields outside of tables,
    and of the `FILE_FIELDS` that the command writes."""
    written: Checks = {
        (name,): _check_capture if name in CAPTURE_FIELDS else _check_folder for name in files
    }
    check_values(config, *tables, also={**checks_of(*tables), **written})


def checks_of_file() -> Checks:
    """Return the checks of fields that some command makes, except those that depend on the
    machine."""
    names: Checks = {(name,): _check_name for name in CAPTURE_FIELDS}
    return {**checks_of("worker", "serve", "dashboard"), **names}


def checks_of(*tables: str) -> Checks:
    """Return the checks that `run`, `serve` and `dashboard` make of their tables, if their extras
    are installed."""
    found: dict[Place, Callable[[Any], object]] = {}
    if "worker" in tables:
        found["worker", "health"] = lambda place: address(str(place)) if place else None
    if "dashboard" in tables:
        found |= _of_dashboard()
    if "serve" in tables:
        found |= _of_receiver()
    return found


NOTHING_KEPT: Final = (
    'nothing is kept without a store or a dashboard; write store = "sqlite:///history.db"'
)


NOT_HERE: Final = ". Commands that use it would not start here"
"""The end of a warning about a fault of this machine: the consumer may run on another."""


def warnings_of(config: Config) -> Iterator[str]:
    """Yield the faults that depend on the machine, and settings that work and are probably
    mistakes."""
    from eventonce.web.authentication import check_host  # noqa: PLC0415  slow to import

    written = {name: getattr(config, name) for name in FILE_FIELDS}
    if config.store.startswith("sqlite:"):
        written["store"] = str(read(config.store).path)
    checks: list[tuple[str, Callable[[], object]]] = [
        (f"{name}: ", partial(_check_folder, path)) for name, path in written.items()
    ]
    checks += [("", partial(open_sink, it)) for it in config.sink if it.to.startswith("file:")]
    receiver = with_environment(config.serve)
    checks += [("", partial(check_host, receiver, receiver.host))]
    for place, check in checks:
        try:
            check()
        except ConfigError as error:
            yield f"{place}{error}{NOT_HERE}"
    bare = config.history != HistoryTable() and not config.history.store
    if bare and config.dashboard.listen == "":
        yield f"history: {NOTHING_KEPT}"
    everything = [number for number, sink in enumerate(config.sink, 1) if sink.match == "*"]
    if everything and everything[0] < len(config.sink):
        yield (
            f"sink {everything[0]}: it takes every event, so the sinks after it get none; give it "
            "a `match`, or move it to the end"
        )
    yield from _guessable(receiver)
    rules = [*config.rule, *(rule for spec in config.rules for rule in resolved("rules", spec))]
    for name, count in Counter(rule.name for rule in rules).items():
        if count > 1:
            yield (
                f"rule {name}: {count} rules have this name, and reports cannot tell them apart; "
                "give each its own"
            )


def _guessable(receiver: Serve) -> Iterator[str]:
    """Yield a warning if other machines can reach the receiver and a key of it could be guessed."""
    from eventonce.web.authentication import SHORTEST_SECRET  # noqa: PLC0415  slow to import
    from eventonce.web.credentials import is_local  # noqa: PLC0415  likewise

    shortest = min((len(key.strip()) for key in receiver.api_keys), default=SHORTEST_SECRET)
    if shortest < SHORTEST_SECRET and is_local(receiver.host) is False:
        yield (
            f"serve.api_keys: a key has less than {SHORTEST_SECRET} characters, and other machines "
            f"reach {receiver.host}: use a long random text"
        )


def with_environment(table: Serve) -> Serve:
    """Return the table with the secrets of the environment after those of the file."""
    users = [pair.partition(":") for pair in os.environ.get("EVENTONCE_USERS", "").split()]
    lists = {
        name: [*getattr(table, name), *os.environ.get(f"EVENTONCE_{name.upper()}", "").split()]
        for name in FROM_ENVIRONMENT
    }
    given = {user: password for user, _, password in users}
    return msgspec.structs.replace(table, users={**table.users, **given}, **lists)


def _of_dashboard() -> dict[Place, Callable[[Any], object]]:
    found: dict[Place, Callable[[Any], object]] = {
        ("dashboard", "listen"): lambda place: address(str(place), "listen") if place else None
    }
    if find_spec("starlette") is None or find_spec("uvicorn") is None:
        return found
    from eventonce.dashboard.access import Access, check_host, check_names  # noqa: PLC0415  an extra

    def together(table: DashboardTable) -> None:
        check_names(table)
        try:
            host, _ = address(str(table.listen))
        except ConfigError:
            return  # there is none, or the check of this field says so
        check_host(table, host)

    found["dashboard", "viewers"] = lambda people: Access(DashboardTable(viewers=people))
    found["dashboard", "operators"] = lambda people: Access(DashboardTable(operators=people))
    found["dashboard",] = together
    return found


def _of_receiver() -> dict[Place, Callable[[Any], object]]:
    from eventonce.web.admission import check_bytes  # noqa: PLC0415  slow to import
    from eventonce.web.authentication import SCHEMES, Authenticator  # noqa: PLC0415  likewise

    def authenticator(field: str) -> Callable[[Any], object]:
        return lambda value: Authenticator(Serve(**{field: value}))

    fields = ["api_keys", "api_key_header", "users", *(scheme.setting for scheme in SCHEMES)]
    if find_spec("cryptography") is not None:
        fields.append("sns_topics")
    return {("serve", field): authenticator(field) for field in fields} | {("serve",): check_bytes}


def _check_name(path: str) -> None:
    """Raise ConfigError if the file of a tap or of a shadow log cannot have this name."""
    from eventonce.study.capture.recorder import named  # noqa: PLC0415  slow to import

    if path:
        named(Path(path))


def _check_capture(path: str) -> None:
    _check_name(path)
    _check_folder(path)


def _check_folder(path: str) -> None:
    """Raise ConfigError if this file cannot be created: its folder is missing, or it is a
    folder."""
    # pathlib would raise if a folder above may not be entered.
    if path and not os.path.isdir(folder := Path(path).parent):  # noqa: PTH112
        raise ConfigError(f"there is no folder {folder}: create it first")
    if path and os.path.isdir(path):  # noqa: PTH112
        raise ConfigError(f"{path} is a folder: name a file in it")
