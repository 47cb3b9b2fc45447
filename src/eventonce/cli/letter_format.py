"""Dead letters as text and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from eventonce.cli.output import one_line, printable
from eventonce.core.sealed import key_of_letter
from eventonce.letters.groups import Group
from eventonce.types import Letter

HEAD: Final = ("id", "when", "status", "rule", "reason")
GROUPS_HEAD: Final = ("group", "letters", "last", "rules", "types", "reason")

SHORT_ID: Final = 12
"""Characters of an id that are listed, unless more are needed to tell two dead letters apart."""

NAMES: Final = 2
"""Rules and types that the line of a group names."""

_UNREADABLE: Final = (msgspec.MsgspecError, ValueError, RecursionError)
"""Errors of an event that is not JSON: some are dead letters for that very reason."""


def rows(found: Sequence[Letter]) -> list[tuple[str, ...]]:
    """A row for each. The versions of one subject have ids that begin alike."""
    ids = {letter.id for letter in found}
    short = SHORT_ID
    while len({name[:short] for name in ids}) < len(ids):
        short += 1
    return [
        (letter.id[:short], when(letter.at), letter.status, letter.rule, letter.reason)
        for letter in found
    ]


def page(letter: Letter) -> str:
    """All fields and the event, for people."""
    fields = [
        f"{name:<10}{one_line(str(value))}" for name, value in document(letter).items() if value
    ]
    if key_of_letter(letter):
        return "\n".join(fields)
    try:
        event = msgspec.json.format(letter.event, indent=2)
    except _UNREADABLE:
        event = letter.event
    return "\n".join([*fields, printable(event.decode(errors="replace"))])


def document(letter: Letter) -> dict[str, Any]:
    """All fields but the event, for machines."""
    return {
        "id": letter.id,
        "when": when(letter.at),
        "consumer": letter.consumer,
        "status": letter.status,
        "reason": letter.reason,
        "rule": letter.rule,
        "key": letter.key.hex(),
        "attempt": letter.attempt,
    }


def event(letter: Letter) -> Any:
    """The event, for machines; its text if it is not JSON, nothing if it is sealed."""
    if key_of_letter(letter):
        return None
    try:
        return msgspec.json.decode(letter.event)
    except _UNREADABLE:
        return letter.event.decode(errors="replace")


def group_row(group: Group) -> tuple[object, ...]:
    """The line of a group."""
    last = when(group.last)
    return (group.id, group.count, last, _named(group.rules), _named(group.types), group.reason)


def group_document(group: Group) -> dict[str, Any]:
    """A group, for machines."""
    moments = {"first": when(group.first), "last": when(group.last)}
    return msgspec.structs.asdict(group) | moments


def when(at: int) -> str:
    """A moment, as `--since` takes it too."""
    return datetime.fromtimestamp(at / 1000, UTC).isoformat(timespec="seconds")


def _named(counts: Any) -> str:
    names = [name or "none" for name, _ in counts.most_common(NAMES)]
    return ", ".join([*names, *(["…"] if len(counts) > NAMES else [])])
