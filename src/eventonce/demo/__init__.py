"""The demo: a day of simulated calls, and the results of the usual recipes on its deliveries.
`worker` plays the same deliveries against eventonce, and `page` shows the results.

The demo needs no extra: it uses the guards of the study, and keeps their data in memory.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from eventonce.study.arrivals import arrival
from eventonce.study.backtest import Result
from eventonce.study.causes import Cause
from eventonce.study.guards import AGAIN, CRASH, OUTAGE, REDELIVERY_DELAY, Guard, Look
from eventonce.study.simulate import Scenario, capture
from eventonce.study.simulate.world import Rates
from eventonce.types import Event

SCENARIO: Final = Scenario(
    events=900,
    seed=2,
    days=1,
    # No double emissions: only a state rule can tell a state that is sent twice from one that
    # returns, and the demo has only facts.
    rates=Rates(redelivery=0.03, target_retry=0.03, republish=0.03, double_emission=0),
)
OUTAGE_DELIVERIES: Final = 4
"""The number of deliveries during the outage of the store."""


class DemoDelivery(NamedTuple):
    """One event as it is handed to a worker."""

    arrives: int
    fact: int
    cause: Cause | None
    """The cause of a copy; None for the first delivery of a fact."""
    copy_of: int | None
    line: bytes
    """The line of a capture."""
    crash: bool = False
    """Whether the worker dies while it processes this delivery."""
    outage: bool = False
    """Whether the store is unavailable when the delivery arrives."""


def deliveries(scenario: Scenario = SCENARIO) -> list[DemoDelivery]:
    """Return the deliveries of a day in the order of arrival, one with a crash and some in an
    outage."""
    found = [
        DemoDelivery(arrival(text).arrived or 0, fact, cause, copy_of, text.rstrip())
        for text, fact, copy_of, cause in capture(scenario)
    ]
    first = [place for place, one in enumerate(found) if one.cause is None]
    dying, away = first[len(first) // 3], first[len(first) // 2 :][:OUTAGE_DELIVERIES]
    return [
        one._replace(crash=place == dying, outage=place in away) for place, one in enumerate(found)
    ]


def judged(guard: Guard, delivered: Sequence[DemoDelivery]) -> Result:
    """Return the result of a guard on these deliveries, whose causes are known."""
    statuses: dict[int, str] = {}
    runs: Counter[int] = Counter()
    examples: list[tuple[int, int]] = []
    for looks in _looks(guard, delivered).values():
        ran = 0
        for look, status in guard.decide(sorted(looks, key=lambda look: (look.at, look.line))):
            statuses[look.line] = status
            fact = delivered[look.line - 1].fact
            if status == "run":
                runs[fact] += 1
                ran = look.line
            elif ran and delivered[ran - 1].fact != fact:
                examples.append((look.line, ran))
    return counted(guard.name, delivered, runs, statuses, examples)


def _looks(guard: Guard, delivered: Sequence[DemoDelivery]) -> Mapping[int, list[Look]]:
    found: dict[int, list[Look]] = defaultdict(list)
    for line, one in enumerate(delivered, start=1):
        here = arrival(one.line)
        assert isinstance(here.event, Event), "the demo simulates events alone"
        seen = guard.see(here, msgspec.json.decode(here.event.detail_raw))
        if seen is not None:
            key, *rest = seen
            fault = CRASH if one.crash else OUTAGE if one.outage else 0
            look = Look._make((key, one.arrives, line, *rest, fault))
            found[key].append(look)
            if fault:
                # A worker that died, or could not reach its store, acknowledged nothing.
                found[key].append(look._replace(at=look.at + REDELIVERY_DELAY, fault=AGAIN))
    return found


def counted(
    name: str,
    delivered: Sequence[DemoDelivery],
    runs: Mapping[int, int],
    statuses: Mapping[int, Any],
    examples: Sequence[tuple[int, int]] = (),
) -> Result:
    """Return a result from the number of runs of each fact and the status of each line."""
    facts = {one.fact for one in delivered}
    return Result(
        guard=name,
        lines=len(delivered),
        ran=sum(runs.values()),
        dropped=sum(status != "run" for status in statuses.values()),
        superseded=0,
        dead_letters=0,
        differing=len(examples),
        alike=0,
        lost=sum(not runs.get(fact) for fact in facts),
        let_through=sum(count - 1 for count in runs.values() if count > 1),
        examples=tuple(sorted(examples)[:2]),
        copies=len(delivered) - len(facts),
        span=delivered[-1].arrives - delivered[0].arrives,
    )
