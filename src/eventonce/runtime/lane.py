"""The lane: calls of one verb of the store, one at a time, shared by all who ask meanwhile."""

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

MOST: Final = 1000
"""Items of one call at the most, unless one caller alone asks for more."""

LONGEST_CALL: Final = 60.0
"""Seconds after which a call is given up by those who wait for it, and made by one of them: stores
have shorter time-outs, so whoever made it was interrupted. To ask again is always safe."""


class _Entry(Generic[Item, Answer]):
    """What one caller asks for, while another makes the call."""

    __slots__ = ("abandoned", "answers", "apart", "error", "items", "woken")

    def __init__(self, items: Sequence[Item]) -> None:
        self.items = items
        self.answers: list[Answer] | None = None
        self.error: StoreError | None = None
        self.apart = False
        """Whether it is asked in a call of its own: the store refused one it was part of."""
        self.abandoned = False
        """Whether its caller was interrupted, and nobody waits for the answers."""
        self.woken = threading.Lock()
        self.woken.acquire()

    def wake(self) -> None:
        """Wake the caller: its answers are there, or it may make the next call itself."""
        # Already awake, and told by another.
        with suppress(RuntimeError):
            self.woken.release()


class Lane(Generic[Item, Answer]):
    """Group commit: a lone caller calls at once, in its own thread; whoever comes while a call is
    under way joins the next one."""

    def __init__(
        self,
        call: Callable[[Sequence[Item]], list[Answer]],
        key: Callable[[Item], bytes] | None = None,
        abandon: Callable[[Sequence[Item], list[Answer]], None] | None = None,
    ) -> None:
        """With `key`, a call has each key once. `abandon` is told the answers nobody waits for."""
        self._call = call
        self._key = key
        self._abandon = abandon
        self.reset()

    def reset(self) -> None:
        """Begin anew, in the child of a fork: no call of the parent is under way here."""
        self._lock = threading.Lock()
        self._leader: int | None = None
        """The thread that makes the call."""
        self._waiting: deque[_Entry[Item, Answer]] = deque()

    def ask(self, items: Sequence[Item]) -> list[Answer]:
        """The answers to these, in their order."""
        me = threading.get_ident()
        entry: _Entry[Item, Answer] | None = None
        with self._lock:
            # A leader that asks was interrupted before it could pass the lead on.
            if self._leader is None or self._leader == me:
                self._leader = me
            else:
                entry = _Entry(items)
                self._waiting.append(entry)
        return self._lead(items) if entry is None else self._follow(entry, me)

    def _follow(self, entry: _Entry[Item, Answer], me: int) -> list[Answer]:
        try:
            while True:
                in_time = entry.woken.acquire(timeout=LONGEST_CALL)
                if entry.answers is not None:
                    return entry.answers
                if entry.error is not None:
                    # A copy: each thread that raises an exception writes into it.
                    raise copy(entry.error) from entry.error
                with self._lock:
                    if entry in self._waiting and (self._leader is None or not in_time):
                        self._waiting.remove(entry)
                        self._leader = me
                        break
        except BaseException:
            self._give_up(entry)
            raise
        return self._lead(entry.items, apart=entry.apart)

    def _give_up(self, entry: _Entry[Item, Answer]) -> None:
        with self._lock:
            waited = entry in self._waiting
            if waited:
                self._waiting.remove(entry)
            entry.abandoned = True
            answers = entry.answers
        if waited:
            self._wake_next()
        elif answers is not None and self._abandon is not None:
            self._abandon(entry.items, answers)

    def _lead(self, items: Sequence[Item], *, apart: bool = False) -> list[Answer]:
        joined: list[_Entry[Item, Answer]] = []
        try:
            if self._waiting and not apart:
                with self._lock:
                    joined = self._joining(items)
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
                    entry.wake()
                joined = []
                raise
            except Exception:  # noqa: BLE001  whose it is will be seen
                # One of them was refused for what it is: each is asked apart from the others.
                for entry in joined:
                    entry.apart = True
                return self._call(items)
            at = len(items)
            for entry in joined:
                end = at + len(entry.items)
                self._answer(entry, answers[at:end])
                at = end
            joined = []
            return answers[: len(items)]
        finally:
            with self._lock:
                # Interrupted, or to be asked apart: they lead themselves.
                self._waiting.extendleft(reversed(joined))
                if self._leader == threading.get_ident():
                    self._leader = None
            self._wake_next()

    def _joining(self, items: Sequence[Item]) -> list[_Entry[Item, Answer]]:
        """Those who wait, as far as they fit into the call."""
        key, size = self._key, len(items)
        keys = {key(item) for item in items} if key is not None else set()
        joined, left = [], deque[_Entry[Item, Answer]]()
        for entry in self._waiting:
            own = {key(item) for item in entry.items} if key is not None else set()
            if entry.apart or size + len(entry.items) > MOST or not keys.isdisjoint(own):
                left.append(entry)
                continue
            keys |= own
            size += len(entry.items)
            joined.append(entry)
        self._waiting = left
        return joined

    def _answer(self, entry: _Entry[Item, Answer], answers: list[Answer]) -> None:
        with self._lock:
            entry.answers = answers
            abandoned = entry.abandoned
        entry.wake()
        if abandoned and self._abandon is not None:
            self._abandon(entry.items, answers)

    def _wake_next(self) -> None:
        with self._lock:
            first = self._waiting[0] if self._waiting and self._leader is None else None
        if first is not None:
            first.wake()
