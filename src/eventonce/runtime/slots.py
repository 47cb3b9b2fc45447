"""Slots: threads that run one plain handler at a time, no more of them than are needed."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, Generic, TypeVar

Item = TypeVar("Item")

QUICK: Final = 0.001
"""Seconds in which one thread alone runs what waits, one after the other. While some still wait the
threads are doubled again and again: slow handlers soon run side by side, and quick ones, which cost
less than a thread's wake-up, have few threads."""


class Slots(Generic[Item]):
    """Threads, started when first needed."""

    def __init__(self, most: int, work: Callable[[Item], None]) -> None:
        self._most = most
        self._work = work
        self._lock = threading.Lock()
        self._some = threading.Condition(self._lock)
        self._watch = threading.Condition(self._lock)
        self._waiting: deque[Item] = deque()
        self._nested: deque[Item] = deque()
        """What handlers wait for that hold a slot: it goes before all others."""
        self._threads: set[threading.Thread] = set()
        self._idle = 0
        self._called = 0
        """Idle threads that were called and have not come yet."""
        self._watcher: threading.Thread | None = None
        self._closed = False
        self._ending = threading.Event()

    @property
    def busy(self) -> int:
        """Handlers that run."""
        return len(self._threads) - self._idle

    def put(self, items: Iterable[Item], *, nested: bool = False) -> None:
        """Run these; `nested` is for those whom a handler waits for, which holds a slot itself."""
        with self._lock:
            if nested:
                self._nested.extend(items)
                if self._idle > self._called:
                    self._call(1)
                else:
                    self._start()
                return
            self._waiting.extend(items)
            if len(self._threads) == self._idle and not self._called:
                self._call(1)
            if len(self._waiting) > 1 or self._idle < len(self._threads):
                self._watched()

    def clear(self) -> list[Item]:
        """Take back what has not begun."""
        with self._lock:
            waiting = [*self._nested, *self._waiting]
            self._nested.clear()
            self._waiting.clear()
            return waiting

    def close(self) -> None:
        """Run what waits, and end the threads."""
        with self._lock:
            self._closed = True
            self._ending.set()
            # All at once, for nobody looks on any more.
            self._call(len(self._waiting))
            self._some.notify_all()
            self._watch.notify_all()
            threads = [*self._threads, *([self._watcher] if self._watcher else [])]
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join()

    def _call(self, many: int) -> None:
        awake = min(many, self._idle - self._called)
        if awake > 0:
            self._called += awake
            self._some.notify(awake)
        for _ in range(min(many - max(0, awake), self._most - len(self._threads))):
            self._start()

    def _start(self) -> None:
        thread = threading.Thread(target=self._slot, name="eventonce-slot", daemon=True)
        self._threads.add(thread)
        thread.start()

    def _slot(self) -> None:
        while (item := self._take()) is not None:
            self._work(item[0])

    def _take(self) -> tuple[Item] | None:
        if self._waiting and not self._nested and len(self._threads) <= self._most:
            # Without the lock, for there is nothing to decide: it costs as much as a quick handler.
            try:
                return (self._waiting.popleft(),)
            except IndexError:
                """Another thread was first."""
        with self._lock:
            while not self._nested:
                if len(self._threads) > self._most or (self._closed and not self._waiting):
                    self._threads.discard(threading.current_thread())
                    return None
                if self._waiting:
                    return (self._waiting.popleft(),)
                self._idle += 1
                self._some.wait()
                self._idle -= 1
                self._called = max(0, self._called - 1)
            return (self._nested.popleft(),)

    def _watched(self) -> None:
        """See to it that nothing waits for a slow handler while threads are to be had."""
        if self._watcher is None:
            self._watcher = threading.Thread(
                target=self._look_on, name="eventonce-slots", daemon=True
            )
            self._watcher.start()
        else:
            self._watch.notify()

    def _look_on(self) -> None:
        while True:
            with self._lock:
                while (not self._waiting or self._full()) and not self._closed:
                    self._watch.wait()
                if self._closed:
                    return
            if self._ending.wait(QUICK):
                return
            with self._lock:
                if self._waiting and not self._full():
                    self._call(min(len(self._waiting), max(1, self.busy)))

    def _full(self) -> bool:
        return len(self._threads) >= self._most and self._idle <= self._called
