"""The threads and the event loop of a consumer: how long they live, and what is cancelled there."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from eventonce import Consumer, Job, StoreError, envelope
from eventonce.core.plan import Plan, Run
from eventonce.runtime.on_asyncio import awaited
from eventonce.runtime.slots import Slots
from eventonce.stores.memory import MemoryStore
from eventonce.types import Outcome, Settlement
from tests.helpers import PATIENCE, WatchedStore, call, reject, ruled, statuses, until


def test_all_threads_of_a_consumer_are_daemon_threads() -> None:
    async def wait(_: Job) -> None:
        await asyncio.sleep(0)

    others = {*threading.enumerate()}
    with Consumer("memory:", rules=ruled(), handler=lambda _: None) as consumer:
        consumer.on("awaited")(wait)
        consumer.process([call(1, type="awaited")])
        asyncio.run(consumer.process_async([call(1), call(2), call(3, type="awaited")]))
        mine = {*threading.enumerate()} - others
        threads = {one.name: one.daemon for one in mine if "once" in one.name}
    assert {"eventonce-loop", "eventonce-slot", "eventonce-slots"} <= threads.keys()
    assert all(threads.values())


def test_async_handlers_of_all_calls_run_on_one_loop() -> None:
    """A client that a handler keeps belongs to the loop it was made on."""

    async def handler(_: Job) -> int:
        return id(asyncio.get_running_loop())

    with Consumer("memory:", rules=ruled(), handler=handler) as consumer:
        first, second = (consumer.process([call(number)])[0].result for number in (1, 2))
    assert first == second


def test_an_async_handler_is_cancelled_and_its_event_released_when_its_process_must_end() -> None:
    begun, ended, store = threading.Event(), threading.Event(), MemoryStore()

    async def handler(_: Job) -> None:
        begun.set()
        try:
            await asyncio.sleep(PATIENCE)
        finally:
            ended.set()

    with Consumer(store, rules=ruled(), handler=handler) as consumer, ThreadPoolExecutor() as pool:
        caller = pool.submit(consumer.process, [call(1)])
        assert begun.wait(PATIENCE)
        consumer.runtime.abandon()
        assert ended.is_set()
        with Consumer(store, rules=ruled(), handler=lambda _: None) as another:
            assert statuses(another.process([call(1)])) == ["done"]
        assert isinstance(caller.exception(PATIENCE), asyncio.CancelledError)


def test_the_event_of_a_plain_handler_is_released_when_its_process_must_end() -> None:
    begun, go, store = threading.Event(), threading.Event(), MemoryStore()

    def handler(_: Job) -> None:
        begun.set()
        assert go.wait(PATIENCE)

    with Consumer(store, rules=ruled(), handler=handler) as consumer, ThreadPoolExecutor() as pool:
        caller = pool.submit(consumer.process, [call(1)])
        assert begun.wait(PATIENCE)
        consumer.runtime.abandon()
        with Consumer(store, rules=ruled(), handler=lambda _: None) as another:
            assert statuses(another.process([call(1)])) == ["done"]
        go.set()
        assert statuses(caller.result(PATIENCE)) == ["fenced"]


def test_plain_and_async_handlers_of_one_batch_run_once_each() -> None:
    ran: list[str] = []

    async def awaited(job: Job) -> None:
        ran.append(job.event.id)

    async def on_a_loop() -> list[Any]:
        return consumer.process([call(3)])

    with Consumer(
        "memory:", rules=ruled(match="*"), handler=lambda job: ran.append(job.event.id)
    ) as consumer:
        consumer.on("awaited")(awaited)
        assert statuses(consumer.process([call(1), call(2, type="awaited")])) == ["done"] * 2
        # A plain handler may block a loop if its caller wants that; the call is not refused.
        assert statuses(asyncio.run(on_a_loop())) == ["done"]
    assert sorted(ran) == ["id-1", "id-2", "id-3"]


async def exits_in_a_task() -> None:
    async def task() -> None:
        sys.exit(1)

    await asyncio.gather(task())


async def stops_the_loop() -> None:
    asyncio.get_running_loop().stop()
    await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("ends_the_loop", "status"), [(exits_in_a_task, "failed"), (stops_the_loop, "done")]
)
def test_an_async_handler_cannot_end_the_event_loop_of_other_handlers(
    ends_the_loop: Callable[[], Any], status: str
) -> None:
    ended, outcomes = asyncio.Event(), list[Outcome]()

    async def handler(job: Job) -> None:
        if job.event.id == "id-2":
            await ended.wait()
            return
        try:
            await ends_the_loop()
        finally:
            ended.set()

    with Consumer("memory:", rules=ruled(), handler=handler) as consumer:

        def process() -> None:
            outcomes.extend(consumer.process([call(2), call(1)]))

        caller = threading.Thread(target=process, daemon=True)
        caller.start()
        caller.join(PATIENCE)
        assert statuses(outcomes) == ["done", status]


@pytest.mark.parametrize("within", [0.0, PATIENCE])
def test_a_cancellation_starts_no_loop(within: float, monkeypatch: pytest.MonkeyPatch) -> None:
    def never() -> None:
        raise AssertionError("a loop was made")

    with Consumer("memory:", rules=ruled(), handler=lambda _: None) as consumer:
        with monkeypatch.context() as patched:
            patched.setattr(asyncio, "new_event_loop", never)
            consumer.runtime.awaiting.cancel(within)
        assert statuses(consumer.process([call(1)])) == ["done"]


async def never(_: Job) -> None:
    raise AssertionError("it was started")


def test_an_async_handler_whose_event_another_run_took_over_is_not_started() -> None:
    with Consumer("memory:", rules=ruled(), handler=never) as consumer:
        (plan,) = consumer.runtime.plan([call(1)])
        assert isinstance(plan, Plan)
        run = Run(plan, plan.claim)
        run.lose()
        asyncio.run(awaited(run, lambda *_: None))
    assert (run.job, run.error) == (None, None)


class Coded(Exception):
    """An exception that cannot be made again from its text."""

    def __init__(self, code: int, said: str) -> None:
        super().__init__(f"{code}: {said}")


@pytest.mark.parametrize("defect", [TypeError("a defect"), Coded(7, "a defect"), SystemExit(7)])
def test_a_grant_is_released_after_an_unexpected_exception(
    defect: BaseException,
) -> None:
    def broken(verb: str, _: object) -> None:
        if verb == "put_letters":
            raise defect

    store = WatchedStore(broken)
    with Consumer(store, rules=ruled(), handler=reject) as consumer:
        with pytest.raises(type(defect), match=str(defect)):
            asyncio.run(consumer.process_async([call(1)]))
        assert consumer.runtime.gate.held() == []
    with Consumer(store, rules=ruled(), handler=lambda _: None) as another:
        assert statuses(another.process([call(1)])) == ["done"]


SHARED_THREADS = """
import asyncio, threading
from eventonce import Consumer
from tests.helpers import call, ruled, until

