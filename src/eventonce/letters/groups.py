"""Groups of dead letters: the reasons within a group differ only in numbers, ids and values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from eventonce.letters.reasons import normalised
from eventonce.letters.selection import event_of
from eventonce.types import Letter

MOST_GROUPS: Final = 1_000
"""The most groups; the dead letters of all further reasons are counted together."""

MOST_NAMES: Final = 50
"""The most types, and the most rules, that are counted in a group: a sender may invent types."""

OTHER_REASONS: Final = "other reasons"


class Group(msgspec.Struct):
    """The dead letters of one reason, counted."""

    id: str
    """The id for `Selection.group`; empty for the group of all further reasons."""
    reason: str
    count: int = 0
    first: int = 0
    last: int = 0
    statuses: Counter[str] = msgspec.field(default_factory=Counter)
    types: Counter[str] = msgspec.field(default_factory=Counter)
    rules: Counter[str] = msgspec.field(default_factory=Counter)
    example: str = ""
    """The id of the latest dead letter."""


def grouped(letters: Iterable[Letter], group_of: Callable[[str], str]) -> list[Group]:
    """Return the groups, the largest first; no dead letter is kept in memory. `group_of` gives the
    id of a reason's group."""
    found: dict[str, Group] = {}
    for letter in letters:
        name = group_of(letter.reason)
        group = found.get(name)
        if group is None:
            if len(found) < MOST_GROUPS:
                group = found[name] = Group(name, normalised(letter.reason))
            else:
                group = found.setdefault("", Group("", OTHER_REASONS))
        _add(group, letter)
    return sorted(found.values(), key=lambda one: (-one.count, one.first))


def _add(group: Group, letter: Letter) -> None:
    group.first = min(group.first or letter.at, letter.at)
    if letter.at >= group.last:
        group.last, group.example = letter.at, letter.id
    group.count += 1
    event = event_of(letter)
    named = (
        (group.statuses, letter.status),
        (group.types, event.type if event is not None else ""),
        (group.rules, letter.rule),
    )
    for counts, name in named:
        if len(counts) < MOST_NAMES or name in counts:
            counts[name] += 1
