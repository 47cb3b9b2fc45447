"""Slots: threads are woken and ended as they are needed, and whatever waits is done once."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from eventonce.runtime.slots import CALLS, Slots
from tests.helpers import PATIENCE, until

MOST = 2


class Work:
    """Notes what was done; of the slow ones so many must be at work at once."""

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
        # To close it twice is to close it.
        pool.submit(made.close).result(PATIENCE)
    assert made._threads == set()


def test_threads_that_wait_are_woken_however_often(slots: Slots[str], work: Work) -> None:
    for number in range(3 * (MOST + CALLS)):
        slots.put([f"slow {number} {at}" for at in range(MOST)])
        until(lambda number=number: len(work.done) == MOST * (number + 1))  # type: ignore[misc]
    assert len({*work.done}) == len(work.done)
    assert len(slots._threads) <= MOST + CALLS


def test_who_looks_on_sleeps_where_all_is_done_and_is_woken(slots: Slots[str], work: Work) -> None:
    rings = threading.Event()
    for number in range(2):
        slots.put([f"slow {number} {at}" for at in range(MOST)])
        until(lambda: slots._sleeps)
    slots.call_later(0.3, rings.set)
    assert rings.wait(PATIENCE)
    assert len(work.done) == 2 * MOST


def test_threads_for_what_handlers_wait_for_end_when_they_are_not_needed() -> None:
    many = MOST + CALLS + 3
    work = Work(together=many)
    slots = Slots[str](MOST, work)
    slots.put([f"slow {number}" for number in range(many)], nested=True)
    until(lambda: len(work.done) == many)
    until(lambda: len(slots._threads) <= MOST + CALLS)
    slots.close()


def test_what_another_thread_was_first_to_take_is_not_run_twice(
    slots: Slots[str], work: Work
) -> None:
    class Raced(deque[str]):
        """Another thread takes what was seen, and brings it back."""

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


def test_a_call_that_is_forgotten_leaves_the_others_in_their_order(slots: Slots[str]) -> None:
    later: list[Any] = [
        slots.call_later(hours * 3600, threading.Event().set) for hours in (1, 5, 2, 6, 7, 3)
    ]
    slots.forget(later[0])
    slots.forget(later[0])
    assert slots._later[0] is later[2]
    for one in later[1:]:
        slots.forget(one)


def test_what_is_due_later_is_done_before_the_end(slots: Slots[str]) -> None:
    rings = threading.Event()
    slots.call_later(0.1, rings.set)
    slots.close()
    assert rings.is_set()


def test_a_handler_may_close_the_slots_it_runs_in() -> None:
    closed = threading.Event()

    def close(_: str) -> None:
        own.close()
        closed.set()

    own = Slots[str](MOST, close)
    own.put(["a"])
    assert closed.wait(PATIENCE)