def threads():
    return {one for one in threading.enumerate() if one.name != "eventonce-slot"}

without = threads()
with Consumer("memory:", rules=ruled(), handler=lambda _: None) as consumer:
    asyncio.run(consumer.process_async([call(1)]))
    before = threads()
    assert before > without
    for number in (2, 3):
        asyncio.run(consumer.process_async([call(number)]))
    assert threads() == before
until(lambda: threads() == without)
"""


def test_batches_on_a_loop_share_their_threads() -> None:
    """In a process of its own, because threads of other tests begin and end in this process."""
    here = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", SHARED_THREADS], check=True, cwd=here)


def test_items_that_are_cleared_from_the_slots_do_not_run() -> None:
    begun, go, ran = threading.Event(), threading.Event(), list[str]()

    def work(item: str) -> None:
        ran.append(item)
        begun.set()
        assert go.wait(PATIENCE)

    slots = Slots[str](1, work)
    slots.put(["first", "second", "third"])
    assert begun.wait(PATIENCE)
    assert slots.clear() == ["second", "third"]
    go.set()
    slots.close()
    assert ran == ["first"]


def test_the_resources_of_a_consumer_are_closed_in_reverse_order() -> None:
    closed: list[str] = []
    with Consumer("memory:", rules=ruled()) as consumer:
        for name in ("client", "session"):
            consumer.runtime.on_close(partial(closed.append, name))
    assert closed == ["session", "client"]


def test_an_invalid_event_does_not_affect_a_batch_with_async_handlers() -> None:
    async def handler(_: Job) -> None:
        await asyncio.sleep(0)

    with Consumer("memory:", rules=ruled(), handler=handler) as consumer:
        assert statuses(consumer.process([b"no event", call(1)])) == ["invalid", "done"]


@pytest.mark.parametrize("refuses", [True, False], ids=["refused", "of one key"])
def test_batches_that_share_a_call_of_the_store_do_not_affect_each_other(*, refuses: bool) -> None:
    under_way, go, calls = threading.Event(), threading.Event(), list[int]()

    def look(verb: str, asked: Sequence[Any]) -> None:
        if verb == "claim":
            calls.append(len(asked))
            if len(calls) == 1:
                under_way.set()
                assert go.wait(PATIENCE)
            if refuses and bad in [claim.key for claim in asked]:
                raise StoreError("too large")

    async def story(consumer: Consumer) -> list[Any]:
        first = asyncio.ensure_future(consumer.process_async([call(0)]))
        assert await asyncio.to_thread(under_way.wait, PATIENCE)
        others = [consumer.process_async([call(number)]) for number in (1, 2 if refuses else 1)]
        gathered = asyncio.gather(*others, return_exceptions=True)
        await asyncio.sleep(0)
        go.set()
        await first
        return list(await gathered)

    with Consumer(WatchedStore(look), rules=ruled(), handler=lambda _: None) as consumer:
        bad = consumer.rules.plan(envelope.read(call(2)), 1)[1].key
        good, other = asyncio.run(story(consumer))
    assert statuses(good) == ["done"]
    if refuses:
        assert isinstance(other, StoreError)
        assert calls == [1, 2, 1, 1]
    else:
        assert statuses(other) == ["duplicate"]
        assert max(calls) == 1


@pytest.mark.parametrize("begun", [True, False])
def test_an_event_is_released_if_its_loop_is_closed_before_its_handler_ends(*, begun: bool) -> None:
    asked, go, freed = threading.Event(), threading.Event(), threading.Event()

    def look(verb: str, items: Sequence[Any]) -> None:
        if verb == "claim":
            asked.set()
            assert go.wait(PATIENCE)
        elif items[0].action != "extend":
            freed.set()

    async def handler(_: Job) -> None:
        started.set()
        await asyncio.sleep(PATIENCE)

    async def story() -> None:
        if begun:
            go.set()
            await started.wait()
        else:
            await asyncio.to_thread(asked.wait, PATIENCE)

    store, started, loop = WatchedStore(look), asyncio.Event(), asyncio.new_event_loop()
    with Consumer(store, rules=ruled(lease=0.3), handler=handler) as consumer:
        task = loop.create_task(consumer.process_async([call(1)]))
        loop.run_until_complete(story())
        for left in asyncio.all_tasks(loop):
            # These tasks never end, and asyncio would report that during a later test.
            left._log_destroy_pending = False  # type: ignore[attr-defined]
        loop.close()
        go.set()
        assert freed.wait(PATIENCE)
        with Consumer(store, rules=ruled(), handler=lambda _: None) as another:
            until(lambda: statuses(another.process([call(1)])) == ["done"])
    assert not task.done()


def test_an_event_whose_loop_was_stopped_and_not_closed_is_free_when_its_lease_ends() -> None:
    async def handler(_: Job) -> None:
        started.set()
        await asyncio.sleep(PATIENCE)

    def fails(_: Job) -> None:
        raise ValueError

    store, started, loop = MemoryStore(), asyncio.Event(), asyncio.new_event_loop()
    with Consumer(store, rules=ruled(match="*", lease=0.3), handler=handler) as consumer:
        consumer.on("plain")(fails)
        # The failed event waits for the other of its batch.
        events = [call(1), call(2, type="plain")]
        task = loop.create_task(consumer.process_async(events))
        loop.run_until_complete(started.wait())

        def is_free(event: bytes) -> bool:
            plan = consumer.runtime.plan([event])[0]
            assert isinstance(plan, Plan)
            return store.claim([plan.claim])[0].kind == "run"

        for event in events:
            until(partial(is_free, event))
        # The task never ends, and asyncio would report that during a later test.
        for left in asyncio.all_tasks(loop):
            left._log_destroy_pending = False  # type: ignore[attr-defined]
        loop.close()
    assert not task.done()


@pytest.mark.parametrize("taken_over", [True, False])
def test_a_handler_whose_loop_was_stopped_before_it_began_does_not_begin_when_the_loop_runs_again(
    taken_over: bool,
) -> None:
    async def handler(job: Job) -> None:
        ran.append(job.event.id)

    claimed, ran = threading.Event(), list[str]()
    store, loop = WatchedStore(lambda *_: claimed.set()), asyncio.new_event_loop()
    with Consumer(store, rules=ruled(lease=0.3), handler=handler) as consumer:
        task = loop.create_task(consumer.process_async([call(1)]))
        # The loop stops before it learns of the claim, which a thread makes.
        loop.run_until_complete(asyncio.sleep(0))
        assert claimed.wait(PATIENCE)
        until(lambda: any(run.stalled for run in consumer.runtime.gate.held()))
        if taken_over:
            plan = consumer.runtime.plan([call(1)])[0]
            assert isinstance(plan, Plan)
            until(lambda: store.claim([plan.claim])[0].kind == "run")
        outcome = loop.run_until_complete(task)[0]
        assert outcome.status == ("fenced" if taken_over else "failed")
        if not taken_over:
            assert "its event loop was stopped" in outcome.reason
            # Freed, and not only when the lease ends.
            assert statuses(consumer.process([call(1)])) == ["done"]
        assert ran == ([] if taken_over else ["id-1"])
        loop.close()


def test_a_run_that_has_finished_on_a_stopped_loop_is_settled_before_its_lease_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The timer visits the run after a fifth of a second.
    monkeypatch.setattr("eventonce.runtime.gate.RENEWALS", 300)

    async def handler(job: Job) -> None:
        ran.append(job.event.id)
        # Before the loop learns that the task of the handler is done.
        asyncio.get_running_loop().stop()

    store, loop, ran = MemoryStore(), asyncio.new_event_loop(), list[str]()
    with Consumer(store, rules=ruled(lease=60), handler=handler) as consumer:
        task = loop.create_task(consumer.process_async([call(1)]))
        loop.run_forever()
        plan = consumer.runtime.plan([call(1)])[0]
        assert isinstance(plan, Plan)
        until(lambda: store.claim([plan.claim])[0].kind != "busy")
        assert store.claim([plan.claim])[0].kind == "duplicate"
        assert statuses(loop.run_until_complete(task)) == ["done"]
        loop.close()
    assert ran == ["id-1"]


def test_the_lease_of_a_finished_run_is_renewed_while_its_loop_is_stopped() -> None:
    keeping, go, told = threading.Event(), threading.Event(), list[str]()

    def look(verb: str, some: Sequence[Any]) -> None:
        if verb == "put_letters":
            keeping.set()
            assert go.wait(PATIENCE)
        elif verb == "settle":
            told.append(some[0].action)

    async def handler(job: Job) -> None:
        reject(job)

    loop = asyncio.new_event_loop()
    with Consumer(WatchedStore(look), rules=ruled(lease=0.3), handler=handler) as consumer:
        task = loop.create_task(consumer.process_async([call(1)]))
        loop.run_until_complete(asyncio.to_thread(keeping.wait, PATIENCE))
        told.clear()
        until(lambda: told.count("extend") > 1)
        go.set()
        assert statuses(loop.run_until_complete(task)) == ["dead"]
        loop.close()


def test_the_lease_of_a_plain_handler_is_renewed_while_the_loop_of_its_caller_is_stopped() -> None:
    begun, go, told = threading.Event(), threading.Event(), list[str]()

    def look(verb: str, some: Sequence[Any]) -> None:
        if verb == "settle":
            told.append(some[0].action)

    async def awaited(_: Job) -> None:
        """For the other events of this consumer."""

    def plain(_: Job) -> None:
        begun.set()
        assert go.wait(PATIENCE)

    loop = asyncio.new_event_loop()
    with Consumer(WatchedStore(look), rules=ruled(lease=0.3), handler=awaited) as consumer:
        consumer.on("call")(plain)
        task = loop.create_task(consumer.process_async([call(1)]))
        loop.run_until_complete(asyncio.to_thread(begun.wait, PATIENCE))
        told.clear()
        until(lambda: told.count("extend") > 1)
        go.set()
        assert statuses(loop.run_until_complete(task)) == ["done"]
        loop.close()


class Uncommitted(MemoryStore):
    """A store whose transactions end with an error that is not a store error."""

    connection = None

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        yield self
        raise ArithmeticError("not committed")

    def settle(self, settlements: Any, now: int | None = None) -> Any:
        within = isinstance(settlements, Settlement)
        return "kept" if within else super().settle(settlements, now)

    def failed(self, _: BaseException) -> bool:
        return False

    def async_connection(self, _: object) -> tuple[None, Callable[[], Any]]:
        return None, partial(asyncio.sleep, 0)


async def writes_on_loop(job: Job) -> None:
    await job.async_connection()


@pytest.mark.parametrize("handler", [lambda job: job.connection and None, writes_on_loop])
def test_an_event_whose_commit_fails_for_any_reason_has_failed(handler: Any) -> None:
    store = Uncommitted()
    with Consumer(store, rules=ruled(), handler=handler) as consumer:
        (outcome,) = asyncio.run(consumer.process_async([call(1)]))
    assert (outcome.status, outcome.reason) == ("failed", "ArithmeticError: not committed")
    with Consumer(store, rules=ruled(), handler=lambda _: None) as another:
        assert statuses(another.process([call(1)])) == ["done"]
