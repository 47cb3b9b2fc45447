"""Leases are renewed while handlers run, whatever the handlers do to threads and loops."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence

import msgspec
import pytest

from eventonce import Consumer, Job, Rule
from eventonce.stores.memory import MemoryStore
from eventonce.types import Kept, Settlement

LEASE = 0.3
RULE = Rule(name="call", match="call", key=["detail.call"], lease=LEASE)


def call(number: int) -> bytes:
    return msgspec.json.encode(
        {"id": f"id-{number}", "detail-type": "call", "detail": {"call": number}}
    )


def wait_past(consumer: Consumer, number: int, leases: int = 4) -> None:
    """Hold on for some leases, asking all the while whether another could take the event over."""
    end = time.monotonic() + leases * LEASE
    while time.monotonic() < end:
        (outcome,) = consumer.process([call(number)])
        assert outcome.status == "busy", outcome
        time.sleep(LEASE / 10)


def thief(store: MemoryStore) -> Consumer:
    return Consumer(store, rules=[RULE], handler=lambda _: None)


def test_a_handler_longer_than_its_lease_keeps_it() -> None:
    store = MemoryStore()
    consumer = Consumer(store, rules=[RULE], handler=lambda job: wait_past(thief(store), 1))
    assert [outcome.status for outcome in consumer.process([call(1)])] == ["done"]


def test_events_that_wait_behind_a_slow_one_keep_their_leases() -> None:
    store = MemoryStore()

    def handler(job: Job) -> None:
        if job.event.id == "id-1":
            wait_past(thief(store), 2)

    consumer = Consumer(store, rules=[RULE], handler=handler)
    assert [outcome.status for outcome in consumer.process([call(1), call(2)])] == ["done"] * 2


def test_handlers_that_fill_every_thread_keep_their_leases() -> None:
    store = MemoryStore()
    consumer = Consumer(
        store, rules=[RULE], threads=1, handler=lambda job: wait_past(thief(store), 3, 2)
    )
    outcomes = asyncio.run(consumer.process_async([call(1), call(2), call(3)]))
    assert [outcome.status for outcome in outcomes] == ["done"] * 3
    consumer.close()


def test_an_async_handler_that_holds_the_loop_keeps_its_lease() -> None:
    store = MemoryStore()

    async def rude(_: Job) -> None:
        wait_past(thief(store), 1)

    consumer = Consumer(store, rules=[RULE], handler=rude)
    assert [outcome.status for outcome in consumer.process([call(1)])] == ["done"]
    consumer.close()


def test_a_block_longer_than_its_lease_keeps_it() -> None:
    store = MemoryStore()
    with Consumer(store, rules=[RULE]).once(call(1)) as job:
        wait_past(thief(store), 1)
    assert job.outcome is not None
    assert job.outcome.status == "done"


def test_a_run_whose_renewal_is_refused_is_told_that_it_lost_its_lease() -> None:
    class Refusing(MemoryStore):
        def settle(self, settlements: Sequence[Settlement], now: int | None = None) -> list[Kept]:
            if settlements[0].action == "extend":
                return ["fenced"] * len(settlements)
            return super().settle(settlements, now)

    def handler(job: Job) -> bool:
        end = time.monotonic() + 30
        while not job.lost and time.monotonic() < end:
            time.sleep(0.01)
        return job.lost

    (outcome,) = Consumer(Refusing(), rules=[RULE], handler=handler).process([call(1)])
    assert outcome.result is True


def test_what_is_finished_is_settled_although_others_of_its_batch_still_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("eventonce.aio.WAVE", 0.05)
    store = MemoryStore()
    quick_is_done = threading.Event()

    def handler(job: Job) -> None:
        if job.event.id == "id-1":
            return
        end = time.monotonic() + 30
        while time.monotonic() < end:
            if thief(store).process([call(1)])[0].status == "duplicate":
                quick_is_done.set()
                return
            time.sleep(0.01)

    consumer = Consumer(store, rules=[RULE], handler=handler)
    asyncio.run(consumer.process_async([call(1), call(2)]))
    assert quick_is_done.is_set()
    consumer.close()
