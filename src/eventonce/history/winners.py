"""The winner of a copy: the event that took effect, and the run in which it did, if the history has
its decision.

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

REPORTED_LATER: Final = 60_000
"""Milliseconds after a copy within which its winner may be reported: clocks of workers differ, and
outcomes are reported at the end of a batch."""

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


Runs = Callable[[Collection[bytes]], Iterable[Decision]]
"""A function that returns the runs that took effect under these keys, oldest first."""


def with_runs(decisions: Sequence[Decision], runs: Runs) -> list[Decision]:
    """Return these decisions in the order of their times, and for each event without a run among
    them the latest run that took effect. For the latest decisions of a search, whose limit may
    separate the copies of an event from its run."""
    ran = {_place(one) for one in decisions if one.status in TOOK_EFFECT}
    wanted = {_place(one) for one in decisions if one.key} - ran
    if not wanted:
        return [*decisions]
    keys = {key for _, key, _ in wanted}
    latest = {place: run for run in runs(keys) if (place := _place(run)) in wanted}
    return sorted([*latest.values(), *decisions], key=attrgetter("at"))


def _place(one: Decision) -> Place:
    return one.consumer, one.key, one.version


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
        return _place(one)
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
    """Return the transport id of the effect before the copy; None if it is not known for sure."""
    place, seen = _before(one), set[Place]()
    while place is not None and place not in seen:
        seen.add(place)
        leads = found.get(place, ())
        effects = [it for it in leads if it.status in TOOK_EFFECT]
        if effects:
            return _agreed(one, _latest(effects, one.at, fact=place[2] is None))
        place = _further(leads)
    return _own(one) or None


def _latest(effects: Sequence[Lead], at: int, *, fact: bool) -> str:
    """Return the transport id of the last effect before this moment; if there is none, of the first
    soon after it. Two versions with one order have one place: if both took effect, neither is
    known to be the winner."""
    if not fact and len({it.id for it in effects}) > 1:
        return ""
    effects = sorted(effects, key=attrgetter("at"))
    before = [it for it in effects if it.at <= at][-1:]
    after = [it for it in effects if at < it.at <= at + REPORTED_LATER][:1]
    return next((it.id for it in before + after), "")


def _agreed(one: Decision, winner: str) -> str | None:
    """Return the winner unless it contradicts the store, which compared the transport ids: another
    store may share the history. The record of a state may have the id of an unchanged version."""
    compared = one.same_id if one.status == "duplicate" and one.version is None else None
    return None if not winner or compared not in (None, winner == one.id) else winner
