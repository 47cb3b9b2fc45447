"""Slots: threads that run one plain handler at a time, and what is to be done around handlers; no
more of them than are needed."""

from __future__ import annotations

import heapq
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Final, Generic, TypeVar

Item = TypeVar("Item")

QUICK: Final = 0.001
"""Seconds in which one thread alone does what waits, one after the other. Where it is held up for
longer the threads are doubled again and again: slow handlers soon run side by side, and quick ones,
which cost less than a thread's wake-up, have few threads."""

FEW: Final = 4
"""Handlers that end between two looks where they are no quick ones."""

SELDOM: Final = 4
"""Times `QUICK` between two looks where all is quick; so many of them without anything to see
before nobody looks any more."""
LOOKS: Final = 25

CALLS: Final = 3
"""Threads more than run handlers: to claim, to settle and to keep dead letters while all do."""


class Later:
    """A call that is made later, unless it is forgotten."""

    __slots__ = ("call",)

    def __init__(self, call: Callable[[], None]) -> None:
        self.call: Callable[[], None] | None = call
        """None once it is made or forgotten."""


class Slots(Generic[Item]):
    """Threads, started when first needed."""

    def __init__(self, most: int, work: Callable[[Item], None]) -> None:
        self._most = most
        self._work = work
        self._lock = threading.Lock()
        self._some = threading.Condition(self._lock)
        self._watch = threading.Condition(self._lock)
        self._waiting: deque[Item] = deque()
        self._nested: deque[Callable[[], None]] = deque()
        """What handlers wait for that hold a slot: it goes before all others."""
        self._calls: deque[Callable[[], None]] = deque()
        self._later: list[tuple[float, int, Later]] = []
        """Calls by the moment they are due and a number of their own."""
        self._forgotten = 0
        """So many of them are not made any more."""
        self._numbers = count()
        self._threads: set[threading.Thread] = set()
        self._running = 0
        """Threads that run handlers."""
        self._idle = 0
        self._called = 0
        """Idle threads that were called and have not come yet."""
        self._taken = 0
        self._moved = 0.0
        """How many were begun, and when the last of them was, by the monotonic clock."""
        self._watcher: threading.Thread | None = None
        self._sleeps = False
        """Whether the watcher must be woken."""
        self._closed = False
        self._ending = threading.Lock()
        self._ending.acquire()

    @property
    def busy(self) -> int:
        """Threads that run handlers."""
        return self._running

    def put(self, items: Sequence[Item], *, nested: bool = False) -> Sequence[Item]:
        """Run these; `nested` is for those whom a handler waits for, which holds a slot itself.
        Gives back those that have no thread, because none can be started."""
        with self._lock:
            if not nested:
                self._waiting.extend(items)
                try:
                    self._see_to_it()
                except RuntimeError:
                    for _ in items:
                        self._waiting.pop()
                    return items
                return ()
            left = list(items)
            with suppress(RuntimeError):
                while left:
                    self._nest(partial(self._work, left[0]))
                    del left[0]
            return left

    def call(self, call: Callable[[], None], *, nested: bool = False) -> None:
        """Make this call soon: after the handlers that a thread has begun with, and whether or not
        all slots are taken. RuntimeError: it is not made, for no thread can be started."""
        with self._lock:
            if nested:
                self._nest(call)
                return
            self._calls.append(call)
            try:
                self._see_to_it()
            except RuntimeError:
                self._calls.pop()
                raise

    def call_later(self, seconds: float, call: Callable[[], None]) -> Later:
        """Make this call after so many seconds; what it is forgotten by. RuntimeError: as above."""
        with self._lock:
            self._watched()
            later = Later(call)
            heapq.heappush(self._later, (time.monotonic() + seconds, next(self._numbers), later))
            return later

    def forget(self, later: Later) -> None:
        """Do not make this call any more; nothing happens if it was made."""
        with self._lock:
            if later.call is None:
                return
            later.call = None
            self._forgotten += 1
            # Taken out by the many: to do it one by one costs the square.
            if 2 * self._forgotten > len(self._later):
                self._later = [one for one in self._later if one[2].call is not None]
                heapq.heapify(self._later)
                self._forgotten = 0
                # Perhaps it was all that was waited for.
                self._watch.notify()

    def clear(self) -> list[Item]:
        """Take back what has not begun."""
        with self._lock:
            waiting = list(self._waiting)
            self._waiting.clear()
            return waiting

    def close(self) -> None:
        """Do what waits, and end the threads."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._ending.release()
            # All at once, for nobody looks on any more.
            with suppress(RuntimeError):
                self._call(len(self._waiting) + len(self._calls))
            self._some.notify_all()
            self._watch.notify_all()
        while True:
            with self._lock:
                threads = self._threads | ({self._watcher} if self._watcher else set())
            threads.discard(threading.current_thread())
            if not threads:
                return
            for thread in threads:
                thread.join()

    def _nest(self, call: Callable[[], None]) -> None:
        if self._idle <= self._called:
            self._start()
        self._nested.append(call)
        if self._idle > self._called:
            self._call(1)

    def _see_to_it(self) -> None:
        """Something waits: see to it that a thread comes to it; the lock is the caller's."""
        try:
            if threading.current_thread() in self._threads:
                # It comes to it itself; unless it is held up before.
                self._watched()
                return
            awake = len(self._threads) - self._idle + self._called
            if not awake or time.monotonic() - self._moved > QUICK:
                self._call(1)
            if awake or len(self._waiting) + len(self._calls) > 1:
                self._watched()
        except RuntimeError:
            # No thread can be started. Those that live are all awake, and come to it.
            if not self._threads:
                raise

    def _call(self, many: int) -> None:
        awake = min(many, self._idle - self._called)
        if awake > 0:
            self._called += awake
            self._some.notify(awake)
        most = self._most + CALLS
        for _ in range(min(many - max(0, awake), most - len(self._threads))):
            self._start()

    def _start(self) -> None:
        thread = threading.Thread(target=self._slot, name="eventonce-slot", daemon=True)
        self._threads.add(thread)
        try:
            thread.start()
        except BaseException:
            # If a signal interrupted no more than the wait for its start, it adds itself.
            self._threads.discard(thread)
            raise

    def _slot(self) -> None:
        with self._lock:
            self._threads.add(threading.current_thread())
        while (work := self._next()) is not None:
            work()

    def _next(self) -> Callable[[], None] | None:
        """What this thread does next, once there is something; None if it is not needed."""
        with self._lock:
            while True:
                self._moved = time.monotonic()
                if self._nested:
                    return self._nested.popleft()
                if self._calls:
                    return self._calls.popleft()
                if self._waiting and self._running < self._most:
                    self._running += 1
                    return self._one_by_one
                if self._closed or len(self._threads) > self._most + CALLS:
                    self._threads.discard(threading.current_thread())
                    return None
                self._idle += 1
                self._some.wait()
                self._idle -= 1
                self._called = max(0, self._called - 1)

    def _one_by_one(self) -> None:
        """Run what waits. Without the lock, for it costs as much as a quick handler."""
        try:
            while self._waiting and not self._nested:
                try:
                    item = self._waiting.popleft()
                except IndexError:
                    return  # another thread was first
                self._taken += 1
                self._moved = time.monotonic()
                self._work(item)
        finally:
            with self._lock:
                self._running -= 1
                if self._waiting:
                    # It has something more urgent to do, and that may take long.
                    with suppress(RuntimeError):
                        self._watched()

    def _watched(self) -> None:
        """See to it that nothing waits for a slow handler while threads are to be had."""
        if self._watcher is None:
            watcher = threading.Thread(target=self._look_on, name="eventonce-slots", daemon=True)
            watcher.start()
            self._watcher = watcher
        elif self._sleeps:
            self._sleeps = False
            self._watch.notify()

    def _look_on(self) -> None:
        looks, pause, taken = 0, QUICK, -1
        while True:
            with self._lock:
                self._bring_due()
                if not self._calls and (not self._waiting or self._running >= self._most):
                    looks += 1
                    if not self._rests(looks):
                        return
                    # Whoever woke it has brought something.
                    soon = looks > LOOKS
                    looks = 0 if soon else looks
                else:
                    looks, soon = 0, self._taken - taken < FEW
                    if soon and taken >= 0:
                        with suppress(RuntimeError):
                            self._call_more()
                pause = QUICK if soon else min(pause * 2, QUICK * SELDOM)
                taken = self._taken
            self._ending.acquire(timeout=pause)

    def _rests(self, looks: int) -> bool:
        """Nothing waits that another thread could do: sleep if that has been so for a while;
        whether to look on."""
        if self._closed and not self._later:
            self._watcher = None
            return False
        if self._closed or looks > LOOKS:
            self._sleeps = True
            left = self._later[0][0] - time.monotonic() if self._later else None
            # A run without end is waited for without end; nobody sleeps that long.
            self._watch.wait(None if left is None else min(max(0.0, left), 60.0))
            self._sleeps = False
        return True

    def _bring_due(self) -> None:
        now = time.monotonic()
        while self._later and self._later[0][0] <= now:
            later = heapq.heappop(self._later)[2]
            if later.call is None:
                self._forgotten -= 1
                continue
            self._calls.append(later.call)
            later.call = None
            with suppress(RuntimeError):
                self._call(1)

    def _call_more(self) -> None:
        free = min(len(self._waiting), self._most - self._running, max(1, self._running))
        self._call(max(free, 1 if self._calls else 0))
