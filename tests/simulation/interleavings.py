"""Threads whose every step is chosen: all interleavings of a few callers, with few preemptions.

The code under test is the real one. Its locks, conditions and events are exchanged for ones at
which a thread stops until it is its turn again; one runs at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

from tests.helpers import PATIENCE


class Stuck(AssertionError):
    """No thread can continue, and some have not ended."""


class Task:
    """A thread, and the condition that it waits for."""

    def __init__(self, number: int, work: Callable[[], None]) -> None:
        self.number = number
        self.ready: Callable[[], bool] = lambda: True
        self.turn = threading.Semaphore(0)
        self.ended = False
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, args=(work,), daemon=True)

    def _run(self, work: Callable[[], None]) -> None:
        assert self.turn.acquire(timeout=PATIENCE)
        try:
            work()
        except BaseException as error:  # noqa: BLE001  raised again by `run`
            self.error = error


class Schedule:
    """One interleaving: the thread that runs at each step, as far as it was chosen."""

    def __init__(self, chosen: Sequence[int]) -> None:
        self._chosen = chosen
        self._tasks: dict[int, Task] = {}
        self._stopped = threading.Semaphore(0)
        self.steps: list[tuple[int, list[int], bool]] = []
        """The thread that ran, the others that could have, and whether that would have been a
        preemption."""

    def run(self, works: Sequence[Callable[[], None]]) -> None:
        """Run these to their ends."""
        tasks = [Task(number, self._ending(work)) for number, work in enumerate(works)]
        for task in tasks:
            task.thread.start()
            self._tasks[task.thread.ident or 0] = task
        current = 0
        while left := [task for task in tasks if not task.ended]:
            able = [task.number for task in left if task.ready()]
            if not able:
                raise Stuck(f"{[task.number for task in left]} wait for ever")
            goes_on = current in able
            usual = current if goes_on else able[0]
            step = len(self.steps)
            current = self._chosen[step] if step < len(self._chosen) else usual
            self.steps.append((current, [one for one in able if one != usual], goes_on))
            tasks[current].turn.release()
            assert self._stopped.acquire(timeout=PATIENCE)
        for task in tasks:
            if task.error is not None:
                raise task.error

    def _ending(self, work: Callable[[], None]) -> Callable[[], None]:
        def to_its_end() -> None:
            try:
                work()
            finally:
                self._tasks[threading.get_ident()].ended = True
                self._stopped.release()

        return to_its_end

    def stop(self, ready: Callable[[], bool] = lambda: True) -> None:
        """Let other threads run, and return once `ready` is true and this thread has its turn."""
        task = self._tasks.get(threading.get_ident())
        if task is None:
            assert ready()
            return
        task.ready = ready
        self._stopped.release()
        assert task.turn.acquire(timeout=PATIENCE)
        task.ready = lambda: True

    def threading(self) -> SimpleNamespace:
        """The stand-in for the module of that name."""
        return SimpleNamespace(
            Lock=lambda: Lock(self),
            Condition=lambda lock: Condition(self, lock),
            Thread=threading.Thread,
            get_ident=threading.get_ident,
            current_thread=threading.current_thread,
        )


class Lock:
    """A lock at which a thread stops."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._held = False

    def acquire(self, timeout: float = -1) -> bool:
        self._schedule.stop(lambda: not self._held)
        self._held = True
        return True

    def release(self) -> None:
        if not self._held:
            raise RuntimeError
        self._held = False

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class Condition:
    """A condition whose waits end with the next call alone: no time passes."""

    def __init__(self, schedule: Schedule, lock: Lock) -> None:
        self._schedule, self._lock, self._calls = schedule, lock, 0

    def wait(self, timeout: float | None = None) -> bool:
        calls = self._calls
        self._lock.release()
        self._schedule.stop(lambda: self._calls > calls)
        self._lock.acquire()
        return True

    def notify_all(self) -> None:
        self._calls += 1


class Event:
    """An event that is waited for as long as it takes, unless the wait is but a moment."""

    def __init__(self, schedule: Schedule, moment: float) -> None:
        self._schedule, self._moment, self._is_set = schedule, moment, False

    def set(self) -> None:
        self._is_set = True

    def wait(self, seconds: float) -> bool:
        self._schedule.stop(lambda: self._is_set or seconds <= self._moment)
        return self._is_set


def interleavings(preemptions: int) -> Iterator[Schedule]:
    """Every schedule with no more preemptions than these; the caller runs it."""
    left: list[tuple[tuple[int, ...], int]] = [((), 0)]
    while left:
        chosen, spent = left.pop()
        schedule = Schedule(chosen)
        yield schedule
        steps: list[Any] = schedule.steps
        for step in range(len(chosen), len(steps)):
            _, others, preempts = steps[step]
            if spent + preempts <= preemptions:
                before = tuple(one for one, _, _ in steps[:step])
                left += [((*before, other), spent + preempts) for other in others]
