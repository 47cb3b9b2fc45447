"""Interruptions: an interrupted block is not done, a batch waits for its store call under way, and
no batch goes on after its caller was interrupted."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from eventonce import Consumer, Job, Reject, Rule, StoreUnavailable, forks
from eventonce.runtime.loop_thread import LoopThread, _Call
from eventonce.stores.memory import MemoryStore
from eventonce.types import Claim, Verdict
from tests.helpers import PATIENCE, WatchedStore, call, statuses
from tests.unit.interrupts import Interrupt, interrupted_everywhere

RULE = Rule(name="call", match="call", key=["detail.call"])


ENDS = [KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError, Interrupt]


@pytest.mark.parametrize("end", ENDS)
def test_a_block_that_was_interrupted_is_not_done(end: type[BaseException]) -> None:
    with Consumer("memory:", rules=RULE) as consumer:
        with pytest.raises(end), consumer.once(call(1)) as job:
            raise end
        assert job.outcome is not None
        assert (job.outcome.status, job.outcome.ack) == ("failed", False)
        with consumer.once(call(1)) as job:
            assert job.run


class InterruptedAfterTheGrant(MemoryStore):
    """A store that is interrupted after a grant and before the answer, as during a commit."""

    def __init__(self) -> None:
        super().__init__()
        self.interrupts = 1

    def claim(self, claims: Sequence[Claim], now: int | None = None) -> list[Verdict]:
        verdicts = super().claim(claims, now)
        if self.interrupts:
            self.interrupts -= 1
            raise Interrupt
        return verdicts


def _in_a_block(consumer: Consumer) -> None:
    with consumer.once(call(1)):
        pass


@pytest.mark.parametrize(
    "way", [lambda consumer: consumer.process([call(1), call(2)]), _in_a_block]
)
def test_the_grants_of_an_interrupted_caller_are_released(
    way: Callable[[Consumer], object],
) -> None:
    with Consumer(InterruptedAfterTheGrant(), rules=RULE, handler=lambda _: None) as consumer:
        with pytest.raises(Interrupt):
            way(consumer)
        assert statuses(consumer.process([call(1), call(2)])) == ["done"] * 2
        assert consumer.runtime.gate._running == {}


class Slow(WatchedStore):
    """A store whose first call of one kind waits until `go` is set."""

    def __init__(self, slow: str) -> None:
        super().__init__(self._taken)
        self._slow = [slow]
        self.under_way, self.go, self.ended = (threading.Event() for _ in range(3))

    def _taken(self, call: str, _: object) -> None:
        if call in self._slow:
            self._slow.clear()
            self.under_way.set()
            assert self.go.wait(PATIENCE)
            self.ended.set()


@pytest.mark.parametrize("slow", ["claim", "settle", "put_letters"])
def test_a_batch_that_is_cancelled_waits_for_the_store_call_under_way(slow: str) -> None:
    store = Slow(slow)

    def never(_: Job) -> None:
        raise Reject("no")

    async def story() -> None:
        with Consumer(store, rules=RULE, handler=never) as consumer:
            batch = asyncio.ensure_future(consumer.process_async([call(1)]))
            assert await asyncio.to_thread(store.under_way.wait, PATIENCE)
            batch.cancel()
            # Turns of the loop: in the first the cancellation reaches the batch.
            for _ in range(10):
                await asyncio.sleep(0)
            assert not batch.done()
            store.go.set()
            with pytest.raises(asyncio.CancelledError):
                await batch
            assert store.ended.is_set()

    try:
        asyncio.run(story())
    finally:
        store.go.set()


def rejects_the_second(job: Job) -> None:
    if job.event.id == "id-2":
        raise Reject("no")


async def rejects_the_second_later(job: Job) -> None:
    rejects_the_second(job)


def afterwards(store: MemoryStore) -> list[str]:
    """The outcomes of both events when they are delivered again."""
    with Consumer(store, rules=RULE, handler=lambda _: None) as again:
        return [outcome.status for outcome in again.process([call(1), call(2)])]


def away(verb: str, _: object) -> None:
    """A store that answers claims, and cannot be reached for settlements."""
    if verb == "settle":
        raise StoreUnavailable("away")


@pytest.mark.parametrize(
    ("store", "left"),
    [(MemoryStore(), ["duplicate", "done", "done"]), (WatchedStore(away), ["busy"] * 3)],
    ids=["that answers", "that is away"],
)
def test_an_interruption_settles_and_releases_its_runs_if_the_store_answers(
    store: MemoryStore, left: list[str]
) -> None:
    calls = [call(1), call(2), call(3)]

    def handler(job: Job) -> None:
        if job.event.id == "id-2":
            raise Interrupt

    with Consumer(store, rules=RULE, handler=handler) as consumer, pytest.raises(Interrupt):
        consumer.process(calls)
    with Consumer(store, rules=RULE, handler=lambda _: None) as again:
        again.runtime.pauses = ()
        assert statuses(again.process(calls)) == left


def test_a_completed_run_with_a_copy_in_its_batch_is_kept_after_an_interruption() -> None:
    store = MemoryStore()

    def handler(job: Job) -> None:
        if job.event.id == "id-2":
            raise Interrupt

    with Consumer(store, rules=RULE, handler=handler) as consumer, pytest.raises(Interrupt):
        consumer.process([call(1), call(1), call(2)])
    assert afterwards(store) == ["duplicate", "done"]


def test_the_child_of_a_fork_that_is_interrupted_releases_no_run_of_its_parent() -> None:
    store = MemoryStore()

    def handler(_: Job) -> None:
        forks.begin_anew()
        raise Interrupt

    with Consumer(store, rules=RULE, handler=handler) as child, pytest.raises(Interrupt):
        child.process([call(1)])
    with Consumer(store, rules=RULE, handler=lambda _: None) as rival:
        assert statuses(rival.process([call(1)])) == ["busy"]


@pytest.mark.parametrize(
    ("slow", "left"),
    [
        ("claim", ["done", "done"]),
        ("put_letters", ["duplicate", "dead"]),
        ("settle", ["duplicate", "dead"]),
    ],
)
@pytest.mark.parametrize("handler", [rejects_the_second, rejects_the_second_later])
def test_a_batch_cancelled_in_a_store_call_keeps_completed_runs_and_releases_other_runs(
    slow: str, left: list[str], handler: Callable[[Job], Any]
) -> None:
    store = Slow(slow)

    async def story() -> None:
        with Consumer(store, rules=RULE, handler=handler) as consumer:
            batch = asyncio.ensure_future(consumer.process_async([call(1), call(2)]))
            assert await asyncio.to_thread(store.under_way.wait, PATIENCE)
            batch.cancel()
            # One turn of the loop, in which the cancellation reaches the batch.
            await asyncio.sleep(0)
            store.go.set()
            with pytest.raises(asyncio.CancelledError):
                await batch

    asyncio.run(story())
    assert afterwards(store) == left


@pytest.mark.parametrize("interrupted", ["put_letters", "settle"])
def test_a_batch_interrupted_in_a_store_call_keeps_completed_runs(
    interrupted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore()
    once = [Interrupt()]
    asked = getattr(store, interrupted)

    def interrupting(*given: Any) -> Any:
        if once:
            raise once.pop()
        return asked(*given)

    monkeypatch.setattr(store, interrupted, interrupting)
    consumer = Consumer(store, rules=RULE, handler=rejects_the_second)
    with pytest.raises(Interrupt):
        consumer.process([call(1), call(2)])
    assert afterwards(store) == ["duplicate", "done"]


@pytest.fixture
def interrupt() -> Iterator[Callable[[], None]]:
    """A function that sends a signal to the main thread, which raises `Interrupt` there."""

    def raising(*_: object) -> None:
        raise Interrupt

    before = signal.signal(signal.SIGUSR1, raising)
    yield lambda: signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, before)


def test_a_batch_whose_caller_was_interrupted_is_ended_and_released(
    interrupt: Callable[[], None],
) -> None:
    ended: list[str] = []

    async def handler(job: Job) -> None:
        interrupt()
        try:
            await asyncio.sleep(PATIENCE)
        finally:
            ended.append(job.event.id)

    store = MemoryStore()
    with Consumer(store, rules=RULE, handler=handler) as consumer:
        with pytest.raises(Interrupt):
            consumer.process([call(1)])
        assert ended == ["id-1"]
        assert consumer.runtime.gate.held() == []
    again = Consumer(store, rules=RULE, handler=lambda _: None)
    assert [outcome.status for outcome in again.process([call(1)])] == ["done"]


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_caller_interrupted_at_any_instant_leaves_nothing_running() -> None:
    running: set[object] = set()

    async def work() -> None:
        me = object()
        running.add(me)
        try:
            for _ in range(3):
                await asyncio.sleep(0)
        finally:
            running.discard(me)

    async def left() -> int:
        return len(asyncio.all_tasks()) - 1

    loop_thread = LoopThread()
    loop_thread.run(work())
    interruptions = 0
    for came in interrupted_everywhere(lambda: loop_thread.run(work())):
        interruptions += isinstance(came, Interrupt)
        assert (loop_thread.run(left()), running) == (0, set())
    loop_thread.close()
    assert interruptions > 3


def test_a_call_that_begins_while_its_loop_is_closed_is_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop_thread, begin = LoopThread(), _Call.begin
    closer = threading.Thread(target=loop_thread.close)

    def begins(mine: _Call[None]) -> None:
        closer.start()
        # Until the closer has closed the loop, or waits for this call to end.
        closer.join(0.1)
        begin(mine)

    loop_thread.loop()
    monkeypatch.setattr(_Call, "begin", begins)
    with pytest.raises(asyncio.CancelledError):
        loop_thread.run(asyncio.sleep(PATIENCE))
    closer.join(PATIENCE)


def test_a_loop_started_after_its_consumer_was_closed_is_closed_by_the_next_close() -> None:
    async def handler(_: Job) -> None:
        pass

    def loops() -> set[threading.Thread]:
        return {one for one in threading.enumerate() if one.name == "eventonce-loop"} - others

    others = {*threading.enumerate()}
    with Consumer("memory:", rules=RULE, handler=handler) as consumer:
        # As in a thread that holds `awaiting` while another thread closes the consumer.
        awaiting = consumer.runtime.awaiting
        consumer.close()
        awaiting.loop_thread.run(asyncio.sleep(0))
        assert len(loops()) == 1
    assert not loops()
