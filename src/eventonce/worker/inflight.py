"""The in-flight buffer: the events that were received and are neither acknowledged nor
postponed."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from typing import Final

from eventonce.core.ports import Delivery
from eventonce.runtime.fifo import Groups
from eventonce.worker.threads import MAIN_SLEEP

BATCH_EVENTS: Final = 10
"""The most messages of one request to SQS."""

BEGIN_WITHIN: Final = 1.0
"""Seconds within which a received event should begin: its visibility timeout runs meanwhile."""

RECEIVED_AHEAD: Final = 20
"""Events received ahead for each receiver, when handlers are quick: two requests of ten, which
arrive while the ten events before them are processed."""

MOST_UNACKNOWLEDGED: Final = 200
"""Processed events that may wait for their acknowledgement before no more are received."""

MOST_WAITING: Final = 200
"""Copies that may wait for a run of this worker, and leave their room to other events. Each is
held in memory; those beyond take up room."""

SLOWEST_DECAY: Final = 0.8
"""The factor for the slowest time after each quicker event: after one slow event the worker
receives less ahead for about twenty events."""


class Inflight:
    """A bounded buffer: as many events as there are slots, and more only if handlers are quick."""

    def __init__(self, concurrency: int, receivers: int, *, asynchronous: bool) -> None:
        """`asynchronous`: whether handlers run on a loop, where slots do not limit them."""
        self._concurrency = concurrency
        self._ahead = 0 if asynchronous else RECEIVED_AHEAD * receivers
        self._slowest: float | None = None
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._held: dict[int, tuple[Delivery, Groups[Delivery]]] = {}
        self._processed: set[int] = set()
        self._waiting = 0
        self._reserved = 0
        self._closed = False

    def __len__(self) -> int:
        return len(self._held)

    @property
    def full(self) -> bool:
        """Whether there is no room for another event, so that the queue is not asked."""
        with self._lock:
            return self._free() <= 0

    @property
    def empty(self) -> bool:
        """Whether nothing is in flight and nothing is being received."""
        with self._lock:
            return not self._held and not self._reserved

    def note_time(self, seconds: float) -> None:
        """Note the time that a handler took."""
        self._slowest = max(seconds, (self._slowest or 0.0) * SLOWEST_DECAY)

    def waits(self, more: int) -> None:
        """Note that one event more waits for the run of its copy, or one less (-1)."""
        with self._lock:
            self._waiting += more
            self._room.notify()

    def reserve(self, most: int, within: float) -> int:
        """Wait for room and reserve it; return how many events may be received now. The caller
        fills the room with `put`, or gives it back with `forgo`."""
        with self._lock:
            if not self._room.wait_for(lambda: not self._closed and self._free() > 0, within):
                return 0
            reserved = min(most, self._free())
            self._reserved += reserved
            return reserved

    def put(self, reserved: int, received: Sequence[Delivery]) -> list[Delivery] | None:
        """Fill reserved room; return the events that may begin now, one of each FIFO group. None if
        the buffer is closed, and the caller must postpone the events."""
        with self._lock:
            if self._closed:
                return None
            self._reserved -= reserved
            groups = Groups(received, _group)
            for one in received:
                self._held[id(one)] = one, groups
            return groups.take(len(received))

    def forgo(self, reserved: int) -> None:
        """Give reserved room back."""
        with self._lock:
            self._reserved -= reserved
            self._room.notify_all()

    def acknowledged(self, one: Delivery) -> list[Delivery]:
        """Note that the event is settled; return the next event of its FIFO group, to begin now."""
        with self._lock:
            groups = self._held[id(one)][1]
            groups.settled(one)
            self._processed.add(id(one))
            self._room.notify()
            return [] if self._closed else groups.take(1)

    def postponed(self, one: Delivery) -> list[Delivery]:
        """Note that the event comes again; return it with the events behind it in its FIFO group,
        which must not overtake it."""
        with self._lock:
            behind = self._behind(one)
            self._processed.update(map(id, [one, *behind]))
            self._room.notify()
            return [one, *behind]

    def gone(self, deliveries: Iterable[Delivery]) -> None:
        """Remove events that are acknowledged or postponed at the source."""
        with self._lock:
            for one in deliveries:
                self._held.pop(id(one), None)
                self._processed.discard(id(one))
            self._room.notify_all()

    def received_before(self, before: float) -> list[Delivery]:
        """Return the events in work whose visibility began, or was last renewed, before this
        moment."""
        with self._lock:
            return [
                one
                for number, (one, _) in self._held.items()
                if one.held < before and number not in self._processed
            ]

    def in_work(self, deliveries: Iterable[Delivery]) -> list[Delivery]:
        """Return those of these events that are still in work."""
        with self._lock:
            at_work = self._held.keys() - self._processed
            return [one for one in deliveries if id(one) in at_work]

    def close(self) -> list[Delivery]:
        """Take no more events; return those that still wait for an earlier one of their group."""
        with self._lock:
            self._closed = True
            self._room.notify_all()
            groups = {id(groups): groups for _, groups in self._held.values()}
            waiting = [
                one
                for some in groups.values()
                for one in some.waiting()
                if id(one) not in self._processed
            ]
            self._processed.update(map(id, waiting))
            return waiting

    def drained(self, within: float) -> list[Delivery]:
        """Wait until nothing is in flight; return the events that are still in work at the end of
        the time."""
        end = time.monotonic() + within
        with self._lock:
            while (self._held or self._reserved) and (left := end - time.monotonic()) > 0:
                # In short steps, because this thread must also run the handler of a second signal.
                self._room.wait(min(left, MAIN_SLEEP))
            return [self._held[number][0] for number in self._held.keys() - self._processed]

    def _behind(self, one: Delivery) -> list[Delivery]:
        if not one.group:
            return []
        groups = self._held[id(one)][1]
        return [other for other in groups.waiting() if other.group == one.group]

    def _free(self) -> int:
        if len(self._processed) > MOST_UNACKNOWLEDGED:
            return 0
        at_work = len(self._held) - len(self._processed) - min(self._waiting, MOST_WAITING)
        return self._limit() - at_work - self._reserved

    def _limit(self) -> int:
        """Return the number of events that may be in work, or begin soon."""
        if self._slowest is None or not self._ahead:
            return self._concurrency
        soon = self._concurrency * BEGIN_WITHIN / max(self._slowest, 1e-6)
        return self._concurrency + int(min(self._ahead, soon))


def _group(delivery: Delivery) -> str:
    return delivery.group
