"""The pytest fixture for users' own handlers: copies, reorderings and crashes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from eventonce import Consumer, Job, Retry, Rule
from eventonce.errors import ConfigError
from eventonce.testing.harness import Harness
from tests.helpers import call

RULE = Rule(name="call", match="call", key=["detail.call"])


class Crm:
    """The system that a handler writes to: it honours idempotency keys, or does not."""

    def __init__(self, *, honours: bool) -> None:
        self.honours = honours
        self.closed: Counter[int] = Counter()
        self._seen: set[str] = set()

    def close(self, job: Job) -> None:
        if self.honours and job.effect_id in self._seen:
            return
        self._seen.add(job.effect_id)
        self.closed[job.event.detail["call"]] += 1


def test_an_idempotent_handler_survives_copies_and_a_crash(eventonce: Harness) -> None:
    crm = Crm(honours=True)
    eventonce.deliver(call(1), to=crm.close, copies=3, crash_after="effect", rules=RULE)
    assert crm.closed == {1: 1}


def test_a_handler_that_is_not_idempotent_repeats_its_effect_after_a_crash(
    eventonce: Harness,
) -> None:
    crm = Crm(honours=False)
    eventonce.deliver(call(1), to=crm.close, copies=3, crash_after="effect", rules=RULE)
    assert crm.closed == {1: 2}


def test_a_crash_before_the_effect_loses_nothing(eventonce: Harness) -> None:
    crm = Crm(honours=False)
    eventonce.deliver([call(1), call(2)], to=crm.close, crash_after="claim", rules=RULE)
    assert crm.closed == {1: 1, 2: 1}


@pytest.mark.parametrize("seed", range(5))
def test_copies_in_any_order_take_effect_once(eventonce: Harness, seed: int) -> None:
    crm = Crm(honours=False)
    events = [call(number) for number in range(5)]
    outcomes = eventonce.deliver(events, to=crm.close, copies=3, shuffle=seed, rules=RULE)
    assert crm.closed == dict.fromkeys(range(5), 1)
    assert Counter(outcome.status for outcome in outcomes) == {"done": 5, "duplicate": 10}


def test_a_consumer_is_tested_with_its_rules_and_handlers_on_another_store(
    eventonce: Harness,
) -> None:
    crm = Crm(honours=True)
    consumer = Consumer("memory:", name="crm", rules=RULE)
    consumer.on("call")(crm.close)
    eventonce.deliver(call(1), to=consumer, copies=2, crash_after="effect")
    assert crm.closed == {1: 1}
    assert eventonce.store.stats().records == 1
    assert consumer.admin.stats().records == 0


def test_an_async_handler_survives_copies_and_a_crash(eventonce: Harness) -> None:
    crm = Crm(honours=True)

    async def handler(job: Job) -> None:
        crm.close(job)

    eventonce.deliver(call(1), to=handler, copies=2, crash_after="effect", rules=RULE)
    assert crm.closed == {1: 1}


def test_a_failed_event_is_delivered_again_until_it_is_settled(eventonce: Harness) -> None:
    tries = 0

    def handler(_: Job) -> None:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise Retry(after=60)

    outcomes = eventonce.deliver(call(1), to=handler, rules=RULE)
    assert [outcome.status for outcome in outcomes] == ["failed", "failed", "done"]


@pytest.mark.parametrize("given", [{"copies": 0}, {"crash_after": "effects"}])
def test_zero_copies_and_an_unknown_moment_of_a_crash_are_refused(
    eventonce: Harness, given: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match=next(iter(given))):
        eventonce.deliver(call(1), to=Crm(honours=True).close, rules=RULE, **given)


def test_without_shuffle_the_order_of_the_events_is_kept(eventonce: Harness) -> None:
    ran: list[int] = []
    events = [call(number) for number in range(20)]
    eventonce.deliver(
        events, to=lambda job: ran.append(job.event.detail["call"]), shuffle=False, rules=RULE
    )
    assert ran == list(range(20))
