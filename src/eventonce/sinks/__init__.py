"""Sinks: handlers that send events on, opened from a `[[sink]]` table or used from Python."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from eventonce.core.masking import masked, scheme_of
from eventonce.core.plan import Handler
from eventonce.errors import ConfigError, EventonceError, install_hint

if TYPE_CHECKING:
    from eventonce.sinks.eventbridge import EventBus
    from eventonce.sinks.json_lines import JSONLines
    from eventonce.sinks.sqs import SQSQueue
    from eventonce.sinks.table import Table
    from eventonce.sinks.webhook import Webhook

__all__ = ["EventBus", "JSONLines", "SQSQueue", "Sink", "Table", "Webhook", "open_sink"]


class Sink(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One `[[sink]]` table: the events, the target, and the options of that target."""

    to: str
    match: str = "*"
    """A glob over event types; the first sink that matches takes the event."""
    headers: Mapping[str, str] | UnsetType = UNSET
    timeout: float | UnsetType = UNSET
    group: str | UnsetType = UNSET
    source: str | UnsetType = UNSET

    def __repr__(self) -> str:
        """Return the sink without its path and headers: they may be secret, and logs show them."""
        return f"Sink(to={masked(self.to)!r}, match={self.match!r})"


class Kind(NamedTuple):
    """The class of a scheme's sink, and the fields of the table that it takes."""

    module: str
    name: str
    example: str
    fields: tuple[str, ...] = ()
    needs: str = ""
    """A module that is not always installed, and the extra that has it, as `module:extra`."""
    local: bool = False
    """Whether only the machine of the worker can check the sink, such as a folder."""


_AWS: Final = "botocore:sqs"

KINDS: Final[Mapping[str, Kind]] = {
    "https": Kind("webhook", "Webhook", "https://host/path", ("headers", "timeout")),
    "http": Kind("webhook", "Webhook", "http://127.0.0.1:8080/path", ("headers", "timeout")),
    "sqs": Kind("sqs", "SQSQueue", "sqs://queue?region=…", ("group",), _AWS),
    "events": Kind("eventbridge", "EventBus", "events://bus?region=…", ("source",), _AWS),
    "table": Kind("table", "Table", "table:events"),
    "file": Kind("json_lines", "JSONLines", "file:events.jsonl", local=True),
}
"""The kinds of sinks. A new sink needs one file, with a class that takes a URI, and one line here.
Any other sink is `module:function`."""

_FUNCTION: Final = re.compile(r"[^\W\d][\w.]*:[^\W\d]\w*")
_FIELDS: Final = frozenset(Sink.__struct_fields__) - {"to", "match"}


def open_sink(sink: Sink) -> Handler:
    """Return the handler of this table; ConfigError names its fault."""
    with _about(sink):
        kind, given = _kind_of(sink)
        return _made(kind, sink.to, given) if kind.module else _function(sink.to)


def check_sink(sink: Sink) -> None:
    """Raise the ConfigError of `open_sink` without running the user's code. Folders and extras are
    not checked, because only the machine of the worker needs them."""
    with _about(sink):
        kind, given = _kind_of(sink)
        if not kind.module:
            _look_for(sink.to)
        elif not kind.local and not _missing(kind):
            _made(kind, sink.to, given)


@contextmanager
def _about(sink: Sink) -> Iterator[None]:
    """Add the name of this sink, and a list of all kinds, to errors within the block."""
    try:
        yield
    except ConfigError as error:
        known = ", ".join(kind.example for kind in KINDS.values())
        raise ConfigError(
            f"sink {masked(sink.to)!r} for {sink.match!r}: {str(error).rstrip('.')}. "
            f"A sink is module:function, {known}"
        ) from error


def _kind_of(sink: Sink) -> tuple[Kind, dict[str, Any]]:
    """Return the kind of the sink, and the fields of its table that are set."""
    given = {name: getattr(sink, name) for name in _FIELDS if getattr(sink, name) is not UNSET}
    scheme, _, rest = sink.to.partition(":")
    kind = KINDS.get(scheme) or Kind("", "a function", "")
    unfit = sorted(given.keys() - set(kind.fields))
    if unfit:
        fields = ", ".join(("match", "to", *kind.fields))
        raise ConfigError(f"{kind.name} takes no {unfit[0]!r}; its table may hold {fields}")
    if not kind.module and (not rest or rest.startswith("//")):
        raise ConfigError(f"no sink is called {scheme_of(sink.to) + ':'!r}")
    return kind, given


def _made(kind: Kind, to: str, given: Mapping[str, Any]) -> Handler:
    if extra := _missing(kind):
        raise ConfigError(f"{kind.name} needs: {install_hint(extra)}")
    module = importlib.import_module(f"eventonce.sinks.{kind.module}")
    handler: Handler = getattr(module, kind.name)(to, **given)
    return handler


def _missing(kind: Kind) -> str:
    """Return the extra that must be installed first; empty for none."""
    module, _, extra = kind.needs.partition(":")
    return extra if module and find_spec(module) is None else ""


def _function(path: str) -> Handler:
    handler: Handler = imported(path)
    if not callable(handler):
        raise ConfigError(f"{masked(path)} is not a function, but a {type(handler).__name__}")
    return handler


def _look_for(path: str) -> None:
    """Raise ConfigError if there is no such module; it is not imported: that would run its code."""
    module, _, name = path.partition(":")
    _search_here()
    try:
        found = find_spec(module.partition(".")[0])
    except (ImportError, ValueError):
        found = None
    if found is None or not name.isidentifier():
        raise ConfigError(
            f"{masked(path)}: expected MODULE:NAME of a function: "
            + ("NAME is missing or not a name" if found else "there is no such module")
        )


def _search_here() -> None:
    if "" not in sys.path:
        sys.path.insert(0, "")


def imported(path: str) -> Any:
    """Return the object of `module:name`; modules of the working directory are found too."""
    module, _, name = path.partition(":")
    _search_here()
    if not _FUNCTION.fullmatch(path):
        # Not imported: the error of the import would repeat the text, which may hold a secret.
        raise ConfigError(f"{masked(path)}: expected MODULE:NAME of a function or a Consumer")
    try:
        return getattr(importlib.import_module(module), name)
    except EventonceError:
        raise
    except Exception as error:
        # Importing a module runs its code, which may raise anything.
        raise ConfigError(
            f"{masked(path)}: expected MODULE:NAME of a function or a Consumer: "
            f"{type(error).__name__}: {error}"
        ) from error


def __getattr__(name: str) -> Any:
    """Import the class of a sink when it is first used: each needs other libraries."""
    for kind in KINDS.values():
        if kind.name == name:
            return getattr(importlib.import_module(f"eventonce.sinks.{kind.module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
