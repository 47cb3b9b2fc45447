"""The stages of many batches: no batch waits for ever, and each is returned once."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import Context, copy_context
from queue import SimpleQueue
from random import Random
from types import SimpleNamespace
from typing import Any
from weakref import ref

import pytest
from msgspec.structs import replace

from eventonce import Consumer, Job, Rule
from eventonce.core.outcomes import finish
from eventonce.core.plan import Run
from eventonce.core.reasons import NOT_ALONE
from eventonce.errors import StoreUnavailable
from eventonce.runtime.on_asyncio import LoopCalls, LoopSubmitter, _Starter, _wake
from eventonce.runtime.running_batch import CopyWait, RunningBatch
from eventonce.runtime.shared_process import THIS_PROCESS, InsideHandler
from eventonce.runtime.slots import Slots
from eventonce.runtime.stages import NOT_BEGUN, StagedBatch, Stages, _Stage
from eventonce.stores.memory import MemoryStore
from eventonce.testing.harness import ManualClock
from eventonce.types import Verdict
from tests.helpers import PATIENCE, WatchedStore, call, ruled, statuses, until
from tests.unit.interrupts import Interrupt, interrupted_everywhere

RULE = Rule(name="call", match="call", key=["detail.call"], attempts=2)


class Ended:
    """Batches of a consumer, and a queue of the finished batches."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._told: SimpleQueue[StagedBatch] = SimpleQueue()

    def batch(self, *numbers: int) -> StagedBatch:
        return self.batch_of(*[call(number) for number in numbers])

    def batch_of(self, *events: bytes) -> StagedBatch:
        runtime = self._consumer.runtime
        planned = runtime.plan(list(events))
        running = RunningBatch(runtime, planned, CopyWait(10 * PATIENCE))
        return StagedBatch(running, self._told.put, context=copy_context())

    def next(self) -> StagedBatch:
        return self._told.get(timeout=PATIENCE)

    def none_left(self) -> bool:
        return self._told.empty()


@contextmanager
def staged(consumer: Consumer, threads: int = 1) -> Iterator[Stages]:
    stages = Stages(consumer.runtime, threads)
    yield stages
    stages.close()


def test_handlers_that_hold_all_threads_may_wait_for_other_events() -> None:
    """Each handler waits for the next event, with more handlers than threads."""

    def run(number: int) -> None:
        asyncio.run(consumer.process_async([call(number)]))

    def handler(job: Job) -> str:
        number = int(job.event.id.removeprefix("id-"))
        if number == 6:
            return "the last"
        inside, args = copy_context().run, (run, number + 1)
        other = threading.Thread(target=inside, args=args, daemon=True)
        other.start()
        other.join(PATIENCE)
        return "waited in vain" if other.is_alive() else "waited"

    with Consumer("memory:", rules=RULE, handler=handler, threads=1) as consumer:
        run(0)
        results = [one.result for one in consumer.process([call(n) for n in range(7)])]
    assert results == [*["waited"] * 6, "the last"]


def test_cancelled_stages_release_events_that_have_not_begun_while_a_handler_runs() -> None:
    begun, go, ran = threading.Event(), threading.Event(), list[str]()

    def handler(job: Job) -> None:
        ran.append(job.event.id)
        begun.set()
        assert go.wait(PATIENCE)

    with Consumer("memory:", rules=RULE, handler=handler) as consumer, staged(consumer) as stages:
        ended = Ended(consumer)
        stages.submit([ended.batch(0)])
        assert begun.wait(PATIENCE)
        assert stages._slots._running == 1
        # A copy of the running event, together with an event that waits for a thread.
        stages.submit([ended.batch(0, 1), ended.batch(2)])
        until(lambda: len(stages._slots._waiting) == 2)
        stages.cancel()
        freed = [ended.next().result(), ended.next().result()]
        assert sorted(map(statuses, freed)) == [["busy", "failed"], ["failed"]]
        stages.submit([ended.batch(3)])
        (late,) = ended.next().result()
        assert (late.status, late.reason) == ("failed", NOT_BEGUN)
        go.set()
        assert statuses(ended.next().result()) == ["done"]
        assert statuses(consumer.process([call(n) for n in range(1, 4)])) == ["done"] * 3
    assert ran == [f"id-{number}" for number in range(4)]


