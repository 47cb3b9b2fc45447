"""The occupancy of this process: many events side by side, or one alone.

An event whose last run ended with its process runs alone, so that no other run ends with it if that
happens again. A batch enters before it claims, and leaves when its claims are settled.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Generator
from contextvars import ContextVar
from typing import Final

ALONE_WAIT: Final = 30.0
"""Seconds to wait for others before running beside them: a handler that hangs must not block an
event for ever, nor all others."""

STEP: Final = 0.01
"""Seconds between two looks; batches wait only because of an event that ended a process before."""

INSIDE: Final = ContextVar[object]("eventonce_inside_handler", default=False)
"""Whether the current code is called by a handler."""


class Occupancy:
    """The runs of one process."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin empty; in the child of a fork, no batch of the parent runs."""
        self._lock = threading.Lock()
        # Sets of batches: an interrupted batch may leave twice.
        self._runs: set[object] = set()
        self._alone: set[object] = set()
        """Batches that are alone, or wait to be."""
        self._solo: set[object] = set()
        """Batches that were let in alone and have not left."""
        self._closed_until = 0.0
        """The moment until which these batches keep others out, by the monotonic clock."""

    def admit(self, who: object) -> bool:
        """Enter beside others, if no batch is alone or waits to be; return whether it entered."""
        # In this order no lock is needed: `entering` adds to `_alone` before it looks at `_runs`.
        self._runs.add(who)
        if not self._alone:
            return True
        self._runs.discard(who)
        return False

    def entering(
        self, who: object, *, alone: bool, nested: bool
    ) -> Generator[None, None, bool | None]:
        """Yield while the batch must wait, `ALONE_WAIT` at the most; return whether it is alone.
        Return None, without entering, if it wants to be alone and another batch still is: if the
        process then ended, nobody could tell which of the two had ended it.

        A `nested` batch, of a handler that processes events itself, enters at once: its handler has
        entered, and the batches that wait do so until that handler returns.
        """
        if nested:
            return self._let_in(who)
        end = time.monotonic() + ALONE_WAIT
        if not alone:
            while not self._admits(who, end):
                yield
            return False
        with self._lock:
            self._alone.add(who)
            self._closed_until = end
        while not self._takes(who):
            if time.monotonic() >= end:
                with self._lock:
                    self._alone.discard(who)
                return None if self._solo else self._let_in(who)
            yield
        return True

    def leave(self, who: object) -> None:
        """Remove a batch: it is settled, or it no longer waits to enter."""
        self._runs.discard(who)
        if self._alone:
            with self._lock:
                self._solo.discard(who)
                self._alone.discard(who)

    def _admits(self, who: object, end: float) -> bool:
        with self._lock:
            if self._alone and time.monotonic() < min(end, self._closed_until):
                return False
            self._runs.add(who)
            return True

    def _takes(self, who: object) -> bool:
        with self._lock:
            if self._runs:
                return False
            self._runs.add(who)
            self._solo.add(who)
            self._closed_until = time.monotonic() + ALONE_WAIT
            return True

    def _let_in(self, who: object) -> bool:
        with self._lock:
            self._runs.add(who)
        return False


class InsideHandler:
    """A block whose code is marked as called by a handler."""

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        self._before = INSIDE.get()
        INSIDE.set(self)

    def __exit__(self, *_: object) -> None:
        # Without the token of `set`: a framework may leave a block in another context than the one
        # it entered in, and the garbage collector leaves an abandoned block in any context.
        if INSIDE.get() is self:
            INSIDE.set(self._before)


HERE: Final = Occupancy()
"""The occupancy of this process."""

if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=HERE.reset)
