"""The gate: the runs that it notes, and its timer: checks, settlements and the end."""

from __future__ import annotations

import gc
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from math import inf
from types import SimpleNamespace
from typing import Any
from weakref import ReferenceType, ref

import pytest

from eventonce import Consumer, Job, Reject, forks
from eventonce.core.plan import Run
from eventonce.errors import StoreUnavailable
from eventonce.log import Outage
from eventonce.runtime import gate as gates
from eventonce.runtime import lane, running_batch
from eventonce.runtime.gate import Gate
from eventonce.stores.memory import MemoryStore
from eventonce.testing.harness import ManualClock
from eventonce.types import Claim, Settlement
from tests.helpers import PATIENCE, WatchedStore, call, ruled, statuses, until

CLAIM = Claim(b"a", 1, 60_000, 864_000_000, 5)


def test_a_copy_of_a_run_of_another_consumer_is_busy_at_once() -> None:
    asked: list[str] = []
    store = WatchedStore(lambda verb, _: asked.append(verb))
    elsewhere, here = (Consumer(store, rules=ruled(), handler=lambda _: None) for _ in range(2))
    # Another key runs in this consumer: that is no reason for a second claim.
    with elsewhere.once(call(0)), here.once(call(1)):
        asked.clear()
        with ThreadPoolExecutor() as pool:
            assert statuses(pool.submit(here.process, [call(0)]).result(PATIENCE)) == ["busy"]
        assert asked == ["claim"]


def test_a_copy_of_a_run_of_another_consumer_asks_until_its_wait_ends_and_is_busy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(running_batch, "PAUSES", (0.001, 0.002))
    asked: list[str] = []
    store = WatchedStore(lambda verb, _: asked.append(verb))
    elsewhere, here = (Consumer(store, rules=ruled(), handler=lambda _: None) for _ in range(2))
    with elsewhere.once(call(0)), ThreadPoolExecutor() as pool:
        copy = pool.submit(here.process, [call(0)], wait=0.1)
        assert statuses(copy.result(PATIENCE)) == ["busy"]
        assert len(asked) > 4


@pytest.mark.parametrize("ends", [(1, 2), (2, 1)])
def test_the_end_of_the_last_of_two_runs_of_a_key_wakes_the_waiting_callers(
    ends: tuple[int, int],
) -> None:
    clock, woken = ManualClock(), list[str]()
    gate = Gate(MemoryStore(clock=clock))
    claims = {nonce: Claim(b"a", nonce, 1_000, 864_000_000, 5) for nonce in (1, 2)}
    for claim in claims.values():
        assert gate.claim([claim])[0].token
        clock.advance(2)
    assert gate.when_ended(b"a", lambda: woken.append("woken"))
    gate.let_go(None, [claims[ends[0]]])
    assert woken == []
    gate.let_go(None, [claims[ends[1]]])
    assert woken == ["woken"]


def test_a_caller_that_waits_for_the_next_run_of_a_key_is_woken_by_the_end_of_that_run() -> None:
    """The next run begins, and a batch waits for it, while the callers that waited for the last run
    are woken."""
    gate, woken = Gate(MemoryStore()), list[str]()
    first, following = (Claim(b"a", nonce, 60_000, 864_000_000, 5) for nonce in (1, 2))

    def begin_the_next() -> None:
        assert gate.claim([following])[0].token
        assert gate.when_ended(b"a", lambda: woken.append("woken"))

    (verdict,) = gate.claim([first])
    gate.settle([Settlement(first, verdict.token, "return")])
    assert gate.when_ended(b"a", begin_the_next)
    gate.let_go(None, [first])
    gate.let_go(None, [following])
    assert woken == ["woken"]


def test_the_number_of_noted_busy_copies_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gates, "MOST_ITEMS", 3)
    gate = Gate(MemoryStore())
    claims = [Claim(b"a", nonce, 60_000, 864_000_000, 5) for nonce in range(1, 8)]
    assert [gate.claim([claim])[0].kind for claim in claims] == ["run"] + ["busy"] * 6
    assert len(gate._busy_here) == 3
    assert gate.was_busy_here(claims[-1:])
    assert not gate.was_busy_here(claims[:2])


