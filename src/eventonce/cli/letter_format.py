"""A letter as the command line shows it: in a row, as a page, as JSON, as a line to take along."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from eventonce.cli.table import one_line, printable
from eventonce.types import Letter

HEAD: Final = ("id", "when", "status", "rule", "reason")

SHORT: Final = 12
"""Characters of an id that are listed, unless more are needed to tell two letters apart."""

_UNREADABLE: Final = (msgspec.MsgspecError, ValueError, RecursionError)
"""What an event is shown in spite of: some are letters just because nobody can read them."""


def rows_of(letters: Sequence[Letter]) -> list[tuple[str, ...]]:
    """A row for each. The versions of one subject have ids that begin alike."""
    ids = {letter.id for letter in letters}
    short = SHORT
    while len({name[:short] for name in ids}) < len(ids):
        short += 1
    return [
        (letter.id[:short], _when(letter), letter.status, letter.rule, letter.reason)
        for letter in letters
    ]


def page(letter: Letter) -> str:
    """All of it, however long, for people."""
    said = [
        f"{name:<10}{one_line(str(value))}" for name, value in document(letter).items() if value
    ]
    try:
        event = msgspec.json.format(letter.event, indent=2)
    except _UNREADABLE:
        event = letter.event
    return "\n".join([*said, printable(event.decode(errors="replace"))])


def document(letter: Letter) -> dict[str, Any]:
    """What is known of the event, for machines."""
    return {
        "id": letter.id,
        "when": _when(letter),
        "consumer": letter.consumer,
        "status": letter.status,
        "reason": letter.reason,
        "rule": letter.rule,
        "key": letter.key.hex(),
        "attempt": letter.attempt,
    }


def whole(letter: Letter) -> dict[str, Any]:
    """The same with the event."""
    try:
        event = msgspec.json.decode(letter.event)
    except _UNREADABLE:
        event = letter.event.decode(errors="replace")
    return document(letter) | {"event": event}


def line(letter: Letter) -> bytes:
    """The event alone, as a line of a file."""
    return letter.event.replace(b"\n", b" ").replace(b"\r", b" ") + b"\n"


def _when(letter: Letter) -> str:
    return datetime.fromtimestamp(letter.at / 1000, UTC).isoformat(timespec="seconds")
