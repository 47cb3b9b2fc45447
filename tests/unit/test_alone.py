"""An event whose last run ended with its process runs alone: its next crash ends no other run."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, cast

import pytest
from msgspec.structs import replace

from eventonce import Consumer, Job, Rule, envelope
from eventonce.core.engine import Wait
from eventonce.runtime import shared_process
from eventonce.runtime.running_batch import CopyWait, RunningBatch
from eventonce.runtime.shared_process import SharedProcess
from eventonce.stores.memory import MemoryStore
from eventonce.types import Claim, Event, Outcome, Settlement, SettleResult, Verdict
from tests.helpers import PATIENCE, WatchedStore, call, statuses, until

RULE = Rule(name="call", match="call", key=["detail.call"], lease=60, attempts=2)


class Crash(BaseException):
    """The end of the process."""


class Process:
    """The store as one process sees it: a settlement after the crash does not reach the store."""

    def __init__(self, store: MemoryStore, clock: list[int]) -> None:
        self._store, self._clock = store, clock
        self.crashed = False
        self.claims: list[Claim] = []

    def claim(self, claims: Sequence[Claim], now: int | None = None) -> list[Verdict]:
        self.claims += claims
        return self._store.claim(claims, self._clock[0])

    def settle(
        self, settlements: Sequence[Settlement], now: int | None = None
    ) -> list[SettleResult]:
        if self.crashed:
            return ["kept"] * len(settlements)
        return self._store.settle(settlements, self._clock[0])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Iterator[SharedProcess]:
    """A process of the test's own, in which an event waits as long as necessary."""
    monkeypatch.setattr(shared_process, "ALONE_WAIT", PATIENCE)
    monkeypatch.setattr(shared_process, "ENTER_INTERVAL", 0.001)
    own = SharedProcess()
    monkeypatch.setattr("eventonce.runtime.running_batch.THIS_PROCESS", own)
    yield own
    assert own._entered == own._alone == set()


def test_an_event_that_ends_its_process_is_given_up_and_the_other_events_are_done(
    here: SharedProcess,
) -> None:
    """Three events are delivered together again and again; one of them ends its process."""
    store, clock = MemoryStore(), [1_000_000]
    began: list[str] = []
    last: list[Outcome] = []
    for _ in range(20):
        process = Process(store, clock)

        def handle(job: Job, process: Process = process) -> None:
            began.append(job.event.id)
            if job.event.id == "id-1":
                process.crashed = True
                raise Crash

        consumer = Consumer(process, name="crm", rules=RULE, handler=handle)
        try:
            last = consumer.process([call(0), call(1), call(2)])
            break
        except Crash:
            clock[0] += 60_000
    assert statuses(last) == ["duplicate", "dead", "done"]
    assert [letter.event.count(b"id-1") for letter in store.letters()] == [1]
    # One run beside the others, which does not count, and then two attempts alone.
    assert began.count("id-1") == 3


def test_a_failure_in_the_last_delivery_is_kept_though_a_crash_before_it_does_not_count(
    here: SharedProcess,
) -> None:
    """Lambda delivers an event three times: the process ends once, and the handler raises twice."""
    store, clock = MemoryStore(), [1_000_000]
    process = Process(store, clock)
    rule = replace(RULE, attempts=5)
    consumer = Consumer(process, name="crm", rules=rule, handler=lambda _: 1 / 0)
    store.claim([consumer.rules.plan(_read(0), 1)[1]], clock[0])
    found = []
    for _ in range(2):
        clock[0] += 60_000
        found += statuses(consumer.process([call(0)], deliveries=3))
    assert found == ["failed", "dead"]
    assert [letter.attempt for letter in store.letters()] == [3]


