"""The winner of a copy: the event that took effect, if the history has its decision.

The record in the store has only a short hash of the winner's transport id, so the winner is
searched for when decisions are read.
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
"""The statuses of a run that took effect."""

LEADING: Final = TOOK_EFFECT | {"unchanged"}
"""The statuses that lead to a winner: an unchanged state has its version in the record, too, and
its reason names the version before."""

BEATEN: Final = COPIES | {"conflict"}
"""The statuses of an event whose key had already taken effect through another event."""

Place = tuple[str, bytes, int | None]
"""A consumer, a key and a version: they identify one effect."""


class Lead(msgspec.Struct, frozen=True):
    """A decision whose status is in `LEADING`."""

    place: Place
    status: str
    at: int
    id: str
    reason: str


Leads = Callable[[Collection[bytes], Collection[int | None] | None], Iterable[Lead]]
"""A function that returns the leads under these keys in these versions; None for all versions."""


def with_winners(decisions: Sequence[Decision], leads: Leads) -> list[Decision]:
    """Return these decisions, with the winner of each beaten one. The tables are queried once, and
    once more for states that were unchanged: each of those leads to the version before it."""
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
    """Return the winner's transport id if the copy has the same one. Not for a state: its record
    may have the id of an unchanged version, which took no effect."""
    return one.id if one.status == "duplicate" and one.same_id and one.version is None else ""


def _before(one: Decision) -> Place | None:
    """Return the place of the effect before this decision; None if it is unknown or not needed."""
    if one.status not in BEATEN or not one.key or _own(one):
        return None
    if one.status in ("duplicate", "conflict"):
        return one.consumer, one.key, one.version
    return _named(one.consumer, one.key, one.reason)


def _named(consumer: str, key: bytes, reason: str) -> Place | None:
    version = winning_version(reason)
    return None if version is None else (consumer, key, version)


def _further(leads: Sequence[Lead]) -> Place | None:
    """Return the place that these lead to; None if one of them took effect."""
    if not leads or any(lead.status in TOOK_EFFECT for lead in leads):
        return None
    last = leads[-1]
    return _named(*last.place[:2], last.reason)


def _winner(one: Decision, found: Mapping[Place, Sequence[Lead]]) -> str | None:
    """Return the transport id of the last effect before the copy. If there is none before it, the
    first after it: clocks of workers differ, and outcomes are reported at the end of a batch."""
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
