"""The occupancy of this process: many events side by side, or one alone.

An event whose last run ended with its process runs alone, so that it takes no other event with it
if it does so again. Runners enter before they claim and leave when what they claimed is settled.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Generator
from contextvars import ContextVar
from typing import Final

ALONE_WAIT: Final = 30.0
"""Seconds to wait for others before running beside them: a handler that hangs must neither keep an
event from its turn for ever nor hold up all others."""

STEP: Final = 0.01
"""Seconds between two looks; only an event that ended a process before makes anybody wait."""

INSIDE: Final = ContextVar[object]("eventonce_inside_handler", default=False)
"""Whether the code that asks is a handler's."""


class Occupancy:
    """The runs of one process."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin anew, in the child of a fork: what ran in the parent does not run here."""
        self._lock = threading.Lock()
        # By who runs: to leave twice, as one who was interrupted may do, is to leave.
        self._runs: set[object] = set()
        self._alone: set[object] = set()
        """Batches that are alone, or wait to be."""
        self._solo: set[object] = set()
        """Batches that were let in alone and have not left."""
        self._closed_until = 0.0
        """The moment until which they keep others out, by the monotonic clock."""

    def admit(self, who: object) -> bool:
        """Enter beside others, if nobody is alone or waits to be; whether it did."""
        # Without the lock, in this order: whoever wants to be alone says so before he looks.
        self._runs.add(who)
        if not self._alone:
            return True
        self._runs.discard(who)
        return False

    def entering(
        self, who: object, *, alone: bool, nested: bool
    ) -> Generator[None, None, bool | None]:
        """Yields while it must wait; answers whether this run is alone. Lets in at last, but for
        one that wants to be alone while another is: None, for of two that may each have ended a
        process nobody could tell which did.

        A `nested` one, of a handler that processes events itself, enters at once: whoever waits
        would wait for it.
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
        """Let a batch go: it is settled, or it has given up entering."""
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
    """Marks the code within as a handler's."""

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        self._before = INSIDE.get()
        INSIDE.set(self)

    def __exit__(self, *_: object) -> None:
        # Not by a token: a framework may leave a block in another context than it entered it in.
        # And a block that was abandoned is left by the garbage collector, in anybody's context.
        if INSIDE.get() is self:
            INSIDE.set(self._before)


HERE: Final = Occupancy()
"""The occupancy of this process."""

if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=HERE.reset)