def test_an_event_that_must_run_alone_is_not_claimed_while_another_event_of_its_batch_runs(
    here: SharedProcess,
) -> None:
    store, clock = MemoryStore(), [1_000_000]
    gone = Consumer(Process(store, clock), name="crm", rules=RULE, handler=lambda _: None)
    claims = [gone.rules.plan(event, 1)[1] for event in map(_read, (0, 1))]
    store.claim(claims, clock[0])
    clock[0] += 60_000
    held: list[tuple[str, int]] = []

    def handle(job: Job) -> None:
        alone = [claim.key for claim in claims if (it := store.show(claim.key)) and it.alone]
        held.append((job.event.id, len(alone)))

    store._clock = lambda: clock[0]
    process = Process(store, clock)
    consumer = Consumer(process, name="crm", rules=RULE, handler=handle)
    assert statuses(consumer.process([call(2), call(0), call(1)])) == ["done"] * 3
    assert held == [("id-2", 0), ("id-0", 1), ("id-1", 1)]
    assert [claim.alone for claim in process.claims] == [False, False, False, True, True]


def _read(number: int) -> Event:
    return envelope.read(call(number))


def test_an_event_that_ended_a_process_waits_for_the_running_events_of_its_new_process(
    here: SharedProcess,
) -> None:
    """A handler runs in another thread; the suspect begins when that handler has ended."""
    store, clock = MemoryStore(), [1_000_000]
    order: list[str] = []
    working, go_on = threading.Event(), threading.Event()

    def handle(job: Job) -> None:
        if job.event.id == "id-0":
            working.set()
            assert go_on.wait(PATIENCE)
        order.append(job.event.id)

    consumer = Consumer(Process(store, clock), name="crm", rules=RULE, handler=handle)
    store.claim([consumer.rules.plan(_read(1), 1)[1]], clock[0])
    clock[0] += 60_000
    slow = threading.Thread(target=consumer.process, args=([call(0)],))
    slow.start()
    assert working.wait(PATIENCE)
    suspect = threading.Thread(target=consumer.process, args=([call(1)],))
    suspect.start()
    while not here._alone:
        pass
    go_on.set()
    slow.join(PATIENCE)
    suspect.join(PATIENCE)
    assert order == ["id-0", "id-1"]


def test_a_copy_of_an_event_that_waits_to_be_alone_waits_for_its_run(here: SharedProcess) -> None:
    """The copy does not wait for the lease, which was granted anew in the same moment."""
    store, clock = MemoryStore(), [1_000_000]
    consumer = Consumer(Process(store, clock), name="crm", rules=RULE, handler=lambda _: None)
    store.claim([consumer.rules.plan(_read(1), 1)[1]], clock[0])
    clock[0] += 60_000
    assert here.enter("another")
    with ThreadPoolExecutor(2) as pool:
        suspect = pool.submit(consumer.process, [call(1)], wait=PATIENCE)
        until(lambda: here._alone)
        copy = RunningBatch(
            consumer.runtime, consumer.runtime.plan([_read(1)]), CopyWait(here=PATIENCE)
        )
        verdicts = consumer.runtime.gate.claim([run.claim for run in copy.runs])
        woken = threading.Event()
        seconds = copy.wait(Wait([run.claim for run in copy.runs], 0), woken.set)
        woken_before = woken.is_set()
        here.leave("another")
        assert statuses(suspect.result(PATIENCE)) == ["done"]
    assert [verdict.kind for verdict in verdicts] == ["busy"]
    assert (seconds > 1, woken_before, woken.is_set()) == (True, False, True)
    assert statuses(consumer.process([call(1)])) == ["duplicate"]


