"""The in-flight buffer: what was received and is neither acknowledged nor given back."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from typing import Final

from eventonce.core.ports import Delivery
from eventonce.runtime.fifo import Groups
from eventonce.worker.threads import ASLEEP

SOON: Final = 1.0
"""Seconds within which what is received should be begun: its visibility runs meanwhile."""

AHEAD: Final = 20
"""Events received ahead for each receiver, when handlers are quick: the two requests of ten that
come in while the ten before them are worked on."""

MOST_LEAVING: Final = 200
"""Events that may wait for their acknowledgement before no more are received."""

FADE: Final = 0.8
"""What is left of the slowest time seen after each that was quicker: one slow event makes the
worker careful for some twenty more."""


class Inflight:
    """Bounded: as many events as there are slots, and more only where handlers are quick."""

    def __init__(self, concurrency: int, receivers: int, *, asynchronous: bool) -> None:
        """`asynchronous`: whether handlers run on a loop, where no slot bounds them."""
        self._concurrency = concurrency
        self._ahead = 0 if asynchronous else AHEAD * receivers
        self._slowest: float | None = None
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._held: dict[int, tuple[Delivery, Groups[Delivery]]] = {}
        self._leaving: set[int] = set()
        self._promised = 0
        self._closed = False

    def __len__(self) -> int:
        return len(self._held)

    @property
    def full(self) -> bool:
        """Whether there is no room for more, so that nobody asks for it."""
        with self._lock:
            return self._free() <= 0

    @property
    def empty(self) -> bool:
        """Whether nothing is in flight and nothing is being received."""
        with self._lock:
            return not self._held and not self._promised

    def learn(self, seconds: float) -> None:
        """A handler took so long."""
        self._slowest = max(seconds, (self._slowest or 0.0) * FADE)

    def reserve(self, most: int, within: float) -> int:
        """Wait for room; how many may be received now, a promise to `put` or to `forgo`."""
        with self._lock:
            if not self._room.wait_for(lambda: not self._closed and self._free() > 0, within):
                return 0
            promised = min(most, self._free())
            self._promised += promised
            return promised

    def put(self, promised: int, received: Sequence[Delivery]) -> list[Delivery] | None:
        """Put what came of a promise; those that may be begun now, one of each FIFO group. None if
        the buffer is closed, and they must be given back."""
        with self._lock:
            if self._closed:
                return None
            self._promised -= promised
            groups = Groups(received, _group)
            for one in received:
                self._held[id(one)] = one, groups
            return groups.take(len(received))

    def forgo(self, promised: int) -> None:
        """Nothing comes of a promise, or it was given back."""
        with self._lock:
            self._promised -= promised
            self._room.notify_all()

    def acknowledged(self, one: Delivery) -> list[Delivery]:
        """It is settled, and on its way out; those of its FIFO group that may be begun now."""
        with self._lock:
            groups = self._held[id(one)][1]
            groups.settled(one)
            self._leaving.add(id(one))
            self._room.notify()
            return [] if self._closed else groups.take(1)

    def postponed(self, one: Delivery) -> list[Delivery]:
        """It comes again; with those behind it in its FIFO group, which must not overtake it."""
        with self._lock:
            behind = self._behind(one)
            self._leaving.update(map(id, [one, *behind]))
            self._room.notify()
            return [one, *behind]

    def gone(self, deliveries: Iterable[Delivery]) -> None:
        """These were acknowledged or given back."""
        with self._lock:
            for one in deliveries:
                self._held.pop(id(one), None)
                self._leaving.discard(id(one))
            self._room.notify_all()

    def received_before(self, before: float) -> list[Delivery]:
        """What is in flight, is not leaving, and was received or last held before that moment."""
        with self._lock:
            return [
                one
                for number, (one, _) in self._held.items()
                if one.held < before and number not in self._leaving
            ]

    def close(self) -> list[Delivery]:
        """Take nothing more in; those whose turn in their FIFO group has not come."""
        with self._lock:
            self._closed = True
            self._room.notify_all()
            groups = {id(groups): groups for _, groups in self._held.values()}
            waiting = [
                one
                for some in groups.values()
                for one in some.waiting()
                if id(one) not in self._leaving
            ]
            self._leaving.update(map(id, waiting))
            return waiting

    def drained(self, within: float) -> list[Delivery]:
        """Wait until nothing is in flight; what is still worked on when the time is over."""
        end = time.monotonic() + within
        with self._lock:
            while (self._held or self._promised) and (left := end - time.monotonic()) > 0:
                # The second signal, too, is for the thread that waits here.
                self._room.wait(min(left, ASLEEP))
            return [self._held[number][0] for number in self._held.keys() - self._leaving]

    def _behind(self, one: Delivery) -> list[Delivery]:
        if not one.group:
            return []
        groups = self._held[id(one)][1]
        return [other for other in groups.waiting() if other.group == one.group]

    def _free(self) -> int:
        if len(self._leaving) > MOST_LEAVING:
            return 0
        return self._limit() - (len(self._held) - len(self._leaving)) - self._promised

    def _limit(self) -> int:
        """How many may be in work, or wait to be soon."""
        if self._slowest is None or not self._ahead:
            return self._concurrency
        soon = self._concurrency * SOON / max(self._slowest, 1e-6)
        return self._concurrency + int(min(self._ahead, soon))


def _group(delivery: Delivery) -> str:
    return delivery.group
