"""Simulated traffic of a contact centre, as it arrives, with the truth about each line.

`genesys`, `cxone` and `unknown` create facts; `world` creates their deliveries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Final, NamedTuple

from eventonce.study.causes import Cause
from eventonce.study.simulate.cxone import CXone
from eventonce.study.simulate.genesys import Genesys
from eventonce.study.simulate.traffic import Traffic
from eventonce.study.simulate.unknown import Unknown
from eventonce.study.simulate.world import Rates, SimulatedDelivery, World, as_line, cause
from eventonce.study.units import DAY

SOURCES: Final[Mapping[str, Callable[[int], Traffic]]] = {
    "genesys": Genesys,
    "cxone": CXone,
    "unknown": Unknown,
}
BEGIN: Final = 1_794_787_200_000
"""Midnight before a Monday in November 2026, in milliseconds."""


class Scenario(NamedTuple):
    """The numbers of a simulation; the same scenario gives the same lines."""

    events: int = 10_000
    """The approximate number of lines."""
    seed: int = 1
    sources: Sequence[str] = ("genesys",)
    days: float = 7.0
    rates: Rates = Rates()
    bare: bool = False


class SimulatedLine(NamedTuple):
    """One line of the capture, and the truth about it."""

    text: bytes
    fact: int
    copy_of: int | None
    """The first line of the same fact, counted from 1; None for the first line itself."""
    cause: Cause | None


class _Seen:
    """The deliveries of one fact up to now."""

    __slots__ = ("deliveries", "fact", "first")

    def __init__(self, fact: int) -> None:
        self.fact = fact
        self.first = 0
        self.deliveries: list[SimulatedDelivery] = []


def capture(scenario: Scenario, expected: list[bytes] | None = None) -> Iterator[SimulatedLine]:
    """Yield the lines in the order of arrival; `expected` collects the first publication of each
    fact, also of lost ones."""
    chance = Random(f"capture {scenario.seed}")
    end = BEGIN + int(scenario.days * DAY)
    worlds = [_opened(name, scenario, end) for name in scenario.sources]
    facts, lines, serial = count(), count(1), count()
    waiting: list[tuple[int, int, SimulatedDelivery, _Seen]] = []
    made = 0
    now: float = BEGIN
    # Conversations begin at random instants. Their lengths vary, so the time to the next one is
    # set by the number of lines so far.
    while made < scenario.events:
        traffic, world = chance.choice(worlds)
        for fact in traffic.conversation(int(now), chance):
            seen = _Seen(next(facts))
            if expected is not None:
                expected.append(world.published(fact, chance))
            for delivery in world.deliveries(fact, chance):
                heappush(waiting, (delivery.arrived, next(serial), delivery, seen))
                made += 1
        pace = (end - now) / max(1.0, (scenario.events - made) / 20)
        now = min(end, now + chance.expovariate(1) * pace)
        while waiting and waiting[0][0] < now:
            yield _line_of(*heappop(waiting)[2:], next(lines), scenario)
    while waiting:
        yield _line_of(*heappop(waiting)[2:], next(lines), scenario)


def _opened(name: str, scenario: Scenario, end: int) -> tuple[Traffic, World]:
    traffic = SOURCES[name](scenario.seed)
    return traffic, World(traffic, scenario.rates, scenario.seed, BEGIN, end)


def _line_of(
    delivery: SimulatedDelivery, seen: _Seen, number: int, scenario: Scenario
) -> SimulatedLine:
    why = cause(delivery, seen.deliveries) if seen.deliveries else None
    seen.deliveries.append(delivery)
    first = seen.first or None
    seen.first = seen.first or number
    return SimulatedLine(as_line(delivery, bare=scenario.bare), seen.fact, first, why)