def test_an_outage_that_stops_renewals_has_a_line_at_its_beginning_and_at_its_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "eventonce")
    monkeypatch.setattr(gates, "Outage", partial(Outage, lambda: 1_000.0))
    away = True

    def look(verb: str, _: object) -> None:
        if verb == "settle" and away:
            raise StoreUnavailable("it is away")

    consumer = Consumer(WatchedStore(look), rules=ruled(), handler=lambda _: None)
    gate = consumer.runtime.gate
    with consumer.once(call(0)):
        for _ in range(3):
            gate._renew_and_settle(gate.held(), [])
        away = False
        gate._renew_and_settle([], [])
        for _ in range(2):
            gate._renew_and_settle(gate.held(), [])
    assert [it.getMessage() for it in caplog.records] == [
        "leases not renewed: 1; runs not settled yet: 0; trying again: it is away",
        "leases are renewed again, after 0 s",
    ]


def test_an_outage_has_its_own_line_though_no_lease_was_renewed_after_the_one_before(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "eventonce")
    now, away = [1_000.0], True
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    monkeypatch.setattr(gates, "Outage", partial(Outage, lambda: now[0]))

    def look(verb: str, _: object) -> None:
        if verb == "settle" and away:
            raise StoreUnavailable("it is away")

    consumer = Consumer(WatchedStore(look), rules=ruled(lease=10**6), handler=lambda _: None)
    gate = consumer.runtime.gate
    with consumer.once(call(0)):
        for day in (0, 3, 4):
            now[0] = 1_000.0 + day * 86_400
            gate._renew_and_settle(gate.held(), [])
        away = False
        now[0] += 86_400
        gate._renew_and_settle(gate.held(), [])
    assert len(caplog.records) == 3
    assert all("leases not renewed" in it.getMessage() for it in caplog.records)


@pytest.mark.parametrize("verb", ["claim", "settle"])
def test_the_child_of_a_fork_does_not_wait_for_a_call_of_its_parent(
    verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane, "LONGEST_CALL", 10 * PATIENCE)
    under_way, go = threading.Event(), threading.Event()

    def look(asked: str, _: object) -> None:
        if asked == verb and not under_way.is_set():
            under_way.set()
            assert go.wait(PATIENCE)

    gate = Gate(WatchedStore(look))
    items: list[Any] = [CLAIM if verb == "claim" else Settlement(CLAIM, 1, "complete")]
    with ThreadPoolExecutor() as pool:
        parents = pool.submit(getattr(gate, verb), items)
        assert under_way.wait(PATIENCE)
        forks.begin_anew()
        try:
            assert pool.submit(getattr(gate, verb), items).result(PATIENCE)
        finally:
            go.set()
        parents.result(PATIENCE)


@pytest.mark.parametrize(
    ("shadow", "before", "became", "times"),
    [(True, ["done"], "unguarded", 3), (False, [], "dead", 1)],
    ids=["unguarded", "given up"],
)
def test_the_timer_settles_completed_runs_and_leaves_other_runs_to_the_engine(
    before: list[str],
    became: str,
    times: int,
    monkeypatch: pytest.MonkeyPatch,
    *,
    shadow: bool,
) -> None:
    monkeypatch.setattr(gates, "SETTLE_INTERVAL", 0.05)
    settled, ran = threading.Event(), list[str]()
    store = WatchedStore(lambda verb, _: settled.set() if verb == "settle" else None)

    def handler(job: Job) -> None:
        ran.append(job.event.id)
        if job.event.id == "id-1" and became == "dead":
            raise Reject("no")
        if job.event.id == "id-3":
            assert settled.wait(PATIENCE)

    with Consumer(store, rules=ruled(shadow=shadow), handler=handler) as consumer:
        assert statuses(consumer.process([call(1)] * len(before))) == before
        settled.clear()
        outcomes = consumer.process([call(1), call(2), call(3)])
        assert statuses(outcomes) == [became, "done", "done"]
        assert statuses(consumer.process([call(1)])) == [became]
    assert ran.count("id-1") == times


class TimerClock(threading.Condition):
    """The timer's own clock: each wait of the timer is noted, ends soon, and moves the clock."""

    now = 1_000.0

    def __init__(self, lock: Any, noted: list[Any]) -> None:
        super().__init__(lock)
        self.noted = noted

    def monotonic(self) -> float:
        return self.now

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.noted.append(timeout)
        if super().wait(0.001):
            return True
        self.now += timeout
        return False


def test_the_timer_sleeps_between_two_checks_and_sends_no_empty_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    noted: list[Any] = []
    asked: list[int] = []
    tend = Gate._tend

    def tended(gate: Gate, own: threading.Thread) -> None:
        noted.append("look")
        tend(gate, own)

    monkeypatch.setattr(Gate, "_tend", tended)
    store = WatchedStore(lambda verb, asks: asked.append(len(asks)) if verb == "settle" else None)
    with Consumer(store, rules=ruled(), handler=lambda _: until(lambda: len(noted) > 12)) as one:
        gate = one.runtime.gate
        gate._wake = TimerClock(gate._lock, noted)
        monkeypatch.setattr(gates, "time", gate._wake)
        one.process([call(1), call(2)])
    # Nothing is due, the sleep, and the check.
    assert noted[:12] == ["look", gates.SETTLE_INTERVAL, "look"] * 4
    assert asked
    assert all(asked)


