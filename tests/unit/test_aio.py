"""Plain handlers on an event loop: quick handlers share a thread, slow handlers have one each."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from msgspec import structs

from eventonce import Consumer, Job, Rule
from eventonce.runtime.stages import NOT_BEGUN
from eventonce.stores.memory import MemoryStore
from eventonce.types import Outcome
from tests.helpers import PATIENCE, call, statuses

RULE = Rule(name="call", match="call", key=["detail.call"])


def processed(handler: Callable[[Job], Any], count: int, **named: Any) -> list[Outcome]:
    """The outcomes of `count` events in one batch."""
    with Consumer("memory:", rules=RULE, handler=handler, **named) as consumer:
        return asyncio.run(consumer.process_async([call(number) for number in range(count)]))


def test_quick_handlers_of_a_batch_share_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eventonce.runtime.slots.ALONE_FOR", PATIENCE)
    threads: set[str] = set()
    outcomes = processed(lambda _: threads.add(threading.current_thread().name), 100)
    assert statuses(outcomes) == ["done"] * 100
    assert len(threads) == 1


def test_slow_handlers_of_a_batch_run_side_by_side() -> None:
    together = threading.Barrier(20)
    assert statuses(processed(lambda _: together.wait(PATIENCE) and None, 20)) == ["done"] * 20


def test_the_number_of_handlers_side_by_side_is_at_most_the_number_of_threads() -> None:
    together = threading.Barrier(3)
    lock, running, most = threading.Lock(), 0, 0

    def handler(_: Job) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        together.wait(PATIENCE)
        with lock:
            running -= 1

    assert statuses(processed(handler, 9, threads=3)) == ["done"] * 9
    assert most == 3


def test_a_finished_event_is_settled_while_its_thread_runs_the_next_event(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("eventonce.runtime.gate.SETTLE_INTERVAL", 0.05)
    settled = threading.Event()

    class SignallingStore(MemoryStore):
        def settle(self, settlements: Any, now: int | None = None) -> Any:
            kept = super().settle(settlements, now)
            if any(settlement.action == "complete" for settlement in settlements):
                settled.set()
            return kept

    def handler(job: Job) -> bool:
        return job.event.id == "id-0" or settled.wait(PATIENCE)

    with Consumer(SignallingStore(), rules=RULE, handler=handler, threads=1) as consumer:
        outcomes = asyncio.run(consumer.process_async([call(0), call(1)]))
    assert [outcome.result for outcome in outcomes] == [True, True]


def test_a_context_variable_set_by_one_handler_is_not_visible_to_the_next_handler(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("eventonce.runtime.slots.ALONE_FOR", PATIENCE)
    tenant = contextvars.ContextVar("tenant", default="nobody")
    seen: list[str] = []

    def handler(job: Job) -> None:
        seen.append(tenant.get())
        tenant.set(job.event.id)

    with Consumer("memory:", rules=RULE, handler=handler) as consumer:
        tenant.set("the caller")
        asyncio.run(consumer.process_async([call(0), call(1)]))
    assert seen == ["the caller", "the caller"]


def test_a_cancelled_batch_starts_no_further_event_and_releases_the_waiting_events() -> None:
    ran: list[str] = []
    going, finish = threading.Event(), threading.Event()

    def handler(job: Job) -> None:
        ran.append(job.event.id)
        going.set()
        finish.wait(PATIENCE)

    store = MemoryStore()

    async def story() -> None:
        with Consumer(store, rules=RULE, handler=handler, threads=1) as consumer:
            batch = asyncio.ensure_future(consumer.process_async([call(0), call(1), call(2)]))
            await asyncio.to_thread(going.wait, PATIENCE)
            batch.cancel()
            # One turn of the loop, in which the cancellation reaches the batch.
            await asyncio.sleep(0)
            batch.cancel()
            await asyncio.sleep(0)
            assert not batch.done(), "what runs in a thread is waited for, however often"
            finish.set()
            with pytest.raises(asyncio.CancelledError):
                await batch

    asyncio.run(story())
    assert ran == ["id-0"]
    with Consumer(store, rules=RULE, handler=lambda _: None) as after:
        assert statuses(after.process([call(0), call(1), call(2)])) == ["duplicate", "done", "done"]


def test_a_cancelled_run_of_an_async_handler_does_not_count_as_an_attempt() -> None:
    ran: list[int] = []

    async def handler(job: Job) -> None:
        ran.append(job.attempt)
        if job.attempt == 1:
            begun.set()
            await asyncio.sleep(10 * PATIENCE)

    async def story(consumer: Consumer) -> list[str]:
        batch = asyncio.ensure_future(consumer.process_async([call(0)]))
        await begun.wait()
        batch.cancel()
        with pytest.raises(asyncio.CancelledError):
            await batch
        return statuses(await consumer.process_async([call(0)]))

    begun, rule = asyncio.Event(), structs.replace(RULE, attempts=1)
    with Consumer("memory:", rules=rule, handler=handler) as consumer:
        assert asyncio.run(story(consumer)) == ["done"]
    assert ran == [1, 2]


class Ended(BaseException):
    """An exception that a library may raise to end its thread."""


ENDS = [SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError, Ended]


@pytest.mark.parametrize("end", ENDS)
def test_any_exception_of_a_plain_handler_in_its_thread_fails_only_its_own_event(
    end: type[BaseException],
) -> None:
    def handler(job: Job) -> None:
        if job.event.id == "id-0":
            raise end

    store = MemoryStore()
    with Consumer(store, rules=RULE, handler=handler, threads=1) as consumer:
        outcomes = asyncio.run(consumer.process_async([call(0), call(1)]))
    assert statuses(outcomes) == ["failed", "done"]
    assert isinstance(outcomes[0].error, Exception)
    with Consumer(store, rules=RULE, handler=lambda _: None) as after:
        assert statuses(after.process([call(0), call(1)])) == ["done", "duplicate"]


@pytest.mark.parametrize("end", ENDS)
def test_any_exception_of_an_async_handler_fails_only_its_own_event(
    end: type[BaseException],
) -> None:
    async def handler(job: Job) -> None:
        await asyncio.sleep(0)
        if job.event.id == "id-0":
            raise end

    assert statuses(processed(handler, 2)) == ["failed", "done"]
    with Consumer("memory:", rules=RULE, handler=handler) as consumer:
        assert statuses(consumer.process([call(0), call(1)])) == ["failed", "done"]


def on_a_loop(consumer: Consumer, events: list[bytes]) -> list[Outcome]:
    return asyncio.run(consumer.process_async(events))


@pytest.mark.parametrize("process", [Consumer.process, on_a_loop])
def test_an_async_handler_that_cancels_its_own_task_ends_no_other_run(process: Any) -> None:
    async def handler(job: Job) -> None:
        if job.event.id == "id-0":
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(10 * PATIENCE)
        # More turns of the loop than the end of the first task takes.
        for _ in range(10):
            await asyncio.sleep(0)
        ended.append(job.event.id)

    ended: list[str] = []
    with Consumer("memory:", rules=RULE, handler=handler) as consumer:
        assert statuses(process(consumer, [call(0), call(1)])) == ["failed", "done"]
    assert ended == ["id-1"]


def test_an_event_whose_task_was_cancelled_before_its_handler_began_is_not_done() -> None:
    async def handler(job: Job) -> None:
        ran.append(job.event.id)
        if ran == ["id-0"]:
            newest = max(asyncio.all_tasks(), key=lambda task: int(task.get_name().split("-")[1]))
            newest.cancel()
            await asyncio.sleep(0)

    ran: list[str] = []
    with Consumer("memory:", rules=RULE, handler=handler) as consumer:
        outcomes = consumer.process([call(0), call(1)])
        assert statuses(outcomes) == ["done", "failed"]
        assert outcomes[1].reason == NOT_BEGUN
        assert statuses(consumer.process([call(0), call(1)])) == ["duplicate", "done"]
    assert ran == ["id-0", "id-1"]


@pytest.mark.parametrize("end", ENDS)
def test_process_returns_although_a_plain_handler_ends_its_thread_beside_an_async_handler(
    end: type[BaseException],
) -> None:
    async def waits(_: Job) -> None:
        await asyncio.sleep(0)

    with Consumer("memory:", rules=Rule(name="any", key=["detail.call"])) as consumer:
        consumer.on("async")(waits)

        @consumer.on()
        def ends(_: Job) -> None:
            raise end

        # In the main thread the exception would end the process.
        with ThreadPoolExecutor(1) as another:
            events = [call(0), call(1, type="async")]
            outcomes = another.submit(consumer.process, events).result(PATIENCE)
    assert statuses(outcomes) == ["failed", "done"]
