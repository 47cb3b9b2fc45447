"""The process that batches share: many events run side by side, or one runs alone.

An event whose last run ended with its process runs alone, so that no other run ends with it if that
happens again. A batch enters before it claims, and leaves when its claims are settled.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Generator
from contextvars import ContextVar
from typing import Final

from eventonce import forks

ALONE_WAIT: Final = 30.0
"""Seconds to wait for others before running beside them: a handler that hangs must not block an
event for ever, nor all others."""

ENTER_INTERVAL: Final = 0.01
"""Seconds between two tries to enter; a batch waits only because of an event that ended a process
before."""

INSIDE_HANDLER: Final = ContextVar[object]("eventonce_inside_handler", default=False)
"""Whether the current code is called by a handler."""


class SharedProcess:
    """The batches that run in one process."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin empty; in the child of a fork, no batch of the parent runs."""
        self._lock = threading.Lock()
        # Sets of batches: an interrupted batch may leave twice.
        self._entered: set[object] = set()
        self._alone: set[object] = set()
        """Batches that are alone, which have entered, or that wait to be."""
        self._others_wait_until = 0.0
        """The moment until which others wait for these batches, by the monotonic clock."""

    def enter(self, batch: object) -> bool:
        """Enter beside others, if no batch is alone or waits to be; return whether it entered."""
        # In this order no lock is needed: `entering` adds to `_alone` before it reads `_entered`.
        self._entered.add(batch)
        if not self._alone:
            return True
        self._entered.discard(batch)
        return False

    def entering(
        self, batch: object, *, alone: bool, nested: bool
    ) -> Generator[None, None, bool | None]:
        """Yield while the batch must wait, `ALONE_WAIT` at the most; return whether it is alone.
        Return None, without entering, if it wants to be alone and another batch still is: if the
        process then ended, nobody could tell which of the two had ended it.

        A `nested` batch, of a handler that processes events itself, enters at once: its handler has
        entered, and the batches that wait do so until that handler returns.
        """
        if nested:
            with self._lock:
                self._entered.add(batch)
            return False
        end = time.monotonic() + ALONE_WAIT
        if not alone:
            while not self._enters_beside(batch, end):
                yield
            return False
        with self._lock:
            self._alone.add(batch)
            self._others_wait_until = end
        while not self._enters_alone(batch):
            if time.monotonic() >= end:
                with self._lock:
                    self._alone.discard(batch)
                    if self._alone & self._entered:
                        return None
                    self._entered.add(batch)
                return False
            yield
        return True

    def leave(self, batch: object) -> None:
        """Remove a batch: it is settled, or it no longer waits to enter."""
        self._entered.discard(batch)
        if self._alone:
            with self._lock:
                self._alone.discard(batch)

    def _enters_beside(self, batch: object, end: float) -> bool:
        with self._lock:
            if self._alone and time.monotonic() < min(end, self._others_wait_until):
                return False
            self._entered.add(batch)
            return True

    def _enters_alone(self, batch: object) -> bool:
        with self._lock:
            if self._entered:
                return False
            self._entered.add(batch)
            self._others_wait_until = time.monotonic() + ALONE_WAIT
            return True


class InsideHandler:
    """A block whose code is marked as called by a handler."""

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        self._before = INSIDE_HANDLER.get()
        INSIDE_HANDLER.set(self)

    def __exit__(self, *_: object) -> None:
        # Without the token of `set`: a framework may leave a block in another context than the one
        # it entered in, and the garbage collector leaves an abandoned block in any context.
        if INSIDE_HANDLER.get() is self:
            INSIDE_HANDLER.set(self._before)


THIS_PROCESS: Final = SharedProcess()
forks.register(THIS_PROCESS, SharedProcess.reset)