@pytest.mark.parametrize("times", [1, 2])
def test_an_event_that_is_interrupted_while_it_waits_to_be_alone_keeps_its_lease(
    here: SharedProcess, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """After a release, the next run would not be granted as a run that must be alone."""
    store, clock = MemoryStore(), [1_000_000]
    consumer = Consumer(Process(store, clock), name="crm", rules=RULE, handler=lambda _: None)
    claim = consumer.rules.plan(_read(1), 1)[1]
    store.claim([claim], clock[0])
    clock[0] += 60_000

    def interrupted(*_: object, **__: object) -> None:
        raise Crash

    with monkeypatch.context() as patched:
        patched.setattr(here, "entering", interrupted)
        with pytest.raises(Crash):
            consumer.process([call(1)] * times)
    assert store.claim([replace(claim, nonce=2)], clock[0])[0].kind == "busy"
    assert not consumer.runtime.gate._running
    clock[0] += 60_000
    assert store.claim([replace(claim, nonce=3)], clock[0])[0].alone


def test_other_events_of_a_loop_wait_while_an_event_runs_alone(here: SharedProcess) -> None:
    store, clock = MemoryStore(), [1_000_000]
    order: list[str] = []

    async def both() -> None:
        alone = asyncio.Event()

        async def handle(job: Job) -> None:
            if job.event.id == "id-1":
                alone.set()
                for _ in range(20):
                    await asyncio.sleep(0.001)
            order.append(job.event.id)

        consumer = Consumer(Process(store, clock), name="crm", rules=RULE, handler=handle)
        store.claim([consumer.rules.plan(_read(1), 1)[1]], clock[0])
        clock[0] += 60_000
        suspect = asyncio.ensure_future(consumer.process_async([call(1)]))
        await alone.wait()
        await consumer.process_async([call(0)])
        await suspect
        consumer.close()

    asyncio.run(both())
    assert order == ["id-1", "id-0"]


def test_a_caller_cancelled_while_its_event_waits_to_be_alone_blocks_no_other_event(
    here: SharedProcess,
) -> None:
    store, clock = MemoryStore(), [1_000_000]

    async def cancelled() -> None:
        begun, go_on = asyncio.Event(), asyncio.Event()

        async def handle(job: Job) -> None:
            if job.event.id == "id-0":
                begun.set()
                await go_on.wait()

        consumer = Consumer(Process(store, clock), name="crm", rules=RULE, handler=handle)
        store.claim([consumer.rules.plan(_read(1), 1)[1]], clock[0])
        clock[0] += 60_000
        slow = asyncio.ensure_future(consumer.process_async([call(0)]))
        await begun.wait()
        suspect = asyncio.ensure_future(consumer.process_async([call(1)]))
        while not here._alone:  # noqa: ASYNC110  no event signals it
            await asyncio.sleep(0.001)
        suspect.cancel()
        with pytest.raises(asyncio.CancelledError):
            await suspect
        assert not here._alone
        go_on.set()
        await slow
        consumer.close()

    asyncio.run(cancelled())
    assert not here._entered


def test_a_lone_event_waits_while_another_runs_alone(
    here: SharedProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits, enters = threading.Event(), here.entering

    def entered(*given: Any, **named: Any) -> Any:
        waits.set()
        return enters(*given, **named)

    assert _entered(entering(here, "suspect", alone=True))
    monkeypatch.setattr(here, "entering", entered)
    consumer = Consumer("memory:", rules=RULE, handler=lambda _: None)
    with ThreadPoolExecutor() as pool:
        lone = pool.submit(consumer.process, [call(0)])
        until(lambda: waits.is_set() or lone.done())
        assert not lone.done()
        here.leave("suspect")
        assert statuses(lone.result(PATIENCE)) == ["done"]


def entering(here: SharedProcess, who: str, *, alone: bool = False, nested: bool = False) -> Any:
    return here.entering(who, alone=alone, nested=nested)


def _entered(entering: Any) -> bool | None:
    """The answer to the batch, None if the batch must wait."""
    try:
        next(entering)
    except StopIteration as stop:
        return bool(stop.value)
    return None


def test_a_handler_that_hangs_does_not_block_other_events_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shared_process, "ALONE_WAIT", 0.0)
    here = SharedProcess()
    assert _entered(entering(here, "A")) is False
    assert _entered(entering(here, "B", alone=True)) is False, "it runs beside what hangs"
    here.leave("A")
    here.leave("B")
    assert _entered(entering(here, "C", alone=True)) is True
    assert _entered(entering(here, "D")) is False, "others run beside what hangs alone"
    with pytest.raises(StopIteration) as refused:
        next(entering(here, "E", alone=True))
    assert refused.value.value is None, "but not one that may end the process as well"
    here.leave("D")
    here.leave("C")
    assert _entered(entering(here, "F", alone=True)) is True


def test_an_event_that_ended_a_process_does_not_run_beside_another_event_that_runs_alone(
    here: SharedProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event is busy, and runs when it is delivered again after its lease has ended."""
    monkeypatch.setattr(shared_process, "ALONE_WAIT", 0.0)
    store, clock = MemoryStore(), [1_000_000]
    ran: list[str] = []
    consumer = Consumer(Process(store, clock), name="crm", rules=RULE, handler=lambda _: None)
    store.claim([consumer.rules.plan(_read(1), 1)[1]], clock[0])
    clock[0] += 60_000
    consumer.runtime.wrap(lambda _: lambda job: ran.append(job.event.id))
    assert _entered(entering(here, "A", alone=True)) is True
    assert statuses(consumer.process([call(1)])) == ["busy"]
    here.leave("A")
    clock[0] += 60_000
    assert statuses(consumer.process([call(1)])) == ["done"]
    assert ran == ["id-1"]


def test_an_event_that_ended_a_process_runs_at_last_beside_a_handler_that_hangs(
    here: SharedProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_process, "ALONE_WAIT", 0.0)
    asked: list[str] = []

    def look(verb: str, _: Any) -> Any:
        asked.append(verb)
        assert len(asked) < 10, asked
        return [Verdict("run", 7, 2, 60_000, alone=True)] if verb == "claim" else ["kept"]

    consumer = Consumer(WatchedStore(look), rules=RULE, handler=lambda _: None)
    assert _entered(entering(here, "hangs")) is False
    assert statuses(consumer.process([call(1)])) == ["done"]
    assert asked == ["claim", "claim", "settle"]
    here.leave("hangs")


def test_two_events_that_wait_to_be_alone_run_at_last_beside_a_handler_that_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, here = [1_000.0], SharedProcess()
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    assert here.enter("hangs")
    waiting = [entering(here, who, alone=True) for who in "AB"]
    assert [_entered(one) for one in waiting] == [None, None]
    now[0] += shared_process.ALONE_WAIT
    for one in waiting:
        with pytest.raises(StopIteration) as entered:
            next(one)
        assert entered.value.value is False


@pytest.mark.parametrize("instant", [1, 2, 3])
def test_no_batch_stops_waiting_and_enters_beside_one_that_enters_alone_at_that_moment(
    monkeypatch: pytest.MonkeyPatch, instant: int
) -> None:
    now, here = [1_000.0], SharedProcess()
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    entered_alone: list[bool | None] = []

    class Overtaken:
        """The lock of the process, before which another thread enters alone once."""

        times = 0

        def __enter__(self) -> None:
            self.times += 1
            if self.times == instant:
                here._lock = lock
                here.leave("hangs")
                entered_alone.append(_entered(other))
                here._lock = own
            lock.acquire()

        def __exit__(self, *_: object) -> None:
            lock.release()

    lock, own = here._lock, cast("threading.Lock", Overtaken())
    assert here.enter("hangs")
    waiting, other = (entering(here, who, alone=True) for who in "AB")
    assert [_entered(one) for one in (waiting, other)] == [None, None]
    now[0] += shared_process.ALONE_WAIT
    here._lock = own
    with pytest.raises(StopIteration) as entered:
        next(waiting)
    assert (entered.value.value, entered_alone) in ((None, [True]), (False, []))


def test_a_batch_that_was_not_admitted_does_not_keep_an_event_from_running_alone() -> None:
    here = SharedProcess()
    assert here.enter("A")
    waiting = entering(here, "B", alone=True)
    assert _entered(waiting) is None
    assert not here.enter("C")
    here.leave("A")
    assert _entered(waiting) is True


def test_a_handler_that_processes_events_itself_does_not_wait_for_itself() -> None:
    here = SharedProcess()
    assert _entered(entering(here, "A")) is False
    waiting = entering(here, "B", alone=True)
    assert _entered(waiting) is None
    assert _entered(entering(here, "C", nested=True)) is False
    assert _entered(entering(here, "D", alone=True, nested=True)) is False
    beside = entering(here, "E")
    assert _entered(beside) is None, "others wait behind the one that wants to be alone"
    for who in "ACD":
        here.leave(who)
    assert _entered(waiting) is True
    assert _entered(beside) is None
    here.leave("B")
    assert _entered(beside) is False


@pytest.mark.parametrize("nested", [True, False])
def test_no_event_runs_alone_beside_a_batch_that_was_admitted_without_waiting(
    monkeypatch: pytest.MonkeyPatch, *, nested: bool
) -> None:
    here = SharedProcess()
    if nested:
        assert _entered(entering(here, "A", nested=True)) is False
    else:
        assert here.enter("B")
        monkeypatch.setattr(shared_process, "ALONE_WAIT", 0.0)
        assert _entered(entering(here, "A", alone=True)) is False
        monkeypatch.undo()
        here.leave("B")
    waiting = entering(here, "C", alone=True)
    assert _entered(waiting) is None
    here.leave("A")
    assert _entered(waiting) is True


def test_the_wait_for_an_event_that_runs_alone_is_measured_from_its_admission(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, here = [1_000.0], SharedProcess()
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    assert here.enter("A")
    alone = entering(here, "B", alone=True)
    assert _entered(alone) is None
    now[0] += 20
    here.leave("A")
    assert _entered(alone) is True
    now[0] += 20
    beside = entering(here, "C")
    assert _entered(beside) is None
    now[0] += 10
    assert _entered(beside) is False


def test_after_a_block_or_a_handler_its_caller_is_not_inside_a_handler() -> None:
    async def handler(_: Job) -> bool:
        return bool(shared_process.INSIDE_HANDLER.get())

    with Consumer("memory:", rules=RULE, handler=handler) as consumer:
        with consumer.once(call(1)):
            assert shared_process.INSIDE_HANDLER.get()
        assert not shared_process.INSIDE_HANDLER.get()
        assert consumer.process([call(2)])[0].result is True
        assert not shared_process.INSIDE_HANDLER.get()


def test_a_block_that_was_abandoned_in_a_handler_leaves_no_caller_inside_a_handler() -> None:
    left: list[object] = []

    def handler(_: Job) -> None:
        block = consumer.once(call(2))
        block.__enter__()
        left.append(block)

    async def waits_inside() -> None:
        with shared_process.InsideHandler():
            await asyncio.sleep(0)

    with Consumer("memory:", rules=RULE, handler=handler) as consumer:
        consumer.process([call(1)])
        left.clear()
        assert not shared_process.INSIDE_HANDLER.get()
    # As a coroutine of a closed loop: begun in a handler's context, ended in this context.
    inside, coroutine = copy_context(), waits_inside()
    inside.run(shared_process.INSIDE_HANDLER.set, True)
    inside.run(coroutine.send, None)
    coroutine.close()
    assert not shared_process.INSIDE_HANDLER.get()


def test_an_event_that_stops_waiting_to_be_alone_blocks_no_other_event() -> None:
    here = SharedProcess()
    assert _entered(entering(here, "A")) is False
    waiting = entering(here, "B", alone=True)
    assert _entered(waiting) is None
    here.leave("B")
    assert _entered(entering(here, "C")) is False


def test_a_nested_batch_on_a_loop_does_not_wait_for_an_event_that_waits_for_its_handler(
    here: SharedProcess,
) -> None:
    """The event that must run alone waits for the handler, and the handler for its own batch."""
    consumer = Consumer("memory:", rules=RULE, handler=lambda _: None)

    def handler(_: Job) -> list[str]:
        assert _entered(entering(here, "waits to be alone", alone=True)) is None
        return statuses(asyncio.run(consumer.process_async([call(2)])))

    with Consumer("memory:", rules=RULE, handler=handler) as outer:
        assert outer.process([call(1)])[0].result == ["done"]
    here.leave("waits to be alone")
    consumer.close()


def test_an_event_whose_handler_always_exits_the_main_thread_becomes_a_dead_letter() -> None:
    def leave(_: Job) -> None:
        raise SystemExit

    with Consumer("memory:", rules=RULE, handler=leave) as consumer:
        for _ in range(2):
            with pytest.raises(SystemExit):
                consumer.process([call(0)])
        assert statuses(consumer.process([call(0)])) == ["dead"]
        assert len(list(consumer.letters())) == 1
