"""Groups of dead letters: those whose reasons differ in numbers, ids and values alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from eventonce.letters.reasons import normalised
from eventonce.letters.selection import event_of
from eventonce.types import Letter

MOST_GROUPS: Final = 1_000
"""Groups that are told apart. Reasons that have nothing in common are nothing to look through."""

NAMES: Final = 50
"""Types and rules that are counted in a group: a sender may invent as many as it likes."""

OTHERS: Final = "other reasons"


class Group(msgspec.Struct):
    """The dead letters of one reason, counted."""

    id: str
    """For `Selection.group`; empty for the reasons that found no room."""
    reason: str
    count: int = 0
    first: int = 0
    last: int = 0
    statuses: Counter[str] = msgspec.field(default_factory=Counter)
    types: Counter[str] = msgspec.field(default_factory=Counter)
    rules: Counter[str] = msgspec.field(default_factory=Counter)
    example: str = ""
    """The id of its latest dead letter."""


def grouped(letters: Iterable[Letter], group_of: Callable[[str], str]) -> list[Group]:
    """The groups, the largest first; no dead letter is held. `group_of` names the group of a
    reason."""
    found: dict[str, Group] = {}
    for letter in letters:
        name = group_of(letter.reason)
        group = found.get(name)
        if group is None:
            if len(found) < MOST_GROUPS:
                group = found[name] = Group(name, normalised(letter.reason))
            else:
                group = found.setdefault("", Group("", OTHERS))
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
        if len(counts) < NAMES or name in counts:
            counts[name] += 1
