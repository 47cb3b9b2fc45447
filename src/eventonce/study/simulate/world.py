"""The world between the source of a fact and its consumer: publications, routes and deliveries,
each with its cause.

A delivery has a lineage: its emission of the fact, its publication of that emission, its route, and
its attempt. The cause of a copy is the cause of the step at which the lineages of the two
deliveries differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil, exp, log
from random import Random
from typing import Final, NamedTuple

import msgspec

from eventonce.envelope.captured import Arrived, line_of
from eventonce.study.causes import Cause
from eventonce.study.simulate.traffic import Fact, Traffic, seconds, uuid
from eventonce.study.units import DAY, HOUR, MINUTE, SECOND

LATEST_PUBLISH: Final = 4 * DAY
"""The time for which Genesys retries events that EventBridge does not accept."""
LONGEST_RETRY: Final = DAY
"""The time for which EventBridge retries a target by default."""
LONGEST_DOUBLE: Final = 500
"""Milliseconds within which a source emits the same state twice."""


OUTAGE_SHARE: Final = 0.05
"""The share of time of an outage; a share of its publications is published again."""
SETUP_SHARE: Final = 0.33
"""The share of time for which a second rule, integration or region exists."""


class Rates(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """The rates of all causes: shares of all events, unless stated otherwise."""

    redelivery: float = 0.012
    overlapping_rules: float = 0.06
    """The share of types of which two rules match every event, for a third of the time."""
    target_retry: float = 0.008
    republish: float = msgspec.field(name="re-publish", default=0.006)
    second_integration: float = 0.04
    """The share of types, for a third of the time."""
    cross_region: float = 0.04
    """The share of types, for a third of the time."""
    replay: float = 0.01
    double_emission: float = 0.008
    reordering: float = 0.03
    """The share of deliveries that come seconds late."""
    lost: float = 0.0005
    clock_skew: float = 0.02
    """The share of time in which the publisher's clock is seconds off."""


class _Setup:
    """A second route of some types, for a part of the time."""

    def __init__(
        self, traffic: Traffic, share: float, begin: int, end: int, chance: Random
    ) -> None:
        self._types = _share_of(traffic.types, share, chance)
        self._begin, self._end = _span(SETUP_SHARE, begin, end, chance)

    def covers(self, type: str, at: int) -> bool:
        """Return whether an event of this type also takes the second route at this instant."""
        return type in self._types and self._begin <= at < self._end


class SimulatedDelivery(NamedTuple):
    """One line of a capture."""

    arrived: int
    lineage: tuple[int, int, int, int]
    causes: tuple[Cause | None, ...]
    """For each step of the lineage the cause of a copy; None for the first one."""
    channel: str
    message: str
    receives: int
    """How often the queue has delivered the message; 0 if the channel does not count."""
    event: bytes


