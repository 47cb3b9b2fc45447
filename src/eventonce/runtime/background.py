"""A writer in the background: many threads hand it what is to be written, and none waits."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar
from weakref import WeakSet

from eventonce.errors import StoreUnavailable
from eventonce.log import Outage, log

INTERVAL: Final = 1.0
"""Seconds between two writes."""

PATIENCE: Final = 15.0
"""Seconds that a close waits for the last write: a database that is silent must not keep a process
from its end."""

FORK_PATIENCE: Final = 1.0
"""Seconds that a fork waits for a write to end: longer ones are those of a silent server, whose
connection no child uses."""

Batch = TypeVar("Batch")


class Background(Generic[Batch]):
    """Writes from a thread of its own, once a second. What comes faster than it can be written is
    left out and counted; what cannot be written, too."""

    def __init__(
        self,
        name: str,
        write: Callable[[list[Batch]], None],
        most: int,
        before_fork: Callable[[], None] | None = None,
        beside: Callable[[], None] = lambda: None,
    ) -> None:
        """`most` is how much may wait, by the sizes that `add` is told. `before_fork` is called
        before a fork, while nobody writes. `beside` is called after each turn of the thread,
        whether there was something to write or not."""
        self.before_fork = before_fork
        self._beside = beside
        self.written = 0
        self.dropped = 0
        """Items that were left out."""
        self.crowded_out = 0
        """Those of them for which there was no room; of these the log does not tell here."""
        self._name = name
        self._write = write
        self._most = most
        self.outage = Outage()
        """Of what is written to; for whoever has told of it already."""
        self._begin()
        _all.add(self)

    def _begin(self) -> None:
        """Also in the child of a fork, where no thread lives on: its parent writes what waits."""
        self._waiting: list[Batch] = []
        self._size = 0
        self._many = 0
        """Items of all batches that wait."""
        self._under_way = 0
        """Items that are being written."""
        self._lock = threading.Lock()
        self.writing = threading.RLock()
        """Held by whoever writes; for all else that no two threads may do with the target."""
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._flushing: threading.Thread | None = None

    def add(self, batch: Batch, size: int, many: int) -> None:
        """Have this batch written. `size` is the room that it takes until then, and `many` the
        number of its items; an empty batch is nothing to write."""
        if not many:
            return
        with self._lock:
            if self._size + size > self._most or self._ended.is_set():
                self.dropped += many
                self.crowded_out += many
                return
            self._waiting.append(batch)
            self._size += size
            self._many += many
            if self._thread is None:
                self._thread = self._started(self._run)

    def start(self) -> None:
        """Begin the thread now, and not with the first that is to be written."""
        with self._lock:
            if self._thread is None and not self.ending:
                self._thread = self._started(self._run)

    @property
    def ending(self) -> bool:
        """Whether somebody waits for the end of the thread."""
        return self._ended.is_set()

    def flush(self) -> None:
        """Write what waits, in this thread, after what another thread is writing."""
        with self.writing:
            self._flush()

    def flush_within(self, seconds: float) -> None:
        """Have what waits written now, and wait for that so long at most. While such a write still
        runs nobody waits for another; what it leaves is written later."""
        with self._lock:
            if not self._size or (self._flushing is not None and self._flushing.is_alive()):
                return
            thread = self._flushing = self._started(self.flush)
        if thread is not None:
            thread.join(seconds)

    def _flush(self) -> None:
        with self._lock:
            some, size, many = self._waiting, self._size, self._many
            self._waiting, self._many, self._under_way = [], 0, many
        if some:
            try:
                self._write(some)
            except StoreUnavailable as error:
                # It waits for better times, as long as there is room.
                self._put_back(some, many)
                if self.outage.tells():
                    log().warning("%s: %d events are not written yet: %s", self._name, many, error)
                return
            except Exception as error:  # noqa: BLE001  what cannot be written must not end the thread
                log().warning("%s: %d events are left out: %s", self._name, many, error)
                with self._lock:
                    # A close that did not wait for this has counted them.
                    self.dropped += self._under_way
            except BaseException:
                # An interrupt of who flushes; the next write has these.
                self._put_back(some, many)
                raise
            else:
                self.written += many
                lasted = self.outage.ended()
                if lasted is not None:
                    log().info("%s: written again, after %.0f s", self._name, lasted)
        with self._lock:
            self._size -= size
            self._under_way = 0

    def _put_back(self, some: list[Batch], many: int) -> None:
        with self._lock:
            self._waiting[:0] = some
            self._many += many
            self._under_way = 0

    def close(self) -> bool:
        """Have what waits written, and end the thread; what cannot be written is left out. Answers
        whether the last write has ended."""
        self._ended.set()
        thread = self._thread
        if thread is None:
            self.flush()
        else:
            thread.join(PATIENCE)
        ends = thread is None or not thread.is_alive()
        with self._lock:
            left = self._many + self._under_way
            self._waiting, self._size, self._many, self._under_way = [], 0, 0, 0
            self.dropped += left
        if left or not ends:
            why = "they could not be written" if ends else "the last write does not end"
            log().warning("%s: %d events are left out: %s", self._name, left, why)
        return ends

    def _started(self, run: Callable[[], None]) -> threading.Thread | None:
        thread = threading.Thread(target=run, name=f"eventonce-{self._name}", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            # No thread can be started now; the next to come tries again.
            log().warning("%s: nothing is written yet: %s", self._name, error)
            return None
        return thread

    def _run(self) -> None:
        ended = False
        while not ended:
            ended = self._ended.wait(INTERVAL)
            self.flush()
            self._beside()


_all: Final = WeakSet["Background[Any]"]()


class _Forking(threading.local):
    """The locks that this thread took to fork."""

    def __init__(self) -> None:
        self.held: list[threading.RLock] = []


_forking: Final = _Forking()


def _wait_for_writers() -> None:
    """A child must not begin in the midst of a transaction of its parent's."""
    for one in list(_all):
        lock = one.writing
        if lock.acquire(timeout=FORK_PATIENCE):
            _forking.held.append(lock)
            if one.before_fork is not None:
                one.before_fork()


def _go_on() -> None:
    while _forking.held:
        _forking.held.pop().release()


def _begin_anew() -> None:
    _forking.held.clear()
    for one in _all:
        one._begin()  # noqa: SLF001  the module's own


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_wait_for_writers, after_in_parent=_go_on, after_in_child=_begin_anew
    )
