"""The lane: calls of one verb of the store, one at a time. Callers that come meanwhile share the
next call."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import copy
from typing import Final, Generic, TypeVar

from eventonce.errors import StoreError, StoreUnavailable

Item = TypeVar("Item")
Answer = TypeVar("Answer")
Error = TypeVar("Error", bound=BaseException)

MOST_ITEMS: Final = 1000
"""The most items of one call, unless one caller alone asks for more."""

LONGEST_CALL: Final = 60.0
"""Seconds after which a caller that waits makes the call itself: stores have shorter time-outs, so
the thread that made the call was interrupted. Asking again is always safe."""


def copied(error: Error) -> Error:
    """Return a copy, because each thread that raises an exception changes it. Return the exception
    itself if it cannot be copied."""
    try:
        return copy(error)
    except Exception:  # noqa: BLE001  any class of exception
        return error


class _Entry(Generic[Item, Answer]):
    """The items of one caller, while another caller makes the call."""

    __slots__ = ("abandoned", "answers", "apart", "error", "items", "woken")

    def __init__(self, items: Sequence[Item]) -> None:
        self.items = items
        self.answers: list[Answer] | None = None
        self.error: StoreError | None = None
        self.apart = False
        """Whether these items need a call of their own: the store refused a shared call."""
        self.abandoned = False
        """Whether the caller was interrupted, and does not wait for the answers."""
        self.woken = threading.Lock()
        self.woken.acquire()

    def wake(self) -> None:
        """Wake the caller: its answers are there, or it may make the next call itself."""
        # Another thread has woken the caller already.
        with suppress(RuntimeError):
            self.woken.release()


class Lane(Generic[Item, Answer]):
    """Group commit: a lone caller calls at once, in its own thread; callers that come while a call
    is in progress share the next call."""

    def __init__(
        self,
        call: Callable[[Sequence[Item]], list[Answer]],
        key: Callable[[Item], bytes],
        abandon: Callable[[Sequence[Item], list[Answer]], None] | None = None,
    ) -> None:
        """A call has each `key` once. `abandon` gets the answers to an interrupted caller."""
        self._call = call
        self._key = key
        self._abandon = abandon
        self.reset()

    def reset(self) -> None:
        """Begin empty; in the child of a fork no call of the parent is in progress."""
        self._lock = threading.Lock()
        self._leader: int | None = None
        """The thread that makes the call."""
        self._joined: list[_Entry[Item, Answer]] = []
        """The entries whose items are part of that call, and that have no answers yet."""
        self._waiting: deque[_Entry[Item, Answer]] = deque()

    def ask(self, items: Sequence[Item]) -> list[Answer]:
        """Return the answers to these items, in their order."""
        me = threading.get_ident()
        entry: _Entry[Item, Answer] | None = None
        try:
            with self._lock:
                # A leader that asks was interrupted before it could pass the lead on.
                if self._leader is None or self._leader == me:
                    self._leader = me
                else:
                    entry = _Entry(items)
                    self._waiting.append(entry)
            if entry is not None:
                self._follow(entry, me)
                if entry.answers is not None:
                    return entry.answers
            if self._waiting:
                answers = self._lead(items, apart=entry is not None and entry.apart)
            else:
                answers = self._call(items)
            with self._lock:
                alone = not self._waiting and not self._joined
                if alone:
                    self._leader = None
            if not alone:
                self._pass_on(me)
        except BaseException:
            # A signal may come at any instant, also during the cleanup, which is idempotent.
            if entry is not None:
                self._give_up(entry)
            self._pass_on(me)
            raise
        else:
            return answers

    def _follow(self, entry: _Entry[Item, Answer], me: int) -> None:
        """Wait for the answers, or until this caller leads."""
        while True:
            in_time = entry.woken.acquire(timeout=LONGEST_CALL)
            if entry.answers is not None:
                return
            if entry.error is not None:
                raise copied(entry.error) from entry.error
            with self._lock:
                waits = entry in self._waiting
                if not in_time or (waits and self._leader is None):
                    self._leader = me
                    if waits:
                        self._waiting.remove(entry)
                    return

    def _give_up(self, entry: _Entry[Item, Answer]) -> None:
        with self._lock:
            if entry in self._waiting:
                self._waiting.remove(entry)
            entry.abandoned = True
            answers = entry.answers
        if answers is not None and self._abandon is not None:
            self._abandon(entry.items, answers)

    def _lead(self, items: Sequence[Item], *, apart: bool) -> list[Answer]:
        if apart:
            return self._call(items)
        with self._lock:
            self._join(items)
        joined = list(self._joined)
        if not joined:
            return self._call(items)
        asked = list(items)
        for entry in joined:
            asked += entry.items
        try:
            answers = self._call(asked)
        except StoreUnavailable as error:
            for entry in joined:
                entry.error = error
            raise
        except Exception:  # noqa: BLE001  raised again by the call of its cause
            # The store refused some items: each caller makes a call of its own.
            for entry in joined:
                entry.apart = True
            return self._call(items)
        at = len(items)
        for entry in joined:
            end = at + len(entry.items)
            self._answer(entry, answers[at:end])
            at = end
        return answers[: len(items)]

    def _pass_on(self, me: int) -> None:
        """Let another caller lead. The joined entries without answers come first: their call was
        interrupted, or they need a call of their own."""
        with self._lock:
            if self._leader == me:
                for entry in reversed(self._joined):
                    if entry.answers is None and entry.error is None and not entry.abandoned:
                        if entry not in self._waiting:
                            self._waiting.appendleft(entry)
                    else:
                        entry.wake()
                self._joined = []
                self._leader = None
            first = self._first()
        if first is not None:
            first.wake()

    def _join(self, items: Sequence[Item]) -> None:
        """Join the waiting entries to the call, as far as they fit."""
        key, size = self._key, len(items)
        keys = {key(item) for item in items}
        joined: list[_Entry[Item, Answer]] = []
        left: deque[_Entry[Item, Answer]] = deque()
        for entry in self._waiting:
            own = {key(item) for item in entry.items}
            if entry.apart or size + len(entry.items) > MOST_ITEMS or not keys.isdisjoint(own):
                left.append(entry)
                continue
            keys |= own
            size += len(entry.items)
            joined.append(entry)
        # In this order: a signal between the two lines must not lose an entry.
        self._joined = joined
        self._waiting = left

    def _answer(self, entry: _Entry[Item, Answer], answers: list[Answer]) -> None:
        with self._lock:
            entry.answers = answers
            abandoned = entry.abandoned
        entry.wake()
        if abandoned and self._abandon is not None:
            self._abandon(entry.items, answers)

    def _first(self) -> _Entry[Item, Answer] | None:
        """Return the entry whose caller leads next, if none leads; the caller holds the lock."""
        return self._waiting[0] if self._waiting and self._leader is None else None
