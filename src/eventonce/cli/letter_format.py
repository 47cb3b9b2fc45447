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

LETTERS_HEAD: Final = ("id", "when", "status", "rule", "reason")
GROUPS_HEAD: Final = ("group", "letters", "last", "rules", "types", "reason")

SHORT_ID: Final = 12
"""Characters of an id that are listed, unless two dead letters need more to differ."""

NAMES_IN_GROUP: Final = 2
"""The most rules and types that the line of a group names."""

_UNREADABLE: Final = (msgspec.MsgspecError, ValueError, RecursionError)
"""The errors of an event that is not JSON; some events are dead letters for that reason."""


def rows(found: Sequence[Letter]) -> list[tuple[str, ...]]:
    """Return a row for each dead letter. Ids are shown longer if needed, because the versions of
    one subject have ids with the same beginning."""
    ids = {letter.id for letter in found}
    short = SHORT_ID
    while len({name[:short] for name in ids}) < len(ids):
        short += 1
    return [
        (letter.id[:short], when(letter.at), letter.status, letter.rule, letter.reason)
        for letter in found
    ]


def page(letter: Letter) -> str:
    """Return all fields and the event as text."""
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
    """Return all fields except the event, for JSON."""
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
    """Return the event, for JSON; its text if it is not JSON, None if it is sealed."""
    if key_of_letter(letter):
        return None
    try:
        return msgspec.json.decode(letter.event)
    except _UNREADABLE:
        return letter.event.decode(errors="replace")


def group_row(group: Group) -> tuple[object, ...]:
    """Return the line of a group."""
    last = when(group.last)
    return (group.id, group.count, last, _named(group.rules), _named(group.types), group.reason)


def group_document(group: Group) -> dict[str, Any]:
    """Return a group, for JSON."""
    moments = {"first": when(group.first), "last": when(group.last)}
    return msgspec.structs.asdict(group) | moments


def when(at: int) -> str:
    """Return a time, in a form that `--since` accepts."""
    return datetime.fromtimestamp(at / 1000, UTC).isoformat(timespec="seconds")


def _named(counts: Any) -> str:
    names = [name or "none" for name, _ in counts.most_common(NAMES_IN_GROUP)]
    return ", ".join([*names, *(["…"] if len(counts) > NAMES_IN_GROUP else [])])
