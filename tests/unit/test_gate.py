"""The gate: shared calls, renewed leases, and copies that wait for the run of their process."""

from __future__ import annotations

import asyncio
import contextvars
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from eventonce import Consumer, Job, Rule
from eventonce.aws import lambda_handler
from eventonce.core.plan import Plan, Run
from eventonce.errors import StoreUnavailable
from eventonce.runtime import inline
from eventonce.runtime.gate import Gate, LeasedRuns
from eventonce.runtime.slots import Slots
from eventonce.stores.memory import MemoryStore
from eventonce.types import Claim, Outcome, Settlement, SettleResult, Verdict
from tests.helpers import PATIENCE, WatchedStore, away, call, statuses, until

RULE = Rule(name="call", match="call", key=["detail.call"], lease=3600)


class Recording(MemoryStore):
    """A store that records each call; on request the first claim waits until `go` is set."""

    def __init__(self, *, waits: bool = False) -> None:
        super().__init__()
        self.claims: list[list[bytes]] = []
        self.actions: list[list[str]] = []
        self.under_way, self.go = threading.Event(), threading.Event()
        if not waits:
            self.go.set()

    def claim(self, claims: Sequence[Claim], now: int | None = None) -> list[Verdict]:
        self.claims.append([claim.key for claim in claims])
        if len(self.claims) == 1:
            self.under_way.set()
            assert self.go.wait(PATIENCE)
        return super().claim(claims, now)

    def settle(
        self, settlements: Sequence[Settlement], now: int | None = None
    ) -> list[SettleResult]:
        self.actions.append([one.action for one in settlements])
        return super().settle(settlements, now)


def test_simultaneous_callers_share_one_call_of_the_store() -> None:
    store = Recording(waits=True)
    consumer = Consumer(store, rules=RULE, handler=lambda _: None)
    with ThreadPoolExecutor() as pool:
        first = pool.submit(consumer.process, [call(0)])
        assert store.under_way.wait(PATIENCE)
        others = [pool.submit(consumer.process, [call(number)]) for number in range(1, 5)]
        until(lambda: len(consumer.runtime.gate._claims._waiting) == 4)
        store.go.set()
        for one in (first, *others):
            assert statuses(one.result(PATIENCE)) == ["done"]
    assert [len(keys) for keys in store.claims] == [1, 4]
    consumer.close()


def test_a_lease_is_renewed_and_a_run_settled_in_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eventonce.runtime.gate.SETTLE_INTERVAL", 0.05)
    # Due at once, and ended only after an hour: whatever this machine does, it is renewed in time.
    monkeypatch.setattr("eventonce.runtime.gate._due", lambda run: run.renewed)
    store = Recording()

    def handler(job: Job) -> None:
        if job.event.id == "id-1":
            until(lambda: any({"extend", "complete"} == set(call) for call in store.actions))

    consumer = Consumer(store, rules=RULE, handler=handler)
    assert statuses(consumer.process([call(0), call(1)])) == ["done"] * 2
    completions = [action for actions in store.actions for action in actions].count("complete")
    assert completions == 2, "whoever settles first settles alone"
    consumer.close()


def through_process(consumer: Consumer, event: Any) -> str:
    (outcome,) = consumer.process([event])
    return outcome.status


def through_a_loop(consumer: Consumer, event: Any) -> str:
    (outcome,) = asyncio.run(consumer.process_async([event]))
    return outcome.status


def through_once(consumer: Consumer, event: Any) -> str:
    with consumer.once(event) as job:
        assert not job.run
    assert job.outcome is not None
    return str(job.outcome.status)


def through_lambda(consumer: Consumer, event: Any) -> str:
    seen: dict[int, str] = {}

    def observe(outcome: Outcome, _: float) -> None:
        seen[threading.get_ident()] = outcome.status

    consumer.observers.append(observe)
    context = SimpleNamespace(get_remaining_time_in_millis=lambda: 60_000)
    lambda_handler(consumer)(event, context)
    return seen[threading.get_ident()]


@contextmanager
def running_event(consumer: Consumer, begun: threading.Event) -> Iterator[Any]:
    """Event 0 runs in another thread while the block runs."""
    with ThreadPoolExecutor() as pool:
        run = pool.submit(consumer.process, [call(0)])
        assert begun.wait(PATIENCE)
        yield pool
        assert statuses(run.result(PATIENCE)) == ["done"]


