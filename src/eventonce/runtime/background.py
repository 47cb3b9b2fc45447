"""A background writer: many threads hand batches to it, and none waits for the write."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar
from weakref import WeakSet

from eventonce.errors import StoreUnavailable
from eventonce.log import Outage, log

WRITE_INTERVAL: Final = 1.0
"""Seconds between two writes."""

CLOSE_WAIT: Final = 15.0
"""Seconds that a close waits for the last write: a database that does not answer must not keep a
process from ending."""

FORK_WAIT: Final = 1.0
"""Seconds that a fork waits for a write to end. A longer write waits for a server that does not
answer; the child does not use its connection."""

Batch = TypeVar("Batch")


class Background(Generic[Batch]):
    """A thread that writes batches, once a second. Batches that come faster than they can be
    written, or that cannot be written, are dropped and counted."""

    def __init__(
        self,
        name: str,
        write: Callable[[list[Batch]], None],
        most: int,
        before_fork: Callable[[], None] | None = None,
        after_turn: Callable[[], None] = lambda: None,
    ) -> None:
        """`most` limits the sum of the sizes, as given to `add`, of the batches that wait.
        `before_fork` is called before a fork, while no thread writes. `after_turn` is called after
        each turn of the thread, whether there was a batch to write or not."""
        self.before_fork = before_fork
        self._after_turn = after_turn
        self.written = 0
        self.dropped = 0
        """Items that were not written."""
        self.crowded_out = 0
        """The dropped items for which there was no room; the log has no line about them."""
        self._name = name
        self._write = write
        self._most = most
        self.outage = Outage()
        """The outage of the target; the owner of this object may report it first."""
        self._begin()
        _all.add(self)

    def _begin(self) -> None:
        """Begin empty; also in the child of a fork, whose parent writes the batches that wait."""
        self._waiting: list[Batch] = []
        self._size = 0
        self._many = 0
        """Items of all batches that wait."""
        self._under_way = 0
        """Items that are being written."""
        self._lock = threading.Lock()
        self.writing = threading.RLock()
        """Held by the thread that writes, and for any other exclusive use of the target."""
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._flushing: threading.Thread | None = None

    def add(self, batch: Batch, size: int, many: int) -> None:
        """Queue this batch for the next write. `size` is the room that it takes until then, `many`
        the number of its items. An empty batch is not queued."""
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
        """Start the thread now, and not with the first batch."""
        with self._lock:
            if self._thread is None and not self.ending:
                self._thread = self._started(self._run)

    @property
    def ending(self) -> bool:
        """Whether `close` was called."""
        return self._ended.is_set()

    def flush(self) -> None:
        """Write the batches that wait, in this thread; first wait for another thread's write."""
        with self.writing:
            self._flush()

    def flush_within(self, seconds: float) -> None:
        """Write the batches that wait in a thread of their own, and wait at most so long for it.
        While such a write runs, a second call returns at once; later batches are written later."""
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
                # The batches wait for the next write; while they do, `add` may find no room.
                self._put_back(some, many)
                if self.outage.tells():
                    log().warning("%s: %d events are not written yet: %s", self._name, many, error)
                return
            except Exception as error:  # noqa: BLE001  a batch that is refused must not end the thread
                log().warning("%s: %d events are left out: %s", self._name, many, error)
                with self._lock:
                    # 0 if `close` stopped waiting for this write: it has counted the items.
                    self.dropped += self._under_way
            except BaseException:
                # A signal interrupted the write; the next write repeats these batches.
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
        """Write the batches that wait, and end the thread; batches that cannot be written are
        dropped. Return whether the last write has ended."""
        self._ended.set()
        thread = self._thread
        if thread is None:
            self.flush()
        else:
            thread.join(CLOSE_WAIT)
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
            # The next batch tries to start a thread again.
            log().warning("%s: nothing is written yet: %s", self._name, error)
            return None
        return thread

    def _run(self) -> None:
        ended = False
        while not ended:
            ended = self._ended.wait(WRITE_INTERVAL)
            self.flush()
            self._after_turn()


_all: Final = WeakSet["Background[Any]"]()


class _Forking(threading.local):
    """The locks that this thread holds while it forks."""

    def __init__(self) -> None:
        self.held: list[threading.RLock] = []


_forking: Final = _Forking()


def _wait_for_writers() -> None:
    """Wait until no thread writes: a child must not begin in a transaction of its parent."""
    for one in list(_all):
        lock = one.writing
        if lock.acquire(timeout=FORK_WAIT):
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
