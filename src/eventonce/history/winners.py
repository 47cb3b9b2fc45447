"""The winner of a copy: the event that took effect, as far as the history has its decision.

The record in the store has a short hash of the winner's transport id alone, so the winner is looked
for when decisions are read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Final

import msgspec
from msgspec.structs import replace

from eventonce.core.reasons import winning_version
from eventonce.core.status import COPIES, EFFECTIVE
from eventonce.history.decision import Decision

TOOK_EFFECT: Final = EFFECTIVE - COPIES
"""The statuses of a run that took effect, without those of its copies."""

LEADING: Final = TOOK_EFFECT | {"unchanged"}
"""The statuses that lead to a winner: the record has the version of an unchanged state, too."""

BEATEN: Final = COPIES | {"conflict"}
"""The statuses of an event before which another took effect under its key."""

Place = tuple[str, bytes, int | None]
"""A consumer, a key and a version: one effect has all three."""


class Lead(msgspec.Struct, frozen=True):
    """A decision of `LEADING`."""

    place: Place
    status: str
    at: int
    id: str
    reason: str


Leads = Callable[[Collection[bytes], Collection[int | None] | None], Iterable[Lead]]
"""The leads under these keys in these versions; None for all versions."""


def with_winners(decisions: Sequence[Decision], leads: Leads) -> list[Decision]:
    """These decisions, with the winner of each that another event came before. The tables are asked
    once, and once more for states that were told unchanged, of which each leads to the version
    before."""
    asked = {place for one in decisions if (place := _before(one))}
    found: dict[Place, list[Lead]] = {}
    if asked:
        versions = {version for _, _, version in asked}
        found = _by_place(leads({key for _, key, _ in asked}, versions))
    unchanged = {place[1] for place in asked if _further(found.get(place, ()))}
    if unchanged:
        found |= _by_place(leads(unchanged, None))
    return [replace(one, winner=_winner(one, found)) for one in decisions]


def _by_place(leads: Iterable[Lead]) -> dict[Place, list[Lead]]:
    found: dict[Place, list[Lead]] = {}
    for lead in leads:
        found.setdefault(lead.place, []).append(lead)
    return found


def _own(one: Decision) -> str:
    """The winner's transport id where it is the copy's own. The record of a state may have the id
    of an unchanged version, which took no effect."""
    return one.id if one.status == "duplicate" and one.same_id and one.version is None else ""


def _before(one: Decision) -> Place | None:
    """The place of the version that came before; None where nobody knows it, or needs to look."""
    if one.status not in BEATEN or not one.key or _own(one):
        return None
    if one.status in ("duplicate", "conflict"):
        return one.consumer, one.key, one.version
    return _named(one.consumer, one.key, one.reason)


def _named(consumer: str, key: bytes, reason: str) -> Place | None:
    version = winning_version(reason)
    return None if version is None else (consumer, key, version)


def _further(leads: Sequence[Lead]) -> Place | None:
    """The place that these lead to, if none of them took effect."""
    if not leads or any(lead.status in TOOK_EFFECT for lead in leads):
        return None
    last = leads[-1]
    return _named(*last.place[:2], last.reason)


def _winner(one: Decision, found: Mapping[Place, Sequence[Lead]]) -> str | None:
    """The last effect before the copy. The clocks of two workers may differ, and an outcome is told
    at the end of its batch: where none is before it, the first after it."""
    place, seen = _before(one), set[Place]()
    while place is not None and place not in seen:
        seen.add(place)
        leads = found.get(place, ())
        effects = sorted((it for it in leads if it.status in TOOK_EFFECT), key=attrgetter("at"))
        if effects:
            before = [it for it in effects if it.at <= one.at]
            return (before[-1] if before else effects[0]).id or None
        place = _further(leads)
    return _own(one) or None
