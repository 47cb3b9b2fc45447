"""The gate under every interleaving of a few callers, in their own threads or by the stages, its
timer and a reply that is lost: each fact is completed once, no caller waits for ever, and every
caller is answered."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextvars import copy_context
from functools import partial
from itertools import count
from math import inf
from typing import Any, NamedTuple

import pytest

from eventonce import Consumer, Job, Rule, StoreUnavailable
from eventonce.core.plan import Run
from eventonce.runtime import gate as gates
from eventonce.runtime import inline, lane, running_batch, stages
from eventonce.runtime.gate import Gate
from eventonce.runtime.lane import Lane
from eventonce.runtime.running_batch import CopyWait, RunningBatch
from eventonce.runtime.shared_process import THIS_PROCESS
from eventonce.runtime.stages import StagedBatch
from eventonce.stores.memory import MemoryStore
from eventonce.types import Claim, Outcome, Settlement, SettleResult, Verdict
from tests.simulation.interleavings import Event, Schedule, Stuck, interleavings

RULE = Rule(name="call", match="call", key=["detail.call"])


class Scene(NamedTuple):
    """The callers and their calls, how often the timer looks, and which replies are lost."""

    callers: tuple[str, ...]
    looks: int = 0
    lost: str = ""
    """The first reply of this verb is lost: the store wrote, and no caller gets the reply."""
    preemptions: int = 2
    slots: int = 0
    """Threads of the stages that bring the callers' batches to their outcomes; 0: the callers'
    own threads do."""


SCENES = (
    Scene(("a", "a")),
    Scene(("a", "a", "b"), preemptions=1),
    Scene(("ab", "b")),
    Scene(("ab", "ba"), looks=1, preemptions=1),
    Scene(("ab", "c"), looks=2, preemptions=1),
    Scene(("a", "b"), lost="claim", preemptions=3),
    Scene(("a", "b"), lost="settle"),
    Scene(("ab", "b"), looks=1, lost="settle", preemptions=1),
    Scene(("a", "a"), slots=2, preemptions=0),
    Scene(("ab", "b"), looks=1, slots=2, preemptions=0),
    Scene(("a", "b"), lost="claim", slots=2, preemptions=0),
    Scene(("a", "b"), lost="settle", slots=2, preemptions=0),
)


@pytest.fixture(autouse=True)
def no_caller_left() -> Iterator[None]:
    """Callers that wait for ever stay in this process, and no event of a later test would be alone
    in it."""
    yield
    THIS_PROCESS.reset()


class Stepwise(MemoryStore):
    """A store that lets other threads run before and after each call, and may lose a reply."""

    def __init__(self, schedule: Schedule, lost: str) -> None:
        super().__init__()
        self._schedule, self._lost = schedule, [lost]
        self.completed = Counter[bytes]()

    def claim(self, claims: Sequence[Claim], now: int | None = None) -> list[Verdict]:
        assert len({claim.key for claim in claims}) == len(claims)
        self._schedule.stop()
        verdicts = super().claim(claims, now)
        self._schedule.stop()
        self._lose("claim")
        return verdicts

    def settle(
        self, settlements: Sequence[Settlement], now: int | None = None
    ) -> list[SettleResult]:
        assert len({one.claim.key for one in settlements}) == len(settlements)
        self._schedule.stop()
        answers = super().settle(settlements, now)
        for one, kept in zip(settlements, answers, strict=True):
            self.completed[one.claim.key] += one.action == "complete" and kept == "kept"
        self._schedule.stop()
        self._lose("settle")
        return answers

    def _lose(self, verb: str) -> None:
        if verb in self._lost:
            self._lost.clear()
            raise StoreUnavailable("its reply was lost")


class Slots:
    """The stand-in for the slots: threads of the schedule, which take the calls that wait."""

    def __init__(self, schedule: Schedule, work: Callable[[Any], None]) -> None:
        self._schedule, self._work = schedule, work
        self._waiting = deque[Callable[[], None]]()
        self._later: list[tuple[int, Callable[[], None]]] = []
        self._numbers = count()
        self._idle: list[object] = []
        self._at_work = 0
        self.closed = False

    def put(self, items: Sequence[Any], *, nested: bool = False) -> Sequence[Any]:
        self._waiting.extend(partial(self._work, item) for item in items)
        return ()

    def call(self, call: Callable[[], None], *, nested: bool = False) -> None:
        self._waiting.append(call)

    def call_later(self, _: float, call: Callable[[], None]) -> tuple[int, Callable[[], None]]:
        self._later.append((next(self._numbers), call))
        return self._later[-1]

    def forget(self, later: tuple[int, Callable[[], None]]) -> None:
        if later in self._later:
            self._later.remove(later)

    def serve(self) -> None:
        """Do the calls that wait, in one thread. Time passes while no call waits."""
        me = object()
        while True:
            self._idle.append(me)
            # All idle threads are alike.
            self._schedule.stop(lambda: self._idle[0] is me and self._has_work())
            self._idle.remove(me)
            if self._waiting:
                call = self._waiting.popleft()
            elif self._time_passes():
                call = self._later.pop(0)[1]
            else:
                return
            self._at_work += 1
            call()
            self._at_work -= 1

    def _has_work(self) -> bool:
        return bool(self._waiting or self._time_passes() or self.closed)

    def _time_passes(self) -> bool:
        return bool(self._later) and not self._at_work


def event(call: str) -> dict[str, Any]:
    return {"id": f"id-{call}", "detail-type": "call", "detail": {"call": call}}


def play(scene: Scene, schedule: Schedule, patch: pytest.MonkeyPatch) -> None:
    """Play a scene in one interleaving, and check the outcomes."""
    simulated = schedule.threading()
    for module in (lane, gates, stages):
        patch.setattr(module, "threading", simulated)
    patch.setattr(stages, "Slots", lambda _, work: Slots(schedule, work))
    patch.setattr(inline, "Event", lambda: Event(schedule, running_batch.AT_ONCE))
    ran, answered = Counter[str](), dict[int, list[Outcome]]()

    def handler(job: Job) -> None:
        schedule.stop()
        ran[job.event.detail["call"]] += 1

    store = Stepwise(schedule, scene.lost)
    consumer = Consumer(store, rules=RULE, handler=handler)
    consumer.runtime.pauses = (0.0,)
    gate = consumer.runtime.gate
    # Of this gate alone: the timers of other tests are idle for a minute, and must sleep.
    patch.setattr(gate, "_start_or_wake", lambda *_: None)
    patch.setattr(gate, "_sleep", lambda *_: None)
    patch.setattr(gate, "_due_again", lambda *_: 0.0)

    staged = stages.Stages(consumer.runtime, scene.slots)
    slots: Any = staged._slots

    def caller(number: int) -> None:
        events = [event(call) for call in scene.callers[number]]
        if not scene.slots:
            answered[number] = consumer.process(events)
            return
        told: list[StagedBatch] = []
        runtime = consumer.runtime
        running = RunningBatch(runtime, runtime.plan(events), CopyWait(5))
        batch = StagedBatch(running, told.append, context=copy_context())
        staged.submit([batch])
        schedule.stop(lambda: bool(told))
        assert told == [batch]
        answered[number] = batch.result()
        slots.closed = len(answered) == len(scene.callers)

    def look() -> None:
        schedule.stop()
        gate._tend(timer)

    timer = gate._timer = simulated.current_thread()
    works: list[Callable[[], None]] = [
        lambda number=number: caller(number)  # type: ignore[misc]
        for number in range(len(scene.callers))
    ]
    schedule.run([*works, *[look] * scene.looks, *[slots.serve] * scene.slots])
    statuses = {
        call: sorted(
            outcome.status
            for number, outcomes in answered.items()
            for one, outcome in zip(scene.callers[number], outcomes, strict=True)
            if one == call
        )
        for call in set("".join(scene.callers))
    }
    assert max(ran.values(), default=0) <= 1
    for call, became in statuses.items():
        asked = sum(calls.count(call) for calls in scene.callers)
        assert len(became) == asked
        if scene.lost != "claim":
            assert became == ["done"] + ["duplicate"] * (asked - 1)
    assert scene.lost == "claim" or ran == dict.fromkeys(statuses, 1)
    assert (gate._leased, gate._running, gate._waiters) == (set(), {}, {})
    for one in (gate._claims, gate._settlements):
        assert (one._leader, list(one._waiting)) == (None, [])


def explore(scene: Scene) -> int:
    """The number of interleavings; raises the error of the first that fails."""
    seen, usual = 0, gates._due

    def due(run: Run) -> float:
        """The timer finds everything due, whenever it looks."""
        if run.plan.rule is not RULE:
            return usual(run)
        return 0.0 if run.token else inf

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gates, "_due", due)
        for schedule in interleavings(scene.preemptions):
            with pytest.MonkeyPatch.context() as own:
                play(scene, schedule, own)
            seen += 1
    return seen


@pytest.mark.parametrize("scene", SCENES, ids=str)
def test_each_fact_is_completed_once_and_every_caller_is_answered(scene: Scene) -> None:
    assert explore(scene) > 20


def test_a_lane_that_wakes_no_waiting_caller_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lane, "_first", lambda _: None)
    with pytest.raises(Stuck):
        explore(SCENES[0])


def test_a_copy_that_looks_for_its_run_only_before_its_claim_is_detected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Gate, "was_busy_here", lambda *_: False)
    with pytest.raises(AssertionError, match="busy"):
        explore(SCENES[0])


def test_a_stage_that_does_not_check_for_more_batches_before_its_end_is_detected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run(stage: Any) -> None:
        if batches := stage._taken():
            stage._work(batches)
        stage._begun = False

    monkeypatch.setattr(stages._Stage, "run", run)
    with pytest.raises(Stuck):
        explore(Scene(("a", "b"), slots=2, preemptions=1))


def test_a_batch_that_is_continued_twice_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    def end_wait(self: Any, batch: StagedBatch, _: int) -> None:
        self._slots.call(lambda: self._advance(batch, True))

    monkeypatch.setattr(stages.Stages, "_end_wait", end_wait)
    with pytest.raises(AssertionError):
        explore(Scene(("a", "a"), slots=2, preemptions=0))
