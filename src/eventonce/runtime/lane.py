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
Error = TypeVar("Error", bound=BaseException)

MOST: Final = 1000
"""Items of one call at the most, unless one caller alone asks for more."""

LONGEST_CALL: Final = 60.0
"""Seconds after which a call is given up by those who wait for it, and made by one of them: stores
have shorter time-outs, so whoever made it was interrupted. To ask again is always safe."""


def copied(error: Error) -> Error:
    """A copy, for each thread that raises an exception writes into it. It is the exception itself
    where its class cannot be made from what it says."""
    try:
        return copy(error)
    except Exception:  # noqa: BLE001  a class of anybody's
        return error


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
        key: Callable[[Item], bytes],
        abandon: Callable[[Sequence[Item], list[Answer]], None] | None = None,
    ) -> None:
        """A call has each `key` once. `abandon` is told the answers nobody waits for."""
        self._call = call
        self._key = key
        self._abandon = abandon
        self.reset()

    def reset(self) -> None:
        """Begin anew, in the child of a fork: no call of the parent is under way here."""
        self._lock = threading.Lock()
        self._leader: int | None = None
        """The thread that makes the call."""
        self._joined: list[_Entry[Item, Answer]] = []
        """Whose items are part of that call, and who are not answered yet."""
        self._waiting: deque[_Entry[Item, Answer]] = deque()

    def ask(self, items: Sequence[Item]) -> list[Answer]:
        """The answers to these, in their order."""
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
            # A signal may come at any instant, in what cleans up, too: to do that twice is to do it
            # once.
            if entry is not None:
                self._give_up(entry)
            self._pass_on(me)
            raise
        else:
            return answers

    def _follow(self, entry: _Entry[Item, Answer], me: int) -> None:
        """Wait for the answers, or for the lead."""
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
        return answers[: len(items)]

    def _pass_on(self, me: int) -> None:
        """Let another lead: those who were joined and are not answered, because the call was
        interrupted or they are to be asked apart, come first."""
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
        """Those who wait join the call, as far as they fit."""
        key, size = self._key, len(items)
        keys = {key(item) for item in items}
        joined: list[_Entry[Item, Answer]] = []
        left: deque[_Entry[Item, Answer]] = deque()
        for entry in self._waiting:
            own = {key(item) for item in entry.items}
            if entry.apart or size + len(entry.items) > MOST or not keys.isdisjoint(own):
                left.append(entry)
                continue
            keys |= own
            size += len(entry.items)
            joined.append(entry)
        # In this order: nobody is in neither of them when a signal comes in between.
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
        """Who is to make the next call, if nobody makes one; the lock is the caller's."""
        return self._waiting[0] if self._waiting and self._leader is None else None
