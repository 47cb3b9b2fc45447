"""Leases are renewed while handlers run, whatever the handlers do to threads and loops."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from eventonce import Consumer, Job, Reject, envelope
from eventonce.core.plan import Plan, Run
from eventonce.runtime.observers import to_log
from eventonce.stores.memory import MemoryStore
from eventonce.types import Letter
from tests.helpers import PATIENCE, WatchedStore, call, ruled, statuses

LEASES = (0.3, 3.0, 15.0)
"""Seconds. The first is enough, unless a busy machine renews too late: then the test is tried
again with the next. A lease that is not renewed ends under each of them."""


class Held:
    """A store, a lease, and a second consumer that takes an event over when its lease has ended."""

    def __init__(self, lease: float) -> None:
        self.lease = lease
        self.rule = ruled(lease=lease)
        self.store = MemoryStore()
        self.stolen = False
        self._second_consumer = Consumer(self.store, rules=self.rule, handler=lambda _: None)

    def wait_past(self, number: int, leases: int = 4) -> None:
        """A wait of some leases, while the second consumer keeps trying to take the event."""
        end = time.monotonic() + leases * self.lease
        while time.monotonic() < end and not self.stolen:
            (outcome,) = self._second_consumer.process([call(number)])
            self.stolen = outcome.status != "busy"
            time.sleep(self.lease / 10)


def kept(story: Callable[[Held], list[str]]) -> list[str]:
    """The statuses at the end of the story, with the first lease that was not taken over."""
    for lease in LEASES:
        held = Held(lease)
        statuses = story(held)
        if not held.stolen:
            return statuses
    return ["stolen"]


def test_a_handler_longer_than_its_lease_keeps_it() -> None:
    def story(held: Held) -> list[str]:
        consumer = Consumer(held.store, rules=held.rule, handler=lambda _: held.wait_past(1))
        return statuses(consumer.process([call(1)]))

    assert kept(story) == ["done"]


def test_events_that_wait_behind_a_slow_event_keep_their_leases() -> None:
    def story(held: Held) -> list[str]:
        def handler(job: Job) -> None:
            if job.event.id == "id-1":
                held.wait_past(2)

        consumer = Consumer(held.store, rules=held.rule, handler=handler)
        return statuses(consumer.process([call(1), call(2)]))

    assert kept(story) == ["done"] * 2


def test_handlers_that_fill_every_thread_keep_their_leases() -> None:
    def story(held: Held) -> list[str]:
        def handler(_: Job) -> None:
            held.wait_past(3, 2)

        with Consumer(held.store, rules=held.rule, threads=1, handler=handler) as consumer:
            outcomes = asyncio.run(consumer.process_async([call(1), call(2), call(3)]))
        return [outcome.status for outcome in outcomes]

    assert kept(story) == ["done"] * 3


def test_an_async_handler_that_blocks_the_loop_keeps_its_lease() -> None:
    def story(held: Held) -> list[str]:
        async def rude(_: Job) -> None:
            held.wait_past(1)

        with Consumer(held.store, rules=held.rule, handler=rude) as consumer:
            return statuses(consumer.process([call(1)]))

    assert kept(story) == ["done"]


def test_a_block_longer_than_its_lease_keeps_it() -> None:
    def story(held: Held) -> list[str]:
        with Consumer(held.store, rules=held.rule).once(call(1)) as job:
            held.wait_past(1)
        assert job.outcome is not None
        return [job.outcome.status]

    assert kept(story) == ["done"]


def test_an_event_that_failed_keeps_its_lease_while_its_batch_runs() -> None:
    def story(held: Held) -> list[str]:
        def handler(job: Job) -> None:
            if job.event.id == "id-1":
                raise ValueError
            held.wait_past(1)

        consumer = Consumer(held.store, rules=held.rule, handler=handler)
        return statuses(consumer.process([call(1), call(2)]))

    assert kept(story) == ["failed", "done"]


@pytest.mark.parametrize("number", [1, 2])
def test_the_events_of_a_batch_keep_their_leases_while_a_dead_letter_is_written(
    number: int,
) -> None:
    def story(held: Held) -> list[str]:
        class Slow(MemoryStore):
            def put_letters(self, letters: Sequence[Letter]) -> None:
                held.wait_past(number)
                super().put_letters(letters)

        def handler(job: Job) -> None:
            if job.event.id == "id-1":
                raise Reject("no")

        consumer = Consumer(held.store, rules=held.rule, handler=handler, letters=Slow())
        return statuses(consumer.process([call(1), call(2)]))

    assert kept(story) == ["dead", "done"]


def test_a_long_lease_is_renewed_before_a_claim_with_a_shorter_lease_can_end_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def story(held: Held) -> list[str]:
        for module in ("core.ledger", "runtime.gate"):
            monkeypatch.setattr(f"eventonce.{module}.LONGEST_LEASE", int(held.lease * 1000))
        consumer = Consumer(
            held.store, rules=ruled(lease=3600), handler=lambda _: held.wait_past(1)
        )
        return statuses(consumer.process([call(1)]))

    assert kept(story) == ["done"]


def test_a_run_whose_renewal_is_refused_is_marked_as_lost_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told: list[bool] = []

    def refuse(verb: str, asked: Sequence[Any]) -> list[str]:
        return ["fenced"] * len(asked) if verb == "settle" else []

    def handler(job: Job) -> None:
        end = time.monotonic() + PATIENCE
        while not job.lost and time.monotonic() < end:
            time.sleep(0.01)
        time.sleep(0.3)  # the time of three more renewals, which must not happen
        told.append(job.lost)

    consumer = Consumer(WatchedStore(refuse), rules=ruled(lease=0.3), handler=handler)
    consumer.observers.append(to_log())
    consumer.process([call(1)])
    assert told == [True]
    (line,) = caplog.messages
    assert line.startswith("fenced type=call id=id-1 ")
    assert line.endswith("ran, but outlived its lease and another run took over")


def test_a_job_that_starts_after_its_lease_was_lost_is_marked_as_lost() -> None:
    with Consumer("memory:", rules=ruled()) as consumer:
        plan = consumer.runtime.planner.plan(envelope.read(call(1)), 1)
    assert isinstance(plan, Plan)
    run = Run(plan, plan.claim)
    run.lose()
    assert run.start().lost


def test_a_finished_event_is_settled_while_another_event_of_its_batch_still_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("eventonce.runtime.gate.SETTLE_INTERVAL", 0.05)
    # A lease that does not end meanwhile: only a settlement makes the event a copy.
    store, rule = MemoryStore(), ruled(lease=3600)
    another = Consumer(store, rules=rule, handler=lambda _: None)
    quick_is_done = threading.Event()

    def handler(job: Job) -> None:
        if job.event.id == "id-1":
            return
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            if another.process([call(1)])[0].status == "duplicate":
                quick_is_done.set()
                return
            time.sleep(0.01)

    consumer = Consumer(store, rules=rule, handler=handler)
    asyncio.run(consumer.process_async([call(1), call(2)]))
    assert quick_is_done.is_set()
    consumer.close()
