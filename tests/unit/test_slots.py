"""Slots: threads wake and end as they are needed, and every waiting item is run once."""

from __future__ import annotations

import heapq
import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from math import inf
from typing import Any
from weakref import ref

import pytest

from eventonce.runtime.slots import ALONE_FOR, CALL_THREADS, Slots
from tests.helpers import PATIENCE, until

MOST = 2


class Work:
    """The finished items; an item with a name of `slow` waits until `together` run at once."""

    def __init__(self, together: int = MOST) -> None:
        self.done: list[str] = []
        self._together = threading.Barrier(together)

    def __call__(self, item: str) -> None:
        if item.startswith("slow"):
            self._together.wait(PATIENCE)
        self.done.append(item)


@pytest.fixture
def work() -> Work:
    return Work()


@pytest.fixture
def slots(work: Work) -> Iterator[Slots[str]]:
    made = Slots[str](MOST, work)
    yield made
    with ThreadPoolExecutor() as pool:
        pool.submit(made.close).result(PATIENCE)
        # A second close does nothing.
        pool.submit(made.close).result(PATIENCE)
    assert made._threads == set()


def test_threads_that_wait_are_woken_however_often(slots: Slots[str], work: Work) -> None:
    for number in range(3 * (MOST + CALL_THREADS)):
        slots.put([f"slow {number} {at}" for at in range(MOST)])
        until(lambda number=number: len(work.done) == MOST * (number + 1))  # type: ignore[misc]
    assert len({*work.done}) == len(work.done)
    assert len(slots._threads) <= MOST + CALL_THREADS


def test_the_watcher_sleeps_when_all_items_are_done_and_wakes_for_a_later_call(
    slots: Slots[str], work: Work
) -> None:
    rings = threading.Event()
    for number in range(2):
        slots.put([f"slow {number} {at}" for at in range(MOST)])
        until(lambda: slots._sleeps)
    slots.call_later(0.3, rings.set)
    assert rings.wait(PATIENCE)
    assert len(work.done) == 2 * MOST


def test_threads_for_nested_items_end_when_they_are_not_needed() -> None:
    many = MOST + CALL_THREADS + 3
    work = Work(together=many)
    slots = Slots[str](MOST, work)
    slots.put([f"slow {number}" for number in range(many)], nested=True)
    until(lambda: len(work.done) == many)
    until(lambda: len(slots._threads) <= MOST + CALL_THREADS)
    slots.close()


def test_a_call_beside_a_slow_handler_does_not_wait_for_the_watcher(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Slots, "_watched", lambda _: None)
    slow, called = threading.Event(), threading.Event()

    def work(_: str) -> None:
        slow.wait()

    slots = Slots[str](MOST, work)
    try:
        slots.put(["slow"])
        until(lambda: slots._running and time.monotonic() - slots._moved > ALONE_FOR)
        slots.call(called.set)
        assert called.wait(PATIENCE)
    finally:
        slow.set()
        slots.close()


def test_an_item_that_another_thread_took_first_is_not_run_twice(
    slots: Slots[str], work: Work
) -> None:
    class Raced(deque[str]):
        """A queue from which another thread takes an item, and puts the item back."""

        times = 0

        def popleft(self) -> str:
            self.times += 1
            if self.times == 2:
                raise IndexError
            return super().popleft()

    slots._waiting = Raced()
    slots.put(["a", "b", "c"])
    until(lambda: len(work.done) == 3)
    assert sorted(work.done) == ["a", "b", "c"]


def test_forgotten_calls_leave_the_other_calls_in_their_order(slots: Slots[str]) -> None:
    later = [slots.call_later(hours * 3600, threading.Event().set) for hours in (1, 5, 4, 6, 7, 2)]
    try:
        for at in (0, 3, 4, 5):
            slots.forget(later[at])
        assert [one[2] for one in slots._later] == [later[2], later[1]]
    finally:
        for one in later:
            slots.forget(one)


def test_a_call_that_is_due_later_is_made_before_the_slots_close(slots: Slots[str]) -> None:
    rings = threading.Event()
    slots.call_later(0.1, rings.set)
    slots.close()
    assert rings.is_set()


def test_a_forgotten_call_that_is_never_due_does_not_delay_the_close() -> None:
    slots: Slots[str] = Slots(1, lambda _: None)
    made = threading.Event()
    never = slots.call_later(inf, made.clear)
    slots.call_later(0.01, made.set)
    slots.forget(never)
    assert made.wait(PATIENCE)
    closing = threading.Thread(target=slots.close, daemon=True)
    closing.start()
    closing.join(PATIENCE)
    assert not closing.is_alive()


def test_the_watcher_of_closed_slots_pauses_while_work_waits_for_a_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("eventonce.runtime.slots.ALONE_FOR", PATIENCE)
    go, looks = threading.Event(), list[int]()
    slots = Slots[str](MOST, Work())
    monkeypatch.setattr(slots, "_bring_due", lambda: looks.append(len(slots._calls)))

    def slow() -> None:
        go.wait()

    for number in range(MOST + CALL_THREADS + 1):
        slots.call(slow, nested=number < MOST + CALL_THREADS)
    until(lambda: looks)
    closing = threading.Thread(target=slots.close, daemon=True)
    closing.start()
    until(lambda: len(looks) > 1)
    closing.join(0.1)
    # One when the work came, and one when the slots were closed.
    assert looks == [1, 1]
    go.set()
    until(lambda: not slots._threads)
    slots._closing.set()
    closing.join(PATIENCE)
    assert not closing.is_alive()


def test_an_idle_thread_keeps_nothing_of_its_last_call(slots: Slots[str]) -> None:
    """A call may hold a batch, with large events, results and tracebacks."""
    large = Work()
    held, done = ref(large), large.done
    slots.call(partial(large, "item"))
    del large
    until(lambda: done)
    until(lambda: slots._idle == len(slots._threads))
    assert held() is None


def test_a_handler_may_close_the_slots_it_runs_in() -> None:
    closed = threading.Event()

    def close(_: str) -> None:
        own.close()
        closed.set()

    own = Slots[str](MOST, close)
    own.put(["a"])
    assert closed.wait(PATIENCE)


def test_many_forgotten_calls_are_removed_together(
    slots: Slots[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A heap that is built again for each forgotten call would cost quadratic time."""
    many, ordered = 1_000, list[int]()
    heapify = heapq.heapify

    def counted(heap: list[Any]) -> None:
        ordered.append(len(heap))
        heapify(heap)

    monkeypatch.setattr("eventonce.runtime.slots.heapq.heapify", counted)
    rings = threading.Event()
    calls = [slots.call_later(2 * PATIENCE + at, rings.set) for at in range(many)]
    for later in calls:
        slots.forget(later)
        # A second forget does nothing.
        slots.forget(later)
    assert slots._later == []
    assert sum(ordered) <= many
    soon = slots.call_later(0.01, rings.set)
    assert rings.wait(PATIENCE)
    # The call was made: it does not count as a forgotten call that still waits.
    slots.forget(soon)
    assert slots._forgotten == 0


def test_a_forgotten_call_among_others_is_not_made(slots: Slots[str]) -> None:
    made: list[int] = []
    calls = [slots.call_later(0.05, lambda at=at: made.append(at)) for at in range(5)]  # type: ignore[misc]
    slots.forget(calls[1])
    until(lambda: len(made) == 4)
    assert sorted(made) == [0, 2, 3, 4]
    until(lambda: not slots._later)
    assert slots._forgotten == 0