def test_cancelled_stages_start_no_async_handler() -> None:
    claiming, go = threading.Event(), threading.Event()

    def look(verb: str, _: object) -> None:
        if verb == "claim":
            claiming.set()
            assert go.wait(PATIENCE)

    async def handler(_: Job) -> None:
        raise AssertionError("it was started")

    store = WatchedStore(look)
    with Consumer(store, rules=RULE, handler=handler) as consumer, staged(consumer) as stages:
        ended = Ended(consumer)
        consumer.on("plain")(lambda _: None)
        batch = ended.batch_of(call(0), call(1), call(2, type="plain"))
        batch.starter = consumer.runtime.awaiting.starter()
        stages.submit([batch])
        assert claiming.wait(PATIENCE)
        stages.cancel()
        go.set()
        outcomes = ended.next().result()
        assert [one.reason for one in outcomes] == [NOT_BEGUN] * 3
        assert ended.none_left()
        verdicts = consumer.runtime.gate.claim([run.claim for run in batch.running.runs])
        assert [(one.kind, one.spared) for one in verdicts] == [("run", 1)] * 3


@pytest.mark.parametrize("many", [1, 2 * sys.getrecursionlimit()])
def test_events_that_wait_to_be_alone_when_stages_are_cancelled_run_alone_later(many: int) -> None:
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    with (
        Consumer(store, rules=RULE, handler=lambda _: None) as consumer,
        staged(consumer) as stages,
    ):
        ended = Ended(consumer)
        batch = ended.batch(*range(many))
        claims = [run.claim for run in batch.running.runs]

        def claimed(nonce: int) -> list[Verdict]:
            return store.claim([replace(claim, nonce=nonce) for claim in claims])

        # Their process ended.
        claimed(1)
        clock.advance(claims[0].lease / 1000)
        assert THIS_PROCESS.enter("another")
        try:
            stages.submit([batch])
            until(lambda: THIS_PROCESS._alone)
            stages.cancel()
        finally:
            THIS_PROCESS.leave("another")
        outcomes = ended.next().result()
        assert {(one.status, one.reason) for one in outcomes} == {("busy", NOT_ALONE)}
        assert batch.cancelled
        assert {verdict.kind for verdict in claimed(2)} == {"busy"}
        clock.advance(claims[0].lease / 1000)
        assert all(verdict.alone for verdict in claimed(3))


@pytest.mark.parametrize("together", [True, False])
def test_a_batch_that_waits_for_two_runs_continues_once(*, together: bool) -> None:
    begun, go = threading.Semaphore(0), [threading.Event(), threading.Event()]

    def handler(job: Job) -> None:
        begun.release()
        assert go[job.event.id == "id-1"].wait(PATIENCE)

    batches = [[call(0), call(1)]] if together else [[call(0)], [call(1)]]
    with (
        Consumer("memory:", rules=RULE, handler=handler) as consumer,
        staged(consumer) as stages,
        ThreadPoolExecutor() as pool,
    ):
        waiters = consumer.runtime.gate._waiters
        ended = Ended(consumer)
        runs = [pool.submit(consumer.process, batch) for batch in batches]
        for _ in batches:
            assert begun.acquire(timeout=PATIENCE)
        stages.submit([ended.batch(0, 1)])
        until(lambda: len(waiters) == 2)
        go[0].set()
        if not together:
            until(lambda: [len(one) for one in waiters.values()] == [2])
        go[1].set()
        assert statuses(ended.next().result()) == ["duplicate"] * 2
        assert [status for run in runs for status in statuses(run.result())] == ["done"] * 2
    assert ended.none_left()


@pytest.mark.parametrize("gives_up", [False, True])
def test_the_beginning_and_the_end_of_each_wait_are_told_once(*, gives_up: bool) -> None:
    begun, go, told = threading.Event(), threading.Event(), list[int]()

    def handler(_: Job) -> None:
        begun.set()
        assert go.wait(PATIENCE)

    with Consumer("memory:", rules=RULE, handler=handler) as consumer:
        ended, stages = Ended(consumer), Stages(consumer.runtime, 1, told.append)
        copy = ended.batch(0)
        stages.submit([ended.batch(0)])
        assert begun.wait(PATIENCE)
        stages.submit([copy])
        until(lambda: told == [1])
        if gives_up:
            stages.give_up(copy)
            assert ended.next() is copy
            stages.give_up(copy)
        go.set()
        stages.close()
        assert told == [1, -1]


