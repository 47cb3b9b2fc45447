"""What a worker has at hand, from receiving to leaving: waiting, in work, on its way out."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

from eventonce.core.ports import Delivery
from eventonce.worker.crew import ASLEEP
from eventonce.worker.line import Line
from eventonce.worker.pace import QUICK, Pace

TOGETHER: Final = 20
"""Quick events that are worth another hand while one is busy: two requests' worth. For fewer the
busy one is waited for, which saves the store a call and this process a change of threads."""


class Desk:
    """Bounded by its pace: receivers are told how many it has room for, and hands what to take.

    The deliveries of one group lie in one line, and a line is taken whole.
    """

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._room = threading.Condition(self._lock)
        self._waiting: deque[list[Delivery]] = deque()
        self._at_hand: dict[int, Delivery] = {}
        self._leaving: set[int] = set()
        self._lines: dict[Line, float] = {}
        """In work, with when somebody last came to work on them."""
        self._calls: deque[Line] = deque()
        self._in_work = 0
        self._busy = 0
        self._promised = 0
        self._watched = False
        self._closed = False

    @property
    def in_work(self) -> int:
        """Events a handler may be running for."""
        return self._in_work

    @property
    def at_hand(self) -> int:
        """Events received and neither acknowledged nor given back."""
        return len(self._at_hand)

    @property
    def full(self) -> bool:
        """Whether there is no room for more, so that nobody asks for it."""
        with self._lock:
            return len(self._at_hand) >= self._pace.limit()

    @property
    def empty(self) -> bool:
        """Whether nothing is at hand and nothing is being received."""
        with self._lock:
            return not self._at_hand and not self._promised

    def promise(self, most: int, within: float) -> int:
        """Wait for room; how many may be received now: a promise to `put` or to `forgo`."""
        with self._lock:
            if not self._room.wait_for(lambda: not self._closed and self._free() > 0, within):
                return 0
            promised = min(most, self._free())
            self._promised += promised
            return promised

    def put(self, promised: int, received: Sequence[Delivery]) -> bool:
        """Put what came of a promise; False if the desk is closed, and it must be given back."""
        with self._lock:
            if self._closed:
                return False
            self._promised -= promised
            for one in received:
                self._at_hand[id(one)] = one
            self._waiting.extend(_lines(received))
            self._wake()
            return True

    def forgo(self, promised: int) -> None:
        """Nothing comes of a promise, or it was given back."""
        with self._lock:
            self._promised -= promised
            self._room.notify_all()

    def take(self) -> list[Delivery] | Line | None:
        """Wait for something to do, or somebody to help; None if there will be nothing more.

        Who comes back from work takes what there is. Who was idle leaves the others a moment to
        come back first, unless there is enough for one more.
        """
        with self._lock:
            comes_back, late = True, False
            while True:
                if self._calls:
                    self._busy += 1
                    called = self._calls.popleft()
                    self._wake()
                    return called
                if self._closed:
                    return None
                portion = self._pace.portion(self._in_work) if self._waiting else 0
                if portion > 0 and (comes_back or late or self._hands_wanted()):
                    break
                comes_back = False
                late = self._idle(watching=portion > 0)
            taken = self._waiting.popleft()
            if taken[0].times == 1:
                # What comes again may be what killed a worker: it is not taken with others, for
                # a crash costs all that were an attempt.
                while self._waiting and self._waiting[0][0].times == 1 and len(taken) < portion:
                    taken += self._waiting.popleft()
            self._in_work += len(taken)
            self._busy += 1
            # What is left must not wait for who is in work now: that may take its time.
            self._wake()
            return taken

    def lay_open(self, line: Line) -> None:
        """What a hand has begun to work off: others may be called to help with it."""
        with self._lock:
            self._lines[line] = time.monotonic()

    def take_away(self, line: Line) -> None:
        """The hand has come to its end."""
        with self._lock:
            del self._lines[line]

    def call_help(self, before: float) -> None:
        """Call idle hands where some still wait for one that was begun before that moment."""
        with self._lock:
            for line, since in self._lines.items():
                if since < before and line and line not in self._calls:
                    self._lines[line] = time.monotonic()
                    self._calls.append(line)
            self._work.notify(len(self._calls))

    def left_work(self, deliveries: Sequence[Delivery]) -> None:
        """These are worked on no more, and on their way out."""
        with self._lock:
            self._in_work -= len(deliveries)
            self._leaving.update(map(id, deliveries))
            self._wake()

    def rest(self) -> None:
        """A hand that had taken something can take more."""
        with self._lock:
            self._busy -= 1
            self._wake()

    def gone(self, deliveries: Iterable[Delivery]) -> None:
        """These were acknowledged or given back."""
        with self._lock:
            for one in deliveries:
                self._at_hand.pop(id(one), None)
                self._leaving.discard(id(one))
            self._room.notify_all()

    def kept_since(self, before: float) -> list[Delivery]:
        """What is at hand, is not leaving, and was received or last held before that moment."""
        with self._lock:
            return [
                one
                for number, one in self._at_hand.items()
                if one.held < before and number not in self._leaving
            ]

    def close(self) -> list[Delivery]:
        """Take nothing more in and give nothing more out; what had not been begun."""
        with self._lock:
            self._closed = True
            # What a hand has begun to work off shall be done before the time is over.
            self._calls.extend(line for line in self._lines if line)
            unbegun = [one for line in self._waiting for one in line]
            self._waiting.clear()
            self._leaving.update(map(id, unbegun))
            self._work.notify_all()
            self._room.notify_all()
            return unbegun

    def clear(self, within: float) -> list[Delivery]:
        """Wait until nothing is at hand and nothing is being received; what is still in work when
        the time is over."""
        end = time.monotonic() + within
        with self._lock:
            while (self._at_hand or self._promised) and (left := end - time.monotonic()) > 0:
                # The second signal, too, is for the thread that waits here.
                self._room.wait(min(left, ASLEEP))
            working = self._at_hand.keys() - self._leaving
            return [self._at_hand[number] for number in working]

    def _hands_wanted(self) -> int:
        """How many hands what waits is worth: one if none is busy, one more for each portion."""
        together = max(1, min(TOGETHER, self._pace.portion(self._in_work)))
        return len(self._waiting) // together or int(not self._busy)

    def _wake(self) -> None:
        """Call the hands that are wanted, or one to see to it that nothing waits long."""
        if self._waiting:
            self._work.notify(self._hands_wanted() or int(not self._watched))

    def _idle(self, *, watching: bool) -> bool:
        """Wait to be called; or see to it that what waits does not wait long: True if it did."""
        if not watching or self._watched:
            self._work.wait()
            return False
        self._watched = True
        called = self._work.wait(QUICK)
        self._watched = False
        return not called

    def _free(self) -> int:
        return self._pace.limit() - len(self._at_hand) - self._promised


def _lines(deliveries: Sequence[Delivery]) -> list[list[Delivery]]:
    lines: dict[object, list[Delivery]] = {}
    for one in deliveries:
        lines.setdefault(one.group or id(one), []).append(one)
    return list(lines.values())
