"""Promises that no test of one module alone makes, small enough to be broken on purpose."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

import pytest

from eventonce import Consumer, Job, Rule
from eventonce.core.ports import Delivery
from eventonce.errors import SourceUnavailable
from eventonce.stores.memory import MemoryStore
from eventonce.types import Claim
from eventonce.worker import Worker, WorkerSettings
from eventonce.worker.inflight import Inflight
from tests.helpers import WatchedStore, away, call, statuses
from tests.unit.test_worker_whole import InMemorySource

RULE = Rule(name="call", match="call", key=["detail.call"], attempts=2)


class Interrupt(BaseException):
    """The exception of a signal's handler."""


def raising(error: BaseException) -> Callable[[Job], None]:
    def handler(_: Job) -> None:
        raise error

    return handler


def a_completion_that_was_refused_is_not_acknowledged() -> None:
    refusing = WatchedStore(lambda verb, asked: ["fenced"] * len(asked) if verb == "settle" else 0)
    (outcome,) = Consumer(refusing, rules=RULE, handler=lambda _: None).process([call(0)])
    assert (outcome.status, outcome.ack) == ("fenced", False)


def a_completion_that_was_not_stored_is_not_acknowledged() -> None:
    consumer = Consumer(WatchedStore(away("settle")), rules=RULE, handler=lambda _: None)
    consumer.runtime.pauses = ()
    (outcome,) = consumer.process([call(0)])
    assert not outcome.ack


def a_given_up_event_is_acknowledged_only_after_its_dead_letter_is_kept() -> None:
    store = WatchedStore(away("put_letters"))
    consumer = Consumer(store, rules=RULE, handler=raising(ValueError()))
    assert [consumer.process([call(0)])[0].ack for _ in range(3)] == [False] * 3
    store.look = away()
    assert statuses(consumer.process([call(0)])) == ["dead"]
    assert len(list(consumer.letters())) == 1


def a_failed_event_is_not_acknowledged_and_runs_again() -> None:
    attempts: list[int] = []

    def handler(job: Job) -> None:
        attempts.append(job.attempt)
        if job.attempt == 1:
            raise ValueError

    consumer = Consumer("memory:", rules=RULE, handler=handler)
    outcomes = [consumer.process([call(0)])[0] for _ in range(2)]
    assert [outcome.ack for outcome in outcomes] == [False, True]
    assert attempts == [1, 2]


def an_event_does_not_run_while_the_store_cannot_be_asked() -> None:
    ran: list[Job] = []
    (outcome,) = Consumer(WatchedStore(away("claim")), rules=RULE, handler=ran.append).process(
        [call(0)]
    )
    assert (ran, outcome.ack) == ([], False)


def copies_of_one_batch_run_once() -> None:
    ran: list[Job] = []
    consumer = Consumer("memory:", rules=RULE, handler=ran.append)
    assert statuses(consumer.process([call(0), call(0)])) == ["done", "duplicate"]
    assert len(ran) == 1


def an_interrupted_caller_frees_the_events_that_did_not_run() -> None:
    store = MemoryStore()
    consumer = Consumer(store, rules=RULE, handler=raising(Interrupt()))
    with pytest.raises(Interrupt):
        consumer.process([call(0), call(1)])
    assert consumer.runtime.gate.held() == []
    assert consumer.runtime.gate._running == {}
    again = Consumer(store, rules=RULE, handler=lambda _: None)
    assert statuses(again.process([call(0), call(1)])) == ["done", "done"]


def a_waiter_for_a_run_is_woken_by_the_end_of_the_run() -> None:
    consumer, woken = Consumer("memory:", rules=RULE), list[str]()
    gate, claim = consumer.runtime.gate, Claim(b"key", 1, 60_000, 60_000, 1)
    assert not gate.when_ended(b"key", lambda: woken.append("too early"))
    assert gate.claim([claim])[0].token
    assert gate.when_ended(b"key", lambda: woken.append("in time"))
    assert not woken
    gate.let_go(None, [claim])
    assert woken == ["in time"]


def delivery_of(number: int, group: str = "") -> Delivery:
    body = b'{"id": "%d", "detail-type": "t", "detail": {}}' % number
    return Delivery(body, id=str(number), group=group)


class Finite(InMemorySource):
    """A source that ends once all its messages are delivered."""

    @property
    def ended(self) -> bool:  # type: ignore[override]
        return not self.waiting


def worked(source: Finite, handler: Callable[[Job], object]) -> None:
    """Let a worker work until the source has ended."""
    with Consumer(MemoryStore(), handler=handler) as consumer:
        Worker(consumer, source, WorkerSettings(receivers=1, drain=30.0)).run()


def a_worker_acknowledges_done_events_and_postpones_failed_events() -> None:
    def handler(job: Job) -> None:
        if job.event.id == "1":
            raise ValueError

    source = Finite()
    source.waiting = [delivery_of(0), delivery_of(1)]
    worked(source, handler)
    assert [delivery.id for delivery in source.acknowledged] == ["0"]
    assert [delivery.id for delivery, _ in source.postponed] == ["1"]


def an_acknowledgement_that_the_source_could_not_take_is_sent_again() -> None:
    class Away(Finite):
        refusals = 1

        def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
            if self.refusals:
                self.refusals -= 1
                raise SourceUnavailable
            super().acknowledge(deliveries)

    source = Away()
    source.waiting = [delivery_of(0)]
    worked(source, lambda _: None)
    assert [delivery.id for delivery in source.acknowledged] == ["0"]


def the_events_of_a_group_begin_one_at_a_time_and_none_overtakes_a_postponed_event() -> None:
    inflight = Inflight(10, 1, asynchronous=False)
    line = [delivery_of(number, "group") for number in range(3)]
    assert inflight.put(inflight.reserve(3, inf), line) == line[:1]
    assert inflight.acknowledged(line[0]) == line[1:2]
    assert inflight.postponed(line[1]) == line[1:]