def test_an_error_in_the_callback_of_one_batch_does_not_prevent_another_callback() -> None:
    began = time.monotonic()
    with (
        Consumer("memory:", rules=RULE, handler=lambda _: time.sleep(0.001)) as consumer,
        staged(consumer) as stages,
    ):
        ended = Ended(consumer)
        broken, other = ended.batch(0), ended.batch(1)
        broken.ended = lambda _: 1 / 0  # type: ignore[assignment]
        stages.submit([broken, other])
        assert ended.next() is other
        assert 0 < other.running.runs[0].took < time.monotonic() - began


def test_the_error_of_a_store_that_fails_again_during_the_cleanup_is_raised() -> None:
    def look(verb: str, _: Sequence[Any]) -> None:
        if verb == "settle":
            raise ZeroDivisionError

    store = WatchedStore(look)
    with (
        Consumer(store, rules=RULE, handler=lambda _: None) as consumer,
        staged(consumer) as stages,
    ):
        ended = Ended(consumer)
        stages.submit([ended.batch(0)])
        with pytest.raises(ZeroDivisionError):
            ended.next().result()


def test_an_unavailable_store_is_called_once_for_all_waiting_batches() -> None:
    asked, submitted = list[int](), threading.Event()

    def look(_: str, some: Sequence[Any]) -> None:
        asked.append(len(some))
        assert submitted.wait(PATIENCE)
        raise StoreUnavailable("away")

    store = WatchedStore(look)
    with (
        Consumer(store, rules=RULE, handler=lambda _: None) as consumer,
        staged(consumer) as stages,
    ):
        ended = Ended(consumer)
        stages.submit([ended.batch(number) for number in range(5)])
        submitted.set()
        assert [statuses(ended.next().result()) for _ in range(5)] == [["failed"]] * 5
    # The first call may have begun before all batches had arrived.
    assert asked in ([5], [asked[0], 5 - asked[0]])