@pytest.mark.parametrize("way", [through_process, through_a_loop, through_once, through_lambda])
def test_a_copy_waits_for_the_run_of_its_process_and_is_then_a_duplicate(
    way: Callable[[Consumer, Any], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eventonce.consumer.COPY_WAIT", PATIENCE)
    begun, go, ran = threading.Event(), threading.Event(), list[str]()

    def handler(job: Job) -> None:
        ran.append(job.event.id)
        begun.set()
        assert go.wait(PATIENCE)

    store = Recording()
    consumer = Consumer(store, rules=RULE, handler=handler)
    with running_event(consumer, begun) as pool:
        copy = pool.submit(way, consumer, call(0))
        until(lambda: consumer.runtime.gate._waiters)
        assert not copy.done()
        go.set()
        assert copy.result(PATIENCE) == "duplicate"
    assert ran == ["id-0"]
    # The run, the copy, and the copy after it was woken: no claim in between.
    assert len(store.claims) == 3
    assert (consumer.runtime.gate._waiters, consumer.runtime.gate._running) == ({}, {})
    consumer.close()


def test_a_copy_that_was_answered_just_before_the_run_of_its_process_ended_asks_again() -> None:
    """The copy asked before that run was granted and was answered after: no look before or after
    its call sees the run."""
    go, answered = threading.Event(), threading.Event()

    class Late(Recording):
        def claim(self, claims: Sequence[Claim], now: int | None = None) -> list[Verdict]:
            verdicts = super().claim(claims, now)
            if len(self.claims) == 2:
                go.set()
                assert answered.wait(PATIENCE)
            return verdicts

    store = Late(waits=True)
    consumer = Consumer(store, rules=RULE, handler=lambda _: go.wait(PATIENCE) and None)
    with ThreadPoolExecutor() as pool:
        run = pool.submit(consumer.process, [call(0)])
        assert store.under_way.wait(PATIENCE)
        copy = pool.submit(consumer.process, [call(0)])
        until(lambda: consumer.runtime.gate._claims._waiting)
        store.go.set()
        assert statuses(run.result(PATIENCE)) == ["done"]
        answered.set()
        assert statuses(copy.result(PATIENCE)) == ["duplicate"]
    consumer.close()


@pytest.mark.parametrize("way", [through_process, through_a_loop])
def test_a_copy_inside_the_handler_of_its_own_run_is_busy_at_once(
    way: Callable[[Consumer, Any], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eventonce.consumer.COPY_WAIT", 10 * PATIENCE)
    consumer = Consumer("memory:", rules=RULE, handler=lambda _: way(consumer, call(0)))
    assert consumer.process([call(0)])[0].result == "busy"
    consumer.close()


def test_a_copy_is_busy_after_the_longest_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eventonce.consumer.COPY_WAIT", 0.05)
    begun, go = threading.Event(), threading.Event()

    def handler(_: Job) -> None:
        begun.set()
        assert go.wait(PATIENCE)

    consumer = Consumer("memory:", rules=RULE, handler=handler)
    with running_event(consumer, begun):
        assert through_process(consumer, call(0)) == "busy"
        assert through_a_loop(consumer, call(0)) == "busy"
        go.set()
    consumer.close()


@pytest.mark.parametrize("on_loop", [False, True])
def test_a_copy_of_a_run_in_another_process_asks_again_and_gets_the_outcome(
    monkeypatch: pytest.MonkeyPatch, *, on_loop: bool
) -> None:
    # COPY_WAIT limits the wait for a run of this process, not for a run of another process.
    monkeypatch.setattr("eventonce.consumer.COPY_WAIT", 0.0)
    store = Recording()
    elsewhere = Consumer(store, rules=RULE, handler=lambda _: "its result")
    consumer = Consumer(store, rules=RULE, handler=lambda _: None)
    pool = ThreadPoolExecutor()
    # Leaving the block completes the run.
    with pool, elsewhere.once(call(0)) as job:
        job.result = "its result"

        def ask() -> list[Outcome]:
            if on_loop:
                return asyncio.run(consumer.process_async([call(0)], wait=PATIENCE))
            return consumer.process([call(0)], wait=PATIENCE)

        copy = pool.submit(ask)
        until(lambda: len(store.claims) >= 3)
        assert not copy.done()
    (outcome,) = copy.result(PATIENCE)
    assert (outcome.status, outcome.result) == ("duplicate", "its result")
    consumer.close()


def test_synchronous_code_on_a_loop_does_not_block_the_loop_to_wait_for_a_copy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The run may be a `once` block in another task of the same loop."""
    monkeypatch.setattr("eventonce.consumer.COPY_WAIT", 10 * PATIENCE)
    consumer = Consumer("memory:", rules=RULE, handler=lambda _: None)

    async def one(held: asyncio.Event, go: asyncio.Event) -> None:
        with consumer.once(call(0)):
            held.set()
            await go.wait()

    async def story() -> str:
        held, go = asyncio.Event(), asyncio.Event()
        task = asyncio.create_task(one(held, go))
        await held.wait()
        status = through_once(consumer, call(0))
        go.set()
        await task
        return status

    assert asyncio.run(story()) == "busy"


def test_no_loop_is_found_when_asyncio_is_not_imported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "asyncio")
    assert not inline._on_loop()


def test_a_cancelled_batch_does_not_wait_for_another_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eventonce.consumer.COPY_WAIT", 10 * PATIENCE)
    begun, go = threading.Event(), threading.Event()

    def handler(_: Job) -> None:
        begun.set()
        assert go.wait(PATIENCE)

    consumer = Consumer("memory:", rules=RULE, handler=handler)

    async def story() -> None:
        copy = asyncio.ensure_future(consumer.process_async([call(0)]))
        await asyncio.to_thread(until, lambda: consumer.runtime.gate._waiters)
        copy.cancel()
        with pytest.raises(asyncio.CancelledError):
            await copy

    with running_event(consumer, begun):
        asyncio.run(story())
        go.set()
    consumer.close()


def test_handlers_that_fill_all_threads_and_process_events_themselves_finish() -> None:
    """And at most as many handlers run at the same time as the consumer has threads."""
    running, most, counting = 0, 0, threading.Lock()
    inner = Rule(name="inner", match="inner", key=["detail.call"])

    def handler(job: Job) -> list[str]:
        nonlocal running, most
        if job.rule == "inner":
            return []
        with counting:
            running += 1
            most = max(most, running)
        number = job.event.detail["call"]
        nested = [call(10 * number + more, type="inner") for more in range(3)]
        outcomes = asyncio.run(consumer.process_async(nested))
        with counting:
            running -= 1
        return statuses(outcomes)

    consumer = Consumer("memory:", rules=[RULE, inner], handler=handler, threads=2)
    outcomes = asyncio.run(consumer.process_async([call(number) for number in range(1, 20)]))
    assert [outcome.result for outcome in outcomes] == [["done"] * 3] * 19
    assert most <= 2
    consumer.close()


def test_an_async_handler_runs_in_the_context_of_its_caller() -> None:
    tenant = contextvars.ContextVar("tenant", default="nobody")

    async def handler(_: Job) -> str:
        return tenant.get()

    async def story(consumer: Consumer) -> list[Any]:
        tenant.set("the caller")
        return [one.result for one in await consumer.process_async([call(0), call(1)])]

    with Consumer("memory:", rules=RULE, handler=handler) as consumer:
        assert asyncio.run(story(consumer)) == ["the caller"] * 2


def test_a_batch_in_flight_finishes_after_its_consumer_is_closed() -> None:
    """Its handler runs on the loop that calls `close`, so `close` cannot wait for the handler."""

    async def story() -> list[str]:
        closed = asyncio.Event()

        async def handler(_: Job) -> None:
            await closed.wait()

        consumer = Consumer(MemoryStore(), rules=RULE, handler=handler)
        batch = asyncio.ensure_future(consumer.process_async([call(0), call(1)]))
        await asyncio.to_thread(until, lambda: len(consumer.runtime.gate.held()) == 2)
        consumer.close()
        closed.set()
        return statuses(await asyncio.wait_for(batch, PATIENCE))

    assert asyncio.run(story()) == ["done"] * 2


def test_the_timer_starts_again_for_a_batch_after_close() -> None:
    consumer = Consumer("memory:", rules=RULE, handler=lambda _: None)
    gate = consumer.runtime.gate
    for number in range(2):
        with consumer.once(call(number)):
            assert gate._timer is not None
            assert gate._timer.is_alive()
        gate.close()
        assert gate._timer is None


def threads_used(most: int, items: list[str], *, close_at_once: bool) -> int:
    """The number of threads that ran these items."""
    threads, done, together = set[int](), list[str](), threading.Barrier(4)

    def work(item: str) -> None:
        threads.add(threading.get_ident())
        if item == "slow":
            together.wait(PATIENCE)
        done.append(item)

    slots = Slots[str](most, work)
    slots.put(items)
    if not close_at_once:
        until(lambda: len(done) == len(items))
    slots.close()
    assert len(done) == len(items)
    return len(threads)


def test_one_slot_is_enough_for_quick_handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eventonce.runtime.slots.ALONE_FOR", PATIENCE)
    assert threads_used(4, ["quick"] * 100, close_at_once=False) == 1


@pytest.mark.parametrize("close_at_once", [False, True])
def test_slow_handlers_get_all_slots_even_if_the_slots_are_closed_at_once(
    *, close_at_once: bool
) -> None:
    assert threads_used(4, ["slow"] * 8, close_at_once=close_at_once) == 4


@pytest.mark.parametrize(
    ("store", "left"), [(MemoryStore(), ("run", 1)), (WatchedStore(away("settle")), ("busy", 0))]
)
def test_an_abandoned_grant_is_released_and_not_counted_if_the_store_answers(
    store: MemoryStore, left: tuple[str, int]
) -> None:
    gate = Gate(store)
    claims = [Claim(key, 1, 3_600_000, 864_000_000, 1) for key in (b"a", b"b")]
    abandon = gate._claims._abandon
    assert abandon is not None
    abandon(claims, gate.claim(claims))
    assert gate._running == {}
    again = [msgspec.structs.replace(claim, nonce=2) for claim in claims]
    assert [(verdict.kind, verdict.spared) for verdict in gate.claim(again)] == [left] * 2


def test_a_settlement_is_tried_again_after_each_pause_while_the_store_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[object] = []

    def look(_: str, __: object) -> None:
        told.append("asked")
        raise StoreUnavailable("away")

    monkeypatch.setattr(time, "sleep", told.append)
    one = Settlement(Claim(b"a", 1, 60_000, 864_000_000, 1), 7, "complete")
    with pytest.raises(StoreUnavailable):
        Gate(WatchedStore(look)).settle([one], (0.05, 0.2))
    assert told == ["asked", 0.05, "asked", 0.2, "asked"]


def planned(consumer: Consumer, *numbers: int) -> list[Run]:
    plans = consumer.runtime.plan([call(number) for number in numbers])
    return [Run(plan, plan.claim) for plan in plans if isinstance(plan, Plan)]


def test_a_grant_whose_caller_was_interrupted_before_the_answer_is_released() -> None:
    consumer = Consumer("memory:", rules=RULE, handler=lambda _: None)
    (run,) = planned(consumer, 0)
    consumer.runtime.gate.claim([run.claim])
    consumer.runtime.gate.salvage([run])
    assert statuses(consumer.process([call(0)])) == ["done"]


@pytest.mark.parametrize("leases", [(1_000, 3_600_000), (3_600_000, 1_000)])
def test_a_batch_is_due_for_renewal_by_its_shortest_lease(leases: tuple[int, int]) -> None:
    with Consumer("memory:", rules=RULE, handler=lambda _: None) as consumer:
        runs = planned(consumer, 0, 1)
        for run, lease in zip(runs, leases, strict=True):
            run.token, run.claim = 1, msgspec.structs.replace(run.claim, lease=lease)
        leased = LeasedRuns(runs)
        consumer.runtime.gate.renew(leased)
        now = runs[0].renewed
        assert leased.due == consumer.runtime.gate._due_again(leased, now) == now + 1 / 3
        consumer.runtime.gate.let_go(leased, [])
