"""A capture in files as a source: each event once, at a given rate, and again where it failed."""

from __future__ import annotations

import heapq
import secrets
import threading
import time
from collections.abc import Sequence
from itertools import count, islice
from math import inf
from pathlib import Path
from typing import Final

import msgspec

from eventonce.core.ports import Delivery
from eventonce.errors import ConfigError
from eventonce.sources.capture import Capture

WAIT: Final = 0.2
"""Seconds a receive waits at most for the rate to allow an event, or for a failed one's time."""

AHEAD: Final = 1.0
"""Seconds' worth of events that may be made up for after a pause: the rate is a limit, and what a
store's outage held back must not all come at once."""


class Lines:
    """The events of files and folders. What fails is kept in memory until its time has come: a
    process that ends before that starts again from the files, and what took effect is a copy."""

    hold = inf

    def __init__(self, paths: Sequence[Path], *, rate: float = inf) -> None:
        self.capture = Capture(paths)
        self._events = iter(self.capture)
        self._rate = rate
        self._next = time.monotonic()
        self._exhausted = False
        self.unread = ""
        """Which files could not be read to their end, and why."""
        self._later: list[tuple[float, int, Delivery]] = []
        self._numbers = count()
        self._reading = secrets.token_hex(8)
        self._lock = threading.Lock()

    def __str__(self) -> str:
        return "the capture"

    @property
    def ended(self) -> bool:
        """Whether all was read and nothing waits for its time."""
        with self._lock:
            return self._exhausted and not self._later

    def receive(self, most: int) -> list[Delivery]:
        now = time.monotonic()
        with self._lock:
            given = self._due(now, most)
            given += self._read(now, most - len(given))
            pause = self._pause(now)
        if not given:
            time.sleep(pause)
        return given

    def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        """Nothing is to be told to a file."""

    def postpone(self, deliveries: Sequence[tuple[Delivery, float]]) -> None:
        now = time.monotonic()
        with self._lock:
            for one, seconds in deliveries:
                # Another object, as from a queue: this one is still on somebody's list.
                again = msgspec.structs.replace(one, times=one.times + 1)
                heapq.heappush(self._later, (now + seconds, next(self._numbers), again))

    def close(self) -> None:
        """Leave the file that is being read."""
        self._events.close()  # type: ignore[attr-defined]

    def _due(self, now: float, most: int) -> list[Delivery]:
        due: list[Delivery] = []
        while len(due) < most and self._later and self._later[0][0] <= now:
            due.append(heapq.heappop(self._later)[2])
        return due

    def _read(self, now: float, most: int) -> list[Delivery]:
        if self._rate < inf:
            self._next = max(self._next, now - AHEAD)
            most = min(most, int((now - self._next) * self._rate))
        if most <= 0 or self._exhausted:
            return []
        bodies: list[bytes] = []
        try:
            bodies.extend(islice(self._events, most))
        except ConfigError as error:
            # SettleResult for the end: what was read before it is not to be lost with it.
            self.unread = str(error)
        self._exhausted = len(bodies) < most
        self._next += len(bodies) / self._rate
        # An event that nothing tells from another has its attempts counted by this name.
        return [
            Delivery(body, f"{self._reading}-{next(self._numbers)}", since=now, held=now)
            for body in bodies
        ]

    def _pause(self, now: float) -> float:
        if self._exhausted:
            first = self._later[0][0] if self._later else inf
        else:
            first = self._next + 1 / self._rate
        return min(WAIT, max(0.001, first - now))
