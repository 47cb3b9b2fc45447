"""A slow handler keeps none waiting that were taken with it, while other hands are idle."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from eventonce import Consumer, Reject
from eventonce.stores.memory import MemoryStore
from eventonce.types import Job
from eventonce.worker.desk import Desk
from eventonce.worker.line import Line
from eventonce.worker.pace import Pace
from tests.unit.test_worker_whole import PATIENCE, StoreAdmin, _event, _until, _working


def _line(run: Any, count: int = 3) -> tuple[Line, list[Any]]:
    finished: list[Any] = []
    return Line(list(range(count)), finished, run), finished  # type: ignore[arg-type]


def test_quick_events_taken_with_a_slow_one_run_beside_it() -> None:
    go, ran = threading.Event(), set[str]()
    begun = threading.Event()

    def handler(job: Job) -> None:
        if job.event.id == "100":
            begun.set()
            assert go.wait(PATIENCE)
        ran.add(job.event.id)

    source = StoreAdmin()
    source.waiting = [_event(number) for number in range(60)]
    consumer = Consumer(MemoryStore(), handler=handler)
    with _working(consumer, source):
        _until(lambda: len(source.acknowledged) == 60)
        source.waiting = [_event(number) for number in range(100, 110)]
        assert begun.wait(PATIENCE)
        _until(lambda: {str(number) for number in range(101, 110)} <= ran)
        assert "100" not in ran
        go.set()
        _until(lambda: len(source.acknowledged) == 70)


def test_a_line_is_closed_only_when_nobody_is_at_it() -> None:
    go, begun = threading.Event(), threading.Event()

    def run(task: Any) -> None:
        if task == 0:
            begun.set()
            assert go.wait(PATIENCE)

    line, finished = _line(run)
    helper = threading.Thread(target=line.help)
    helper.start()
    assert begun.wait(PATIENCE)
    line.work()
    assert finished == [1, 2]
    closing = threading.Thread(target=line.close)
    closing.start()
    closing.join(0.05)
    assert closing.is_alive()
    go.set()
    closing.join(PATIENCE)
    assert finished == [1, 2, 0]
    helper.join(PATIENCE)


def test_what_stops_a_helper_is_raised_where_the_line_was_taken() -> None:
    def run(_: Any) -> None:
        raise SystemExit(3)

    line, finished = _line(run)
    line.help()
    line.work()
    with pytest.raises(SystemExit):
        line.close()
    assert not finished


def test_what_has_returned_after_a_while_is_settled_unless_somebody_helps() -> None:
    line, finished = _line(lambda _: None)
    line.work(until=0.0)
    assert (finished, len(line)) == ([0], 2)
    go, begun = threading.Event(), threading.Event()

    def run(task: Any) -> None:
        if task == 0:
            begun.set()
            assert go.wait(PATIENCE)

    line, finished = _line(run)
    helper = threading.Thread(target=line.help)
    helper.start()
    assert begun.wait(PATIENCE)
    line.work(until=0.0)
    assert finished == [1, 2]
    go.set()
    helper.join(PATIENCE)


def test_a_failure_among_many_is_settled_before_they_have_all_run() -> None:
    """Its letter must not wait for those behind it, nor its lease run out meanwhile."""
    slow, store, told = threading.Event(), MemoryStore(), list[bool]()

    def handler(job: Job) -> None:
        number = int(job.event.id)
        if number == 100:
            raise Reject("no")
        if number > 100:
            slow.wait(1.5)
        if number == 109:
            told.append(bool(list(store.letters())))

    source = StoreAdmin()
    source.waiting = [_event(number) for number in range(60)]
    consumer = Consumer(store, handler=handler)
    with _working(consumer, source, hands=1):
        _until(lambda: len(source.acknowledged) == 60)
        source.waiting = [_event(number) for number in range(100, 110)]
        _until(lambda: list(store.letters()))
        slow.set()
        _until(lambda: len(source.acknowledged) == 70)
    assert told == [True]


def test_hands_are_called_once_a_while_and_only_where_some_wait() -> None:
    desk = Desk(Pace(2, 1, side_by_side=False))
    line, _ = _line(lambda _: None)
    desk.lay_open(line)
    desk.call_help(before=0.0)
    assert not desk._calls
    for _ in range(2):
        desk.call_help(before=float("inf"))
        assert list(desk._calls) == [line]
    assert desk.take() is line
    line.work()
    desk.call_help(before=float("inf"))
    assert not desk._calls
    desk.take_away(line)
    desk.close()
    assert desk.take() is None


def test_an_ending_worker_works_off_what_it_has_begun() -> None:
    desk = Desk(Pace(2, 1, side_by_side=False))
    line, _ = _line(lambda _: None)
    desk.lay_open(line)
    desk.close()
    assert desk.take() is line
    assert desk.take() is None
