"""Captured events in files as a source: each once, at a given rate, and again where it failed."""

from __future__ import annotations

import heapq
import secrets
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from itertools import count, islice
from math import inf
from pathlib import Path
from typing import IO, Final

import msgspec

from eventonce.core.ports import Delivery
from eventonce.errors import ConfigError
from eventonce.sources.compression import Unreadable
from eventonce.sources.json_stream import Chunk, Long, chunks

ENDINGS: Final = (".json", ".jsonl", ".ndjson", ".gz", ".zst")
"""The endings of the files of a folder that are read, beside names without an ending, as Firehose
writes them: a README.txt beside them is no event."""

EVENT_BYTES: Final = 16 << 20
"""Bytes of one event that are held in memory: many times the limit of a consumer, whose dead letter
keeps an event whole. A longer event stays in its file, and is reported."""

WAIT: Final = 0.2
"""Seconds that a receive waits at most for the rate, or for the retry of a failed event."""

CATCH_UP: Final = 1.0
"""Seconds of the rate that may be made up for after a pause: the rate is a limit, and the events
that an outage of the store held back must not all come at once."""


class FileSource:
    """The events of files and folders. A failed event is kept in memory until its retry: a process
    that ends before that starts again from the files, and the events that took effect are copies.
    """

    hold = inf

    def __init__(self, paths: Sequence[Path], *, rate: float = inf) -> None:
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
        """A file needs no acknowledgement."""

    def postpone(self, deliveries: Sequence[tuple[Delivery, float]]) -> None:
        now = time.monotonic()
        with self._lock:
            for one, seconds in deliveries:
                # A new object, as from a queue: the worker still has this one.
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
            self._next = max(self._next, now - CATCH_UP)
            most = min(most, int((now - self._next) * self._rate))
        if most <= 0 or self._exhausted:
            return []
        bodies: list[bytes] = []
        try:
            bodies.extend(islice(self._events, most))
        except ConfigError as error:
            # Reported at the end: the events read before it must not be lost with it.
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
        return min(WAIT, max(0.001, first - now))


class Capture:
    """The events of some files one after the other, each as its bytes."""

    def __init__(self, paths: Sequence[Path], *, longest: int = EVENT_BYTES) -> None:
        self._files, others = files(paths)
        self.passed_over = _not_read(others) if others else ""
        """The files of the folders that are not read, and the reason."""
        if others and not self._files:
            raise ConfigError(self.passed_over)
        self._longest = longest
        self._before = 0
        self._open: IO[bytes] | None = None
        try:
            self.size = sum(path.stat().st_size for path in self._files)
        except OSError as error:
            raise ConfigError(f"the capture cannot be read: {error}") from error

    @property
    def position(self) -> int:
        """Bytes of the files that have been read."""
        stream = self._open
        return self._before + (0 if stream is None or stream.closed else stream.tell())

    def __iter__(self) -> Generator[bytes, None, None]:
        """One event's bytes after the other, each whole.

        A file that cannot be read to its end does not stop the others, nor does an event that is
        too long to hold: ConfigError names them at the end.
        """
        broken: list[str] = []
        for path in self._files:
            try:
                with path.open("rb") as stream:
                    self._open = stream
                    for chunk in chunks(stream, self._longest):
                        if isinstance(chunk, Long):
                            more = f"an event of more than {self._longest} bytes"
                            broken.append(f"{path}{chunk.place} was not read: {more}")
                        else:
                            yield from _events(chunk)
                    self._before += stream.tell()
            except (OSError, Unreadable) as error:
                broken.append(f"{path} cannot be read to its end: {error}")
            finally:
                self._open = None
        if broken:
            raise ConfigError("; ".join(broken))


def files(paths: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """The files named, and those in the folders named, by name; and those passed over there.

    Hidden ones are in neither.
    """
    found: list[Path] = []
    others: list[Path] = []
    for path in paths:
        if not path.is_dir():
            found.append(path)
            continue
        for one in sorted(path.rglob("*")):
            hidden = any(part.startswith(".") for part in one.relative_to(path).parts)
            if one.is_file() and not hidden:
                read = one.name.lower().endswith(ENDINGS) or not one.suffix
                (found if read else others).append(one)
    return found, others


def _events(chunk: Chunk) -> Iterator[bytes]:
    for some in chunk.apart():
        for event in some.events:
            if event and not event.isspace():
                yield event.rstrip(b"\r\n")


def _not_read(others: Sequence[Path]) -> str:
    more = f" and {len(others) - 1} more" if len(others) > 1 else ""
    return (
        f"not read: {others[0]}{more}; of a folder only {', '.join(ENDINGS)} and names without an "
        f"ending are, unless a file is named itself"
    )