class World:
    """The world for the facts of one source."""

    def __init__(self, traffic: Traffic, rates: Rates, seed: int, begin: int, end: int) -> None:
        chance = Random(f"world {traffic.source} {seed}")
        self._traffic = traffic
        self._rates = rates
        self._overlapping = _Setup(traffic, rates.overlapping_rules, begin, end, chance)
        self._integrated = _Setup(traffic, rates.second_integration, begin, end, chance)
        self._copied = _Setup(traffic, rates.cross_region, begin, end, chance)
        self._on_lambda = _share_of(traffic.types, 0.3, chance)
        self._replayed = _span(rates.replay, begin, end, chance)
        self._replayed_at = min(end, self._replayed[1]) + chance.randrange(HOUR, 12 * HOUR)
        # A separate generator: this rate changes nothing else.
        clock = Random(f"clock {traffic.source} {seed}")
        self._skewed = _span(rates.clock_skew, begin, end, clock)
        self._skew = clock.choice((-1, 1)) * clock.randrange(2 * SECOND, 20 * SECOND)
        # In an outage a publisher does not know which events EventBridge accepted.
        self._outage = _span(OUTAGE_SHARE, begin, end, chance)

    def deliveries(self, fact: Fact, chance: Random) -> list[SimulatedDelivery]:
        """Return the deliveries of a fact in the order of arrival; none if it is lost."""
        if chance.random() < self._rates.lost:
            return []
        found = list(self._publications(fact, 0, chance))
        if chance.random() < self._rates.double_emission:
            found += self._publications(fact, chance.randrange(1, LONGEST_DOUBLE), chance)
        found.sort(key=lambda delivery: delivery.arrived)
        return found

    def published(self, fact: Fact, chance: Random) -> bytes:
        """Return the event of a fact as it is first published."""
        return self._event(fact, uuid(chance), self._traffic.source, fact.at, fact.detail(0, 0))

    def _publications(
        self, fact: Fact, emission: int, chance: Random
    ) -> Iterator[SimulatedDelivery]:
        first = fact.at + emission + chance.randrange(260, 700)
        source = self._traffic.source
        yield from self._routes(fact, (emission, 0), None, source, first, chance)
        if self._integrated.covers(fact.type, first):
            other, at = self._traffic.second(), first + chance.randrange(2, 400)
            yield from self._routes(fact, (emission, 1), "second-integration", other, at, chance)
        begin, end = self._outage
        if begin <= first < end and chance.random() < self._rates.republish / OUTAGE_SHARE:
            late = end - first + int(_log_uniform(2 * MINUTE, LATEST_PUBLISH, chance))
            at = first + min(late, LATEST_PUBLISH)
            yield from self._routes(fact, (emission, 2), "re-publish", source, at, chance)

    def _routes(
        self,
        fact: Fact,
        published: tuple[int, int],
        why: Cause | None,
        source: str,
        at: int,
        chance: Random,
    ) -> Iterator[SimulatedDelivery]:
        """Yield a publication, and its copy in another region under a new id."""
        emission, publication = published
        detail = fact.detail(emission, publication)
        # The publisher's time stays in the event, in all regions.
        event = self._event(fact, uuid(chance), source, at, detail)
        yield from self._routed(fact, (emission, 2 * publication), why, event, at, "", chance)
        if self._copied.covers(fact.type, at):
            event = self._event(fact, uuid(chance), source, at, detail)
            lineage = (emission, 2 * publication + 1)
            yield from self._routed(fact, lineage, "cross-region", event, at, "@us-east-1", chance)

    def _routed(
        self,
        fact: Fact,
        published: tuple[int, int],
        why: Cause | None,
        event: bytes,
        at: int,
        region: str,
        chance: Random,
    ) -> Iterator[SimulatedDelivery]:
        kind = "lambda:calls" if fact.type in self._on_lambda else "sqs:calls"
        channel = kind + region
        before: tuple[Cause | None, ...] = ("double-emission" if published[0] else None, why)

        def route(
            number: int, cause: Cause | None, at: int, body: bytes
        ) -> Iterator[SimulatedDelivery]:
            first = SimulatedDelivery(
                at + self._delay(chance) + (chance.randrange(300, 3_000) if region else 0),
                (*published, number, 0),
                (*before, cause, None),
                channel,
                uuid(chance),
                0 if kind.startswith("lambda") else 1,
                body,
            )
            yield first
            yield from self._attempts(first, chance)

        yield from route(0, None, at, event)
        if self._overlapping.covers(fact.type, at):
            yield from route(1, "overlapping-rules", at, event)
        if kind.startswith("sqs") and chance.random() < self._rates.target_retry:
            # EventBridge got no answer from the target, and retries for hours.
            later = at + int(_log_uniform(30 * SECOND, LONGEST_RETRY, chance))
            yield from route(2, "target-retry", later, event)
        begin, end = self._replayed
        if begin <= at < end:
            again = b'{"replay-name":"after-the-outage",' + event[1:]
            # A replay is faster than the original traffic.
            yield from route(3, "replay", self._replayed_at + (at - begin) // 10, again)

    def _attempts(self, first: SimulatedDelivery, chance: Random) -> Iterator[SimulatedDelivery]:
        """Yield the same message again, after its consumer failed or was slow."""
        on_lambda = not first.receives
        cause: Cause = "target-retry" if on_lambda else "redelivery"
        likely = self._rates.target_retry if on_lambda else self._rates.redelivery
        arrived, attempt = first.arrived, 0
        while chance.random() < likely:
            attempt += 1
            if on_lambda and attempt > 2:
                return
            # Lambda retries after one and two minutes; a queue after its visibility time-out.
            pause = attempt * MINUTE if on_lambda else chance.choice((30 * SECOND, 5 * MINUTE))
            arrived += pause + chance.randrange(3 * SECOND)
            yield first._replace(
                arrived=arrived,
                lineage=(*first.lineage[:3], attempt),
                causes=(*first.causes[:3], cause),
                receives=0 if on_lambda else first.receives + attempt,
            )
            likely = 0.2

    def _delay(self, chance: Random) -> int:
        late = chance.random() < self._rates.reordering
        return chance.randrange(2 * SECOND, 30 * SECOND) if late else chance.randrange(40, 900)

    def _event(self, fact: Fact, id: str, source: str, at: int, detail: bytes) -> bytes:
        begin, end = self._skewed
        if begin <= at < end:
            at += self._skew
        head = (
            f'{{"version":"0","id":"{id}","detail-type":"{fact.type}","source":"{source}",'
            f'"account":"123456789012","time":"{seconds(at)}","region":"eu-west-1","resources":[],'
            '"detail":'
        )
        return b"%b%b}" % (head.encode(), detail)


def cause(one: SimulatedDelivery, earlier: Sequence[SimulatedDelivery]) -> Cause:
    """Return the cause of this delivery, compared with its nearest earlier relative."""

    def shared(other: SimulatedDelivery) -> int:
        pairs = zip(one.lineage, other.lineage, strict=True)
        return next((place for place, (a, b) in enumerate(pairs) if a != b), len(one.lineage))

    nearest = max(earlier, key=shared)
    place = shared(nearest)
    found = one.causes[place] or nearest.causes[place]
    assert found is not None, "two deliveries of one route, and both are the first"
    return found


def _share_of(types: Sequence[str], share: float, chance: Random) -> frozenset[str]:
    """Return a share of the types; at least one type if the share is above 0."""
    return frozenset(chance.sample(types, min(len(types), ceil(share * len(types)))))


def _span(share: float, begin: int, end: int, chance: Random) -> tuple[int, int]:
    """Return a part of the time with this share."""
    length = int((end - begin) * share)
    first = begin + chance.randrange(max(1, (end - begin - length) // 2))
    return first, first + length


def _log_uniform(least: float, most: float, chance: Random) -> float:
    return exp(chance.uniform(log(least), log(most)))


def as_line(delivery: SimulatedDelivery, *, bare: bool) -> bytes:
    """Return the delivery as a line of a capture; with `bare`, only its event."""
    if bare:
        return delivery.event + b"\n"
    body, channel, message = delivery.event, delivery.channel, delivery.message
    return line_of(Arrived(body, channel, message, delivery.arrived, delivery.receives)) + b"\n"
