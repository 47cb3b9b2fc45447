"""A handler that runs for longer than its rule allows."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Sequence
from math import inf
from typing import Any

import pytest
from msgspec.structs import replace

from eventonce import Consumer, Job
from eventonce.core.engine import Wait
from eventonce.core.plan import Plan, Run
from eventonce.core.ports import Delivery
from eventonce.envelope import read
from eventonce.runtime.gate import LeasedRuns, is_overdue
from eventonce.runtime.running_batch import CopyWait, RunningBatch
from eventonce.stores.memory import MemoryStore
from eventonce.types import Settlement
from eventonce.worker import Worker, WorkerSettings
from tests.helpers import PATIENCE, WatchedStore, call, ruled, until
from tests.unit.test_worker_whole import InMemorySource


def test_an_async_handler_that_takes_too_long_is_cancelled_and_its_event_fails() -> None:
    ended: list[str] = []

    async def handler(job: Job) -> None:
        try:
            await asyncio.sleep(PATIENCE)
        finally:
            ended.append(job.event.id)

    with Consumer("memory:", rules=ruled(timeout="10ms"), handler=handler) as consumer:
        (outcome,) = consumer.process([call(1)])
        assert (outcome.status, ended) == ("failed", ["id-1"])
        assert "timeout" in outcome.reason


def test_a_timeout_error_that_the_handler_raises_is_reported_unchanged() -> None:
    async def handler(_: Job) -> None:
        raise TimeoutError("the CRM did not answer")

    with Consumer("memory:", rules=ruled(timeout="1h"), handler=handler) as consumer:
        (outcome,) = consumer.process([call(1)])
    assert outcome.reason == "TimeoutError: the CRM did not answer"


def test_the_lease_of_a_plain_handler_that_takes_too_long_is_renewed_no_longer(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The second run, which has to run alone, waits this long for the first.
    monkeypatch.setattr("eventonce.runtime.shared_process.ALONE_WAIT", 0.01)
    store, go, begun = MemoryStore(), threading.Event(), threading.Event()

    def handler(_: Job) -> None:
        begun.set()
        go.wait(PATIENCE)

    rule = ruled(timeout="1ms", lease=0.3)
    first = Consumer(store, rules=rule, handler=handler)
    outcomes: list[Any] = []
    with caplog.at_level(logging.WARNING):
        thread = threading.Thread(target=lambda: outcomes.extend(first.process([call(1)])))
        thread.start()
        assert begun.wait(PATIENCE)
        second = Consumer(store, rules=rule, handler=lambda _: None)
        end = time.monotonic() + PATIENCE
        while (status := second.process([call(1)])[0].status) != "done":
            assert status == "busy"
            assert time.monotonic() < end
            time.sleep(0.02)
        go.set()
        thread.join()
    assert [outcome.status for outcome in outcomes] == ["fenced"]
    assert "longer than the timeout of its rule, call" in caplog.text


def test_a_worker_whose_slots_are_all_stuck_is_not_ready() -> None:
    go = threading.Event()
    source = InMemorySource()
    consumer = Consumer(
        MemoryStore(), rules=ruled(timeout="1ms"), handler=lambda _: go.wait(PATIENCE) and None
    )
    worker = Worker(consumer, source, WorkerSettings(concurrency=1, drain=PATIENCE))
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    try:
        until(lambda: worker.state()["ready"])
        body = b'{"id": "1", "detail-type": "call", "detail": {"call": 1}}'
        source.waiting = [Delivery(body, since=time.monotonic(), held=time.monotonic())]
        until(lambda: worker.state()["overdue"] == 1)
        assert not worker.state()["ready"]
        assert worker.state()["oldest_seconds"] >= 0
        go.set()
        until(lambda: worker.state()["ready"])
    finally:
        go.set()
        worker.stop()
        thread.join(PATIENCE)
        consumer.close()


def test_copies_of_an_overdue_run_leave_their_places_to_other_events() -> None:
    go, begun = threading.Event(), threading.Event()

    def handler(job: Job) -> None:
        if job.event.id == "id-1":
            begun.set()
            go.wait(PATIENCE)

    def received(number: int) -> Delivery:
        return Delivery(call(number), since=time.monotonic(), held=time.monotonic())

    source = InMemorySource()
    rules = ruled(timeout="1ms", lease="1h")
    consumer = Consumer(MemoryStore(), rules=rules, handler=handler)
    worker = Worker(consumer, source, WorkerSettings(concurrency=3, drain=PATIENCE))
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    try:
        source.waiting = [received(1)]
        assert begun.wait(PATIENCE)
        copies, other = [received(1), received(1)], received(2)
        source.waiting = [*copies, other]
        until(lambda: len(source.postponed) == 2 and source.acknowledged)
        assert sorted(map(id, (one for one, _ in source.postponed))) == sorted(map(id, copies))
        assert source.acknowledged == [other]
    finally:
        go.set()
        worker.stop()
        thread.join(PATIENCE)
        consumer.close()


def test_a_copy_waits_for_a_run_in_time_and_not_for_an_overdue_run() -> None:
    go = threading.Event()
    consumer = Consumer(
        MemoryStore(), rules=ruled(timeout="1h"), handler=lambda _: go.wait(PATIENCE) and None
    )
    runtime = consumer.runtime
    thread = threading.Thread(target=consumer.process, args=([call(1)],), daemon=True)
    thread.start()
    until(lambda: [run for run in runtime.gate.held() if run.started])
    copy = RunningBatch(runtime, runtime.plan([call(1)]), CopyWait(here=inf))
    wanted = Wait([copy.runs[0].claim], 0)
    assert copy.wait(wanted, lambda: None) == 3600
    (run,) = runtime.gate.held()
    run.started -= 3601
    assert copy.wait(wanted, lambda: None) == 0
    go.set()
    thread.join(PATIENCE)
    consumer.close()


def test_an_event_whose_handler_has_not_begun_is_never_overdue() -> None:
    """The lease of a waiting event is renewed: only a handler that has begun can take too long."""
    with Consumer("memory:", rules=ruled(timeout="1s")) as consumer:
        plan = consumer.runtime.planner.plan(read(call(1)), 1)
    assert isinstance(plan, Plan)
    run = Run(plan, plan.claim)
    assert not is_overdue(run, 1_000_000.0)
    run.started = 1_000_000.0
    assert not is_overdue(run, 1_000_001.0)
    assert is_overdue(run, 1_000_001.5)


def test_the_timer_renews_runs_that_are_not_overdue_and_completes_finished_runs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told: list[tuple[str, bytes]] = []

    def keep(_: str, asked: Sequence[Settlement]) -> list[str]:
        told.extend((one.action, one.claim.key) for one in asked)
        return ["kept"] * len(asked)

    store = WatchedStore(keep)
    with Consumer(store, rules=ruled(timeout="1h"), handler=lambda _: None) as consumer:
        plans = consumer.runtime.plan([call(number) for number in range(4)])
        runs = [
            # Renewed long ago, by the clock of a machine that has just started, too.
            Run(plan, replace(plan.claim, lease=1), token=1, renewed=-inf)
            for plan in plans
            if isinstance(plan, Plan)
        ]
        overdue, unguarded, running, returned = runs
        overdue.started, unguarded.token, returned.finished = time.monotonic() - 3601, 0, True
        (leased := LeasedRuns(runs)).finished.append(returned)
        gate: Any = consumer.runtime.gate
        gate._leased.add(leased)
        gate._timer = threading.current_thread()
        for _ in range(2):
            leased.due = 0.0
            gate._tend(gate._timer)
            time.sleep(0.001)
    renewal = ("extend", running.claim.key)
    assert told == [renewal, ("complete", returned.claim.key), renewal]
    assert caplog.text.count("longer than the timeout of its rule") == 1
