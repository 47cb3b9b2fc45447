"""The state of workers on both databases: other processes see the leases that are held, and only
for as long as they are of use."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from eventonce import Consumer, Job
from eventonce.clock import wall_clock
from eventonce.history import History, Search, leases, recorder
from eventonce.history.leases import STATES_KEPT, WORKERS, WorkerState
from eventonce.history.story import moment
from eventonce.history.workers import notes, read_workers
from eventonce.runtime import background
from tests.helpers import PATIENCE, call, ruled, until


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decisions and states are written at once."""
    monkeypatch.setattr(background, "WRITE_INTERVAL", 0.01)
    monkeypatch.setattr(recorder, "REPORT_INTERVAL", 0.0)


def watched(history: History, handler: Any, **rule: Any) -> Consumer:
    made = Consumer("memory:", name="crm", rules=ruled(**rule), handler=handler)
    made.observers.append(history.observer(made, "sqs:calls", in_flight=lambda: 7))
    return made


@contextmanager
def running(history: History, *events: bytes, **rule: Any) -> Iterator[None]:
    """Handlers of these events that run until the block ends."""
    begun, over = threading.Semaphore(0), threading.Event()

    def handle(_: Job) -> None:
        begun.release()
        assert over.wait(PATIENCE)

    crm = watched(history, handle, **rule)
    threads = [threading.Thread(target=crm.process, args=([one],)) for one in events]
    for one in threads:
        one.start()

    try:
        for _ in events:
            assert begun.acquire(timeout=PATIENCE)
        yield
    finally:
        over.set()
        for one in threads:
            one.join(PATIENCE)


def state_of(reader: History, ready: Callable[[WorkerState], object]) -> WorkerState:
    """The only state in the history, once `ready` is true of it."""
    found: list[WorkerState] = []

    def told() -> bool:
        found[:] = reader.states()
        return len(found) == 1 and bool(ready(found[0]))

    until(told, lambda: found)
    return found[0]


def has_leases(many: int) -> Callable[[WorkerState], bool]:
    return lambda state: state.load.held == many


def rows_in(history: History) -> list[tuple[Any, ...]]:
    with history._tables() as tables:
        rows = tables._driver.rows(f"SELECT * FROM {WORKERS}")
        tables._driver.commit()
    return rows


def test_a_lease_is_visible_to_a_reader_while_it_is_held_and_shows_no_id(uri: str) -> None:
    event = call(1, id="event-4711", type="call.c-secret.event-4711", conversationId="c-secret")
    before = wall_clock()
    with History(uri, worker="w1") as history, History(uri, look=True) as reader:
        with running(history, event, lease="45s", match="*"):
            history.keep_up()
            state = state_of(reader, has_leases(1))
            (lease,) = state.load.leases
            assert (state.worker, state.consumer, state.channel) == ("w1", "crm", "sqs:calls")
            assert before <= state.started <= state.told <= wall_clock()
            assert (state.load.running, state.load.in_flight) == (1, 7)
            assert (lease.type, lease.rule, lease.attempt) == ("call.{id}.{id}", "call", 1)
            assert before <= lease.started <= wall_clock()
            assert lease.ends == lease.renewed + 45_000
            assert lease.condition == ""
            text = str(rows_in(reader))
            assert "secret" not in text
            assert "4711" not in text
        state_of(reader, has_leases(0))
        until(lambda: reader.find(Search()))
        (decision,) = reader.find(Search())
        assert lease.key == decision.key.hex()
    with History(uri, look=True) as reader:
        assert reader.states() == [], "a process that has ended tells nothing"


def test_of_many_leases_the_oldest_are_shown(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "MOST_LEASES", 2)
    events = [call(number) for number in range(3)]
    with History(uri, worker="w1") as history, running(history, *events):
        history.keep_up()
        state = state_of(history, has_leases(3))
        begins = [one.started for one in state.load.leases]
        assert len(begins) == 2
        assert begins == sorted(begins)
        assert notes(state, state.told) == [
            "Of 3 leases of w1, those of the 2 oldest runs are shown."
        ]