def test_one_call_has_no_more_events_than_the_limit_of_items(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("eventonce.runtime.stages.MOST_ITEMS", 2)
    asked: dict[str, list[int]] = {"claim": [], "settle": []}

    def look(verb: str, some: Sequence[Any]) -> None:
        asked[verb].append(len(some))

    store = WatchedStore(look)
    with (
        Consumer(store, rules=RULE, handler=lambda _: None) as consumer,
        staged(consumer) as stages,
    ):
        ended = Ended(consumer)
        stages.submit([ended.batch(number) for number in range(7)])
        assert [statuses(ended.next().result()) for _ in range(7)] == [["done"]] * 7
    assert max(asked["claim"]) == max(asked["settle"]) == 2


def test_a_starter_of_many_batches_keeps_no_handler_that_has_ended() -> None:
    async def handler(_: Job) -> None:
        pass

    with Consumer("memory:", rules=RULE, handler=handler) as consumer, staged(consumer) as stages:
        ended, starter = Ended(consumer), consumer.runtime.awaiting.starter()
        batch = ended.batch(0)
        batch.starter = starter
        stages.submit([batch])
        assert statuses(ended.next().result()) == ["done"]
        assert not starter._handlers


def test_a_round_may_end_before_the_thread_that_began_the_round_continues() -> None:
    """The last start of an async handler can end its round, and another thread begin the next."""
    rounds: list[str] = []
    went_on = threading.Event()

    class AtOnce:
        """A starter that returns when the handler has run, and the next round has begun."""

        def start(self, run: Run, _: Context, returned: Callable[[Run], None]) -> None:
            finish(run)
            returned(run)
            until(lambda: rounds)

        def is_stopped(self, _: Sequence[Run]) -> bool:
            return False

        def end_stopped(self) -> None:
            pass

    rule = Rule(name="call", match="*", subject=["detail.call"], order="detail.at", scope="calls")
    with Consumer("memory:", rules=rule) as consumer, staged(consumer) as stages:

        @consumer.on("first")
        async def first(_: Job) -> None:
            raise AssertionError("the starter runs no handler")

        consumer.on("second")(lambda _: None)
        execute, work = stages._execute, stages._slots._work

        def noted(batch: StagedBatch, runs: Sequence[Run], begun: Any) -> None:
            execute(batch, runs, begun)
            if runs[0].plan.asynchronous:
                went_on.set()
            else:
                rounds.append("plain")

        def late(batch: StagedBatch) -> None:
            went_on.wait(PATIENCE)
            work(batch)

        stages._execute, stages._slots._work = noted, late  # type: ignore[method-assign]
        ended = Ended(consumer)
        # Of a nested batch, the steps do not wait for each other's thread.
        with InsideHandler():
            batch = ended.batch_of(call(0, type="first", at=1), call(0, type="second", at=2))
        batch.starter = AtOnce()
        stages.submit([batch])
        assert statuses(ended.next().result()) == ["done", "done"]


def test_a_thread_that_has_run_handlers_is_free_for_other_batches() -> None:
    with (
        Consumer("memory:", rules=RULE, handler=lambda _: None) as consumer,
        staged(consumer) as stages,
    ):
        ended = Ended(consumer)
        for number in range(3):
            stages.submit([ended.batch(number)])
            assert statuses(ended.next().result()) == ["done"]
            until(lambda: stages._slots._running == 0)


class Raced(deque[Any]):
    """A queue from which another thread takes an item between the check and the first pop."""

    def __len__(self) -> int:
        return super().__len__() + 1

    def __bool__(self) -> bool:
        return super().__len__() > 0


def test_two_threads_that_empty_a_stage_at_once_lose_no_batch() -> None:
    done: list[Any] = []
    slots: Slots[Any] = Slots(1, lambda _: None)
    stage = _Stage(slots, done.extend, lambda *_: None)
    batches: list[Any] = ["a", "b"]
    stage._waiting = Raced(batches)
    stage.run()
    slots.close()
    assert done == batches


def test_each_of_many_batches_of_one_key_is_examined_only_a_few_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The claim of one batch does not examine all the others."""
    many, looked = 300, list[StagedBatch]()
    monkeypatch.setattr(
        "eventonce.runtime.stages._claims",
        lambda batch: looked.append(batch) or batch.request.claims,  # type: ignore[func-returns-value]
    )
    with (
        Consumer("memory:", rules=RULE, handler=lambda _: None) as consumer,
        staged(consumer) as stages,
    ):
        ended = Ended(consumer)
        stages.submit([ended.batch(0, number) for number in range(1, many + 1)])
        outcomes = [statuses(ended.next().result()) for _ in range(many)]
    assert outcomes.count(["done"] * 2) == 1
    assert outcomes.count(["duplicate", "done"]) == many - 1
    # When a batch waits, when it is claimed, and both again if it had to wait for a run.
    assert len(looked) <= 6 * many


def test_batches_that_share_some_keys_all_finish(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eventonce.runtime.stages.MOST_ITEMS", 5)
    keys, chance = 8, Random(7)
    batches = [chance.sample(range(keys), chance.randint(1, 3)) for _ in range(300)]
    ran: list[str] = []
    with (
        Consumer("memory:", rules=RULE, handler=lambda job: ran.append(job.event.id)) as consumer,
        staged(consumer, 3) as stages,
    ):
        ended = Ended(consumer)
        for at in range(0, len(batches), 60):
            stages.submit([ended.batch(*some) for some in batches[at : at + 60]])
        told = [status for _ in batches for status in statuses(ended.next().result())]
    assert sorted(ran) == [f"id-{number}" for number in range(keys)]
    assert Counter(told) == {"done": keys, "duplicate": sum(map(len, batches)) - keys}
    assert ended.none_left()


def test_a_thread_that_cannot_be_started_fails_the_waiting_batches_too() -> None:
    def refuses(*_: Any, **__: Any) -> None:
        raise RuntimeError

    failed: list[Any] = []

    def told(batch: Any, _: BaseException) -> None:
        failed.append(batch.name)

    slots: Any = SimpleNamespace(call=refuses)
    stage = _Stage(slots, lambda _: None, told)
    line = deque(SimpleNamespace(name=name, behind=None) for name in "bc")
    first: Any = SimpleNamespace(name="a", behind=line, running=SimpleNamespace(nested=True))
    stage.put(first)
    assert failed == ["a", "b", "c"]


def test_a_batch_whose_caller_gave_up_does_not_wait_to_begin() -> None:
    with (
        Consumer("memory:", rules=RULE, handler=lambda _: None) as consumer,
        staged(consumer) as stages,
    ):
        alone = THIS_PROCESS.entering("alone", alone=True, nested=False)
        assert not [*alone]
        try:
            ended = Ended(consumer)
            batch = ended.batch(0)
            stages.submit([batch])
            until(lambda: stages._slots._later)
            assert ended.none_left()
            stages.give_up(batch)
            assert statuses(ended.next().result()) == ["busy"]
        finally:
            THIS_PROCESS.leave("alone")
        assert statuses(consumer.process([call(0)])) == ["done"]


class Turns:
    """A loop that makes its next call in `turn`."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []
        self.loop: Any = SimpleNamespace(
            call_soon=self.calls.append, call_soon_threadsafe=self.calls.append
        )

    def turn(self) -> None:
        self.calls.pop(0)()

    def turns(self) -> None:
        while self.calls:
            self.turn()


def test_an_event_fails_if_the_task_factory_of_its_loop_raises() -> None:
    async def handler(_: Job) -> None:
        raise AssertionError("it was started")

    def refuses(coroutine: Any, **_: object) -> None:
        raise TypeError("unexpected keyword argument 'context'")

    loop = Turns()
    loop.loop.create_task = refuses
    with Consumer("memory:", rules=RULE, handler=handler) as consumer, staged(consumer) as stages:
        ended = Ended(consumer)
        batch = ended.batch(0, 1)
        batch.starter = _Starter(LoopCalls(loop.loop), lambda *_: None)
        stages.submit([batch])
        while ended.none_left():
            until(lambda: loop.calls or not ended.none_left())
            loop.turns()
        outcomes = ended.next().result()
        assert statuses(outcomes) == ["failed"] * 2
        assert "unexpected keyword argument 'context'" in outcomes[0].reason
        assert consumer.runtime.gate.held() == []
        verdicts = consumer.runtime.gate.claim(
            [run.claim for run in ended.batch(0, 1).running.runs]
        )
        assert [(one.kind, one.spared) for one in verdicts] == [("run", 1)] * 2


def test_an_interrupt_while_batches_are_sent_prevents_no_batch_from_ending() -> None:
    with (
        Consumer("memory:", rules=RULE, handler=lambda _: None) as consumer,
        staged(consumer) as stages,
    ):
        ended, loop = Ended(consumer), Turns()
        submitter = LoopSubmitter(LoopCalls(loop.loop), stages)
        numbers = iter(range(1_000))
        sent = [ended.batch(next(numbers)) for _ in range(2)]
        submitter.submit(sent[0])
        submitter.submit(sent[1])
        for came in interrupted_everywhere(loop.turn):
            assert isinstance(came, Interrupt)
            if not loop.calls:
                # The interrupt came before the first instruction; a waiting caller is cancelled.
                submitter.catch_up()
            loop.turns()
            assert {ended.next(), ended.next()} == set(sent)
            assert [statuses(one.result()) for one in sent] == [["done"]] * 2
            sent = [ended.batch(next(numbers)) for _ in range(2)]
            submitter.submit(sent[0])
            submitter.submit(sent[1])
        assert next(numbers) > 10
        assert {ended.next(), ended.next()} == set(sent)
        assert ended.none_left()


def test_an_interrupt_while_callers_are_woken_prevents_no_caller_from_waking() -> None:
    loop, stages = Turns(), SimpleNamespace(begin=lambda *, nested: None)
    calls = LoopCalls(loop.loop)
    submitter = LoopSubmitter(calls, stages)  # type: ignore[arg-type]
    woken: list[list[None]] = []

    def call_some() -> None:
        woken[:] = [[], [], []]
        for one in woken:
            future: Any = SimpleNamespace(done=one.__len__, set_result=one.append)
            calls.call(_wake, [future])

    call_some()
    for _ in interrupted_everywhere(loop.turn):
        if not loop.calls:
            submitter.catch_up()
        loop.turns()
        assert woken == [[None]] * 3
        call_some()


def test_a_batch_whose_handler_has_raised_is_freed() -> None:
    """The traceback refers to the batch, and the batch to the run with the traceback."""
    held: list[ref[Counter[str]]] = []

    def fails(_: Job) -> None:
        large = Counter[str]()
        held.append(ref(large))
        raise ValueError

    with Consumer(MemoryStore(), rules=ruled(), handler=fails) as consumer:
        assert statuses(asyncio.run(consumer.process_async([call(1)]))) == ["failed"]
    gc.collect()
    assert [it() for it in held] == [None]
