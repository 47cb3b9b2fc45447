"""Slots: threads that run plain handlers, one at a time, and the calls around handlers; no more
threads than are needed."""

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

ALONE_FOR: Final = 0.001
"""Seconds for which one thread alone does all the work. While it makes no progress for longer, the
number of threads is doubled again and again: slow handlers soon run side by side, and quick
handlers, which cost less than the wake-up of a thread, have few threads."""

FEW_BEGUN: Final = 4
"""Fewer handlers than this begun between two looks: the handlers are slow."""

LONGEST_PAUSE_FACTOR: Final = 4
"""The longest pause between two looks while handlers are quick, as a multiple of `ALONE_FOR`."""

IDLE_LOOKS: Final = 25
"""Looks that find nothing to do before the watcher sleeps."""

CALL_THREADS: Final = 3
"""Threads beside the slots: they claim, settle and keep dead letters while all slots are taken."""


class Later:
    """A call that is made later, unless `Slots.forget` cancels it."""

    __slots__ = ("call",)

    def __init__(self, call: Callable[[], None]) -> None:
        self.call: Callable[[], None] | None = call
        """None once the call is made or cancelled."""


class Slots(Generic[Item]):
    """The threads, each started when it is first needed, and the work that waits for one."""

    def __init__(self, most: int, work: Callable[[Item], None]) -> None:
        self._most = most
        self._work = work
        self._lock = threading.Lock()
        self._some = threading.Condition(self._lock)
        self._watch = threading.Condition(self._lock)
        self._waiting: deque[Item] = deque()
        self._nested: deque[Callable[[], None]] = deque()
        """Calls that a handler waits for while it holds a slot: they go before all others."""
        self._calls: deque[Callable[[], None]] = deque()
        self._later: list[tuple[float, int, Later]] = []
        """Calls by the moment they are due and a number of their own."""
        self._forgotten = 0
        """The number of cancelled calls in `_later`."""
        self._numbers = count()
        self._threads: set[threading.Thread] = set()
        self._running = 0
        """Threads that run handlers."""
        self._idle = 0
        self._called = 0
        """Idle threads that were notified and are not awake yet."""
        self._taken = 0
        self._moved = 0.0
        """The number of handlers begun, and when a thread last took work (monotonic clock)."""
        self._watcher: threading.Thread | None = None
        self._sleeps = False
        """Whether the watcher must be woken."""
        self._closed = False
        self._closing = threading.Event()
        """Ends the watcher's pause when the slots are closed."""

    def put(self, items: Sequence[Item], *, nested: bool = False) -> Sequence[Item]:
        """Run these items; `nested` is for items that a handler waits for, which holds a slot
        itself. Return the items that have no thread, because none can be started."""
        with self._lock:
            if not nested:
                self._waiting.extend(items)
                try:
                    self._provide_thread()
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
        """Make this call soon, also while all slots are taken. RuntimeError: the call is not made,
        because no thread can be started."""
        with self._lock:
            if nested:
                self._nest(call)
                return
            self._calls.append(call)
            try:
                self._provide_thread()
            except RuntimeError:
                self._calls.pop()
                raise

    def call_later(self, seconds: float, call: Callable[[], None]) -> Later:
        """Make this call after so many seconds; `forget` takes the result. Raises as `call`."""
        with self._lock:
            self._watched()
            later = Later(call)
            heapq.heappush(self._later, (time.monotonic() + seconds, next(self._numbers), later))
            return later

    def forget(self, later: Later) -> None:
        """Cancel this call; without effect if it was made."""
        with self._lock:
            if later.call is None:
                return
            later.call = None
            self._forgotten += 1
            # Removed many at a time: removing each by itself would take quadratic time.
            if 2 * self._forgotten > len(self._later):
                self._later = [one for one in self._later if one[2].call is not None]
                heapq.heapify(self._later)
                self._forgotten = 0
                # The watcher may sleep until this call is due.
                self._watch.notify()

    def clear(self) -> list[Item]:
        """Take back the items that have not begun."""
        with self._lock:
            waiting = list(self._waiting)
            self._waiting.clear()
            return waiting

    def close(self) -> None:
        """Do the work that waits, and end the threads."""
        with self._lock:
            self._closed = True
            self._closing.set()
            # All at once, because the watcher may end before it adds threads.
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

    def _provide_thread(self) -> None:
        """Make sure that a thread takes the work that waits; the caller holds the lock."""
        try:
            if threading.current_thread() in self._threads:
                # This thread takes the work itself, unless a handler delays it before.
                self._watched()
                return
            awake = len(self._threads) - self._idle + self._called
            if not awake or time.monotonic() - self._moved > ALONE_FOR:
                self._call(1)
            if awake or len(self._waiting) + len(self._calls) > 1:
                self._watched()
        except RuntimeError:
            # No thread can be started. The living threads are all awake, and take the work.
            if not self._threads:
                raise

    def _call(self, many: int) -> None:
        awake = min(many, self._idle - self._called)
        if awake > 0:
            self._called += awake
            self._some.notify(awake)
        most = self._most + CALL_THREADS
        for _ in range(min(many - max(0, awake), most - len(self._threads))):
            self._start()

    def _start(self) -> None:
        thread = threading.Thread(target=self._slot, name="eventonce-slot", daemon=True)
        self._threads.add(thread)
        try:
            thread.start()
        except BaseException:
            # If a signal interrupted only the wait for its start, the thread adds itself.
            self._threads.discard(thread)
            raise

    def _slot(self) -> None:
        with self._lock:
            self._threads.add(threading.current_thread())
        while (work := self._next()) is not None:
            work()
            # The call may hold a batch that has ended, and the thread may be idle for long.
            del work

    def _next(self) -> Callable[[], None] | None:
        """Wait for the next work of this thread; None if the thread is not needed."""
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
                if self._closed or len(self._threads) > self._most + CALL_THREADS:
                    self._threads.discard(threading.current_thread())
                    return None
                self._idle += 1
                self._some.wait()
                self._idle -= 1
                self._called = max(0, self._called - 1)

    def _one_by_one(self) -> None:
        """Run the items that wait. Without the lock, which costs as much as a quick handler."""
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
                    # This thread does nested work first, which may take long.
                    with suppress(RuntimeError):
                        self._watched()

    def _watched(self) -> None:
        """Start or wake the watcher, which adds threads while work waits for a slow handler."""
        if self._watcher is None:
            watcher = threading.Thread(target=self._look_on, name="eventonce-slots", daemon=True)
            watcher.start()
            self._watcher = watcher
        elif self._sleeps:
            self._sleeps = False
            self._watch.notify()

    def _look_on(self) -> None:
        looks, pause, taken = 0, ALONE_FOR, -1
        while True:
            with self._lock:
                self._bring_due()
                if not self._calls and (not self._waiting or self._running >= self._most):
                    looks += 1
                    if not self._rests(looks):
                        return
                    # After a sleep: the wake-up means new work, so look again soon.
                    soon = looks > IDLE_LOOKS
                    looks = 0 if soon else looks
                else:
                    looks, soon = 0, self._taken - taken < FEW_BEGUN
                    if soon and taken >= 0:
                        with suppress(RuntimeError):
                            self._call_more()
                pause = ALONE_FOR if soon else min(pause * 2, ALONE_FOR * LONGEST_PAUSE_FACTOR)
                taken = self._taken
            if self._closing.wait(pause):
                # Once: closed slots may still wait for their threads for long.
                self._closing.clear()

    def _rests(self, looks: int) -> bool:
        """Sleep if there has been no work for another thread for a while; return whether to look
        again."""
        # A forgotten call may be due never, and stay here when those before it were made.
        if self._closed and len(self._later) == self._forgotten:
            self._watcher = None
            return False
        if self._closed or looks > IDLE_LOOKS:
            self._sleeps = True
            left = self._later[0][0] - time.monotonic() if self._later else None
            # 60 s at the most: a wait for a run may be infinite, which `wait` does not accept.
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