def test_a_run_is_shown_as_lost_overdue_or_unguarded(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/history.db"
    with History(uri) as history, running(history, *map(call, range(4)), timeout="1h"):
        (held,) = [one.held for one in history._watched.values()]
        assert held is not None
        lost, overdue, unguarded, _ = runs = held()
        lost.lost, token = True, unguarded.token
        overdue.started -= 7200
        unguarded.token = 0
        history.keep_up()
        state = state_of(history, has_leases(4))
        found = {it.key: it for it in state.load.leases}
        told = [found[run.claim.key.hex()] for run in runs]
        assert [it.condition for it in told] == ["lost", "overdue", "unguarded", ""]
        assert [bool(it.ends) for it in told] == [False, True, False, True]
        unguarded.token = token


def test_a_process_that_ends_while_a_handler_runs_is_no_longer_listed(uri: str) -> None:
    """Its runs are settled or freed as it ends, although their threads may still run."""
    history = History(uri, worker="w1")
    with running(history, call(1)):
        history.keep_up()
        state_of(history, has_leases(1))
        history.close()
        with History(uri, look=True) as reader:
            assert reader.states() == []


def test_a_process_that_stopped_reporting_is_noted_and_dropped_after_an_hour(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = History(uri, worker="w1")
    with running(history, call(1), lease="5m"):
        history.keep_up()
        told = [state_of(history, has_leases(1))]
        history.close()
    with History(uri) as killed, killed._tables() as tables:
        tables.states.tell(told)
    with History(uri, look=True) as reader:
        (state,) = reader.states()
        end = state.told + 5_000 + 5 * 60_000
        assert not notes(state, state.told + 20_000)
        (said,) = notes(state, state.told + 3 * 60_000)
        assert re.fullmatch(
            r"w1 was last heard of 3 minutes ago; if it was killed, its leases end by "
            rf"{moment(end)[11:19]}\.",
            said,
        )
        (said,) = notes(state, end + 60_000)
        assert "minutes ago; if it was killed, its leases ended by " in said
        known = [read_workers(reader, state.told + after) for after in (0, STATES_KEPT + 1)]
        assert [[one.name for one in some] for some in known] == [["w1"], []]
    with History(uri) as tidier:
        tidier.tidy()
        assert len(tidier.states()) == 1
        monkeypatch.setattr(recorder, "wall_clock", lambda: state.told + STATES_KEPT + 1)
        tidier.tidy()
        assert tidier.states() == []


@pytest.mark.parametrize("worker", ["", "a name of many"])
def test_the_child_of_a_fork_reports_and_removes_only_its_own_state(uri: str, worker: str) -> None:
    waits, ends = os.pipe()
    with History(uri, worker=worker) as history:
        watched(history, lambda _: None)
        history.keep_up()
        state_of(history, has_leases(0))
        forked = wall_clock()
        child = os.fork()
        if not child:
            try:
                history.keep_up()
                os.read(waits, 1)
                history.close()
                os._exit(0)
            finally:
                os._exit(1)
        try:
            until(lambda: len(history.states()) == 2, history.states)
            states = {one.process.rpartition(":")[2]: one for one in history.states()}
        finally:
            os.write(ends, b"x")
            status = os.waitpid(child, 0)[1]
            os.close(waits)
            os.close(ends)
        assert status == 0
        assert states.keys() == {str(os.getpid()), str(child)}
        assert states[str(os.getpid())].started <= forked <= states[str(child)].started
        (left,) = history.states()
        assert left.process == states[str(os.getpid())].process


def test_an_error_in_the_in_flight_count_does_not_end_the_background_thread(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def raises() -> int:
        raise RuntimeError("no answer")

    with History(f"sqlite:///{tmp_path}/history.db") as history:
        crm = Consumer("memory:", name="crm", rules=ruled(), handler=lambda _: None)
        crm.observers.append(history.observer(crm, in_flight=raises))
        history.keep_up()
        until(lambda: "no answer" in caplog.text)
        crm.process([call(1)])
        until(lambda: history.find(Search()))


def test_an_idle_worker_reports_its_state_without_leases(uri: str) -> None:
    with History(uri, worker="w1") as history:
        history.observer(Consumer("memory:", name="crm"), "http")
        history.keep_up()
        state = state_of(history, lambda _: True)
        assert state.load == leases.Load()
        (said,) = notes(state, state.told + 60_000)
        assert said == "w1 was last heard of 1 minute ago; it held no lease then."
        (worker,) = read_workers(history, wall_clock())
        assert (worker.events, worker.last, worker.held, worker.channels) == (0, 0, 0, ("http",))