def test_a_lease_is_renewed_when_a_third_of_it_has_passed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gates, "time", SimpleNamespace(monotonic=lambda: 1_000.0))
    dues: list[float] = []

    def handler(_: Job) -> None:
        gate = consumer.runtime.gate
        (leased,) = gate._leased
        dues.extend((leased.due, gate._due_again(leased, 1_000.0)))

    with Consumer("memory:", rules=ruled(lease=60), handler=handler) as consumer:
        assert statuses(consumer.process([call(1)])) == ["done"]
    assert dues == [1_020.0, 1_020.0]


def test_the_timer_renews_no_more_leases_in_one_call_than_the_limit_of_items(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The clock of a machine that has just started is less than the time until a lease is due.
    monkeypatch.setattr(gates, "time", SimpleNamespace(monotonic=lambda: 1_000.0))
    monkeypatch.setattr(gates, "MOST_ITEMS", 2)
    asked: list[int] = []
    store = WatchedStore(lambda _, some: asked.append(len(some)))
    with Consumer(store, rules=ruled(), handler=lambda _: None) as consumer:
        gate: Any = consumer.runtime.gate
        gate._timer = threading.current_thread()
        for many in (1, 1, 1, 3, 1):
            plans: list[Any] = consumer.runtime.plan([call(number) for number in range(many)])
            leased = gates.LeasedRuns([Run(plan, plan.claim, token=1) for plan in plans])
            leased.due = len(gate._leased)
            gate._leased.add(leased)
        for _ in range(4):
            gate._tend(gate._timer)
    # A batch of more events is not divided.
    assert asked == [2, 1, 3, 1]


def timer_of(consumer: Consumer) -> threading.Thread:
    gate: Any = consumer.runtime.gate
    with consumer.once(call(0)):
        timer = gate._timer
        until(lambda: gate._wake._waiters)
    assert isinstance(timer, threading.Thread)
    return timer


def test_the_timer_is_a_daemon_thread_and_ends_with_its_consumer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gates, "TIMER_IDLE", 10 * PATIENCE)
    consumer = Consumer("memory:", rules=ruled(), handler=lambda _: None)
    timer = timer_of(consumer)
    assert timer.daemon
    # A batch of two events is due earlier: the same timer renews its leases.
    consumer.process([call(1), call(2)])
    assert consumer.runtime.gate._timer is timer
    consumer.close()
    timer.join(PATIENCE)
    assert not timer.is_alive()


def test_the_timer_of_a_consumer_that_is_not_closed_ends_by_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gates, "TIMER_IDLE", 0.01)
    consumer = Consumer("memory:", rules=ruled(lease=0.03))
    timer = timer_of(consumer)
    timer.join(PATIENCE)
    assert not timer.is_alive()


def test_a_sleeping_timer_keeps_nothing_of_a_batch_that_has_ended() -> None:
    """A batch may have large events, results and tracebacks, and the sleep may last a minute."""

    class Large:
        """A value whose deletion can be observed."""

    held: list[ReferenceType[Large]] = []

    def fails(_: Job) -> None:
        large = Large()
        held.append(ref(large))
        # The timer has looked at this batch, and sleeps.
        until(lambda: consumer.runtime.gate._wake._waiters)  # type: ignore[attr-defined]
        raise ValueError("no line")

    with Consumer(MemoryStore(), rules=ruled(lease=3600), handler=fails) as consumer:
        assert statuses(consumer.process([call(1)])) == ["failed"]
        gc.collect()
        assert [one() for one in held] == [None]


def test_a_stopped_timer_has_no_time_for_its_next_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gates, "TIMER_IDLE", 0.01)
    gate = Gate(MemoryStore())
    gate._tend(threading.current_thread())
    assert gate._timer_due == inf


def test_the_leases_of_runs_are_renewed_after_their_consumer_is_closed() -> None:
    """The runs of another thread, for example, which `close` does not wait for."""
    renewed: list[str] = []

    def look(verb: str, some: Sequence[Any]) -> None:
        if verb == "settle":
            renewed.append(some[0].action)

    def handler(_: Job) -> None:
        consumer.close()
        renewed.clear()
        until(lambda: renewed.count("extend") > 1)

    consumer = Consumer(WatchedStore(look), rules=ruled(lease=0.3), handler=handler)
    assert statuses(consumer.process([call(0)])) == ["done"]


