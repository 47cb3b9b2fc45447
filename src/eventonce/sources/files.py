"""Captured events in files as a source: each once, at a given rate, and again if it failed."""

from __future__ import annotations

import heapq
import secrets
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import chain, count, islice
from math import inf
from typing import Final

import msgspec

from eventonce.core.ports import Delivery
from eventonce.errors import ConfigError
from eventonce.sources.compression import Unreadable
from eventonce.sources.inputs import Input, Place, inputs
from eventonce.sources.json_stream import Chunk, Long

EVENT_BYTES: Final = 16 << 20
"""The most bytes of one event in memory: many times the limit of a consumer, so that an event over
that limit becomes a complete dead letter. A longer event stays in its file, and is reported."""

RATE_WAIT: Final = 0.2
"""The most seconds that a receive waits for the rate, or for the retry of a failed event."""

CATCH_UP_TIME: Final = 1.0
"""The most seconds of the rate that are made up for after a pause: the events that an outage of the
store held back must not all come at once."""


Progress = Callable[[int, int], None]
"""A callback with the number of bytes that have been read, and the number of all bytes."""


class FileSource:
    """The events of files and folders. A failed event is kept in memory until its retry: a process
    that ends before that starts again from the files, and the events that took effect are copies.
    """

    hold = inf
    keeps = True
    """Whether an event stays in the source although it is acknowledged."""

    def __init__(self, paths: Sequence[Place], *, rate: float = inf) -> None:
        self.capture = Capture(paths)
        self._events = iter(self.capture)
        self._rate = rate
        self._next = time.monotonic()
        self._exhausted = False
        self.unread = ""
        """The files that could not be read to their end, and the reasons."""
        self._later: list[tuple[float, int, Delivery]] = []
        self._numbers = count()
        self._reading = secrets.token_hex(8)
        self._lock = threading.Lock()

    def __str__(self) -> str:
        return "the capture"

    @property
    def ended(self) -> bool:
        """Whether all events were read and none waits for a retry."""
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
        """Do nothing: a file needs no acknowledgement."""

    def postpone(self, deliveries: Sequence[tuple[Delivery, float]]) -> None:
        now = time.monotonic()
        with self._lock:
            for one, seconds in deliveries:
                # A new object, as from a queue: the worker still holds the old one.
                again = msgspec.structs.replace(one, times=one.times + 1)
                heapq.heappush(self._later, (now + seconds, next(self._numbers), again))

    def close(self) -> None:
        """Close the file that is being read."""
        self._events.close()

    def _due(self, now: float, most: int) -> list[Delivery]:
        due: list[Delivery] = []
        while len(due) < most and self._later and self._later[0][0] <= now:
            due.append(heapq.heappop(self._later)[2])
        return due

    def _read(self, now: float, most: int) -> list[Delivery]:
        if self._rate < inf:
            self._next = max(self._next, now - CATCH_UP_TIME)
            most = min(most, int((now - self._next) * self._rate))
        if most <= 0 or self._exhausted:
            return []
        bodies: list[bytes] = []
        try:
            bodies.extend(islice(self._events, most))
        except ConfigError as error:
            # Reported at the end: the events that were read before the error must not be lost.
            self.unread = str(error)
        self._exhausted = len(bodies) < most
        self._next += len(bodies) / self._rate
        # The attempts of an event without a key are counted by this receipt.
        return [
            Delivery(body, f"{self._reading}-{next(self._numbers)}", since=now, held=now)
            for body in bodies
        ]

    def _pause(self, now: float) -> float:
        if self._exhausted:
            first = self._later[0][0] if self._later else inf
        else:
            first = self._next + 1 / self._rate
        return min(RATE_WAIT, max(0.001, first - now))


class Capture:
    """The events of several places, one after the other, each as bytes."""

    def __init__(
        self,
        places: Sequence[Place],
        *,
        longest: int = EVENT_BYTES,
        unread: list[str] | None = None,
        progress: Progress | None = None,
    ) -> None:
        """`unread` collects the inputs that cannot be read, and why; without it, they raise a
        ConfigError at the end."""
        self._inputs, self.passed_over = inputs(places)
        self._longest = longest
        self.unread = unread
        self._progress = progress
        self._before = 0
        self._open: Input | None = None
        self._chunk_begin = 0
        self._chunk_bytes = 1
        self._chunk_yielded = 0
        self._counts: list[int] = []
        self.size = sum(one.size for one in self._inputs)

    @property
    def position(self) -> int:
        """Bytes of the files whose events were yielded; estimated within a chunk that was read."""
        if self._open is None:
            return self._before
        chunk = self._before + self._open.position - self._chunk_begin
        yielded = min(self._chunk_yielded, self._chunk_bytes)
        return self._chunk_begin + chunk * yielded // self._chunk_bytes

    def __iter__(self) -> Generator[bytes, None, None]:
        """Yield the bytes of each event.

        A file that cannot be read to its end does not stop the others, and neither does an event
        that is too long to hold in memory.
        """
        broken: list[str] = []
        self._counts = []
        self._before = 0
        for one in self._inputs:
            self._begin_chunk(self._before, ())
            self._open = one
            events = 0
            try:
                for chunk in one.chunks(self._longest):
                    if isinstance(chunk, Long):
                        more = f"an event of more than {self._longest} bytes"
                        broken.append(f"{one.name}{chunk.place} was not read: {more}")
                        continue
                    self._begin_chunk(self._chunk_begin, chunk.events)
                    for event in events_of(chunk):
                        self._chunk_yielded += len(event)
                        yield event
                        events += 1
                    self._begin_chunk(self._before + one.position, ())
                    if self._progress:
                        self._progress(self.position, self.size)
            except (OSError, Unreadable) as error:
                behind = f", after {events} events" if events else ""
                broken.append(f"{one.name} cannot be read to its end{behind}: {error}")
            finally:
                self._open = None
            self._counts.append(events)
            self._before += one.size
        if self.unread is not None:
            self.unread += broken
        elif broken:
            raise ConfigError("; ".join(broken))

    def again(self) -> Iterator[bytes]:
        """Yield the events of the last reading once more, without those that a tap has added since.
        ConfigError if some are not there any more."""
        for one, number in zip(self._inputs, self._counts, strict=True):
            events, why = 0, "it was changed"
            chunks = (it for it in one.chunks(self._longest) if not isinstance(it, Long))
            try:
                for event in islice(chain.from_iterable(map(events_of, chunks)), number):
                    yield event
                    events += 1
            except (OSError, Unreadable) as error:
                why = str(error)
            if events < number:
                raise ConfigError(
                    f"{one.name} cannot be read a second time: {why}. It had {number} events, and "
                    f"now it has {events}. Start again"
                )

    def _begin_chunk(self, begin: int, events: Sequence[bytes]) -> None:
        self._chunk_begin, self._chunk_yielded = begin, 0
        self._chunk_bytes = sum(map(len, events)) or 1


def events_of(chunk: Chunk) -> Iterator[bytes]:
    """Yield the events of a chunk, with each batch split into its events."""
    for some in chunk.apart():
        for event in some.events:
            if event and not event.isspace():
                yield event.rstrip(b"\r\n")