def test_a_timer_that_ends_late_does_not_stop_the_next_timer() -> None:
    under_way, go = threading.Event(), threading.Event()

    def look(verb: str, _: object) -> None:
        if verb == "settle" and not under_way.is_set():
            under_way.set()
            assert go.wait(PATIENCE)

    consumer = Consumer(WatchedStore(look), rules=ruled(lease=0.03), handler=lambda _: None)
    gate: Any = consumer.runtime.gate
    plan: Any = consumer.runtime.plan([call(0)])[0]
    leased = gates.LeasedRuns([Run(plan, plan.claim, token=1)])
    gate.renew(leased)
    assert under_way.wait(PATIENCE)
    ended = gate._timer
    gate.let_go(leased, [])
    consumer.close()
    with consumer.once(call(1)):
        timer = gate._timer
        go.set()
        ended.join(PATIENCE)
        assert gate._timer is timer
        assert timer.is_alive()
    consumer.close()


@pytest.mark.parametrize("moment", ["looks when to wake", "ends"])
def test_a_batch_that_begins_while_the_timer_finds_none_is_renewed(
    moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = moment == "ends"
    monkeypatch.setattr(gates, "TIMER_IDLE", 0.01 if ends else PATIENCE)
    looked_after = threading.Event()
    store = WatchedStore(lambda verb, _: looked_after.set() if verb == "settle" else None)
    consumer = Consumer(store, rules=ruled(lease=0.03), handler=lambda _: None)
    gate: Any = consumer.runtime.gate
    plan: Any = consumer.runtime.plan([call(1)])[0]
    leased = gates.LeasedRuns([Run(plan, plan.claim, token=1)])
    renews = threading.Thread(target=gate.renew, args=[leased])

    def comes() -> None:
        if renews.ident is None:
            renews.start()
            renews.join(0.2)

    class Leased(set[Any]):
        """A batch comes when the timer has seen that there is none."""

        times = 0

        def __iter__(self) -> Any:
            self.times += 1
            seen = [*super().__iter__()]
            # The first check is for the batches that are due now.
            if self.times == 2 and not ends:
                comes()
            return iter(seen)

        def __bool__(self) -> bool:
            some = len(self) > 0
            if not some:
                comes()
            return some

    gate._leased = Leased()
    with gate._lock:
        gate._start_or_wake(0.0)
    assert looked_after.wait(PATIENCE)
    renews.join(PATIENCE)
    gate.let_go(leased, [])
    consumer.close()


def test_the_timer_renews_finished_runs_until_they_are_settled_or_may_be_committed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The clock of a machine that has just started is less than the time until a lease is due.
    monkeypatch.setattr(gates, "time", SimpleNamespace(monotonic=lambda: 1_000.0))
    told: list[tuple[str, bytes]] = []

    def keep(_: str, asked: Sequence[Settlement]) -> list[str]:
        told.extend((one.action, one.claim.key) for one in asked)
        return ["fenced"] * len(asked)

    with Consumer(WatchedStore(keep), rules=ruled(), handler=lambda _: None) as consumer:
        plans: list[Any] = consumer.runtime.plan([call(number) for number in range(6)])
        runs = [Run(plan, plan.claim, token=1, finished=True) for plan in plans]
        raised, returned, rolled_back, committing, settled, taken = runs
        raised.error = rolled_back.error = ValueError()
        rolled_back.in_transaction = committing.in_transaction = True
        settled.kept = "kept"
        leased = gates.LeasedRuns(runs)
        leased.finished.append(taken)
        leased.due = 0.0
        gate: Any = consumer.runtime.gate
        gate._leased.add(leased)
        gate._timer = threading.current_thread()
        gate._tend(gate._timer)
    renewed = [("extend", run.claim.key) for run in (raised, returned, rolled_back)]
    assert told == [*renewed, ("complete", taken.claim.key)]
    assert not any(run.lost for run in runs)


def test_the_timer_goes_on_after_an_unexpected_exception_of_the_store() -> None:
    renewed: list[str] = []

    def look(verb: str, asked: Any) -> None:
        if verb == "settle" and asked[0].action == "extend":
            renewed.append("asked")
            if len(renewed) == 1:
                raise ZeroDivisionError

    def handler(_: Job) -> None:
        until(lambda: len(renewed) > 1)

    with Consumer(WatchedStore(look), rules=ruled(lease=0.3), handler=handler) as consumer:
        assert statuses(consumer.process([call(0)])) == ["done"]
