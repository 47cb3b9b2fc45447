"""The tap: writes what arrives at a worker or a receiver, and never makes it wait.

The events are written by a thread of its own, which the record of shadow mode uses too. What comes
faster than the disk takes it is left out, counted and reported.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Generic, TypeVar

from eventonce.clock import wall_clock
from eventonce.core.ports import Delivery, Source
from eventonce.envelope.captured import Arrived, line_of
from eventonce.study.capture.recorder import Recorder
from eventonce.types import Event

BUFFER_BYTES: Final = 32 << 20
"""Bytes of events that may wait for the disk: about half a minute of a thousand events a second."""
WRITE_INTERVAL: Final = 1.0  # seconds

log = logging.getLogger("eventonce.capture")


T = TypeVar("T")


class BackgroundLines(Generic[T]):
    """Writes lines to a file from a thread of its own; called by many threads."""

    def __init__(self, path: Path, name: str, line: Callable[[T], bytes]) -> None:
        """`name` says in the log and beside the file what is written; `line` makes a line of it."""
        self.written = 0
        self.dropped = 0
        """Lines that were left out."""
        self._name = name
        self._line = line
        self._recorder = Recorder(path, f"a {name}")
        self._waiting: list[tuple[T, int]] = []
        self._bytes = 0
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"eventonce-{name}", daemon=True)
        self._thread.start()

    def add(self, some: Sequence[tuple[T, int]]) -> None:
        """Have these written, each with the bytes that it takes until then."""
        size = sum(size for _, size in some)
        with self._lock:
            if self._bytes + size > BUFFER_BYTES:
                self.dropped += len(some)
                return
            self._bytes += size
            self._waiting += some

    def close(self) -> None:
        """Write what waits, and say how much was written and left out."""
        self._ended.set()
        self._thread.join()
        self._recorder.close()
        told = log.warning if self.dropped else log.info
        path = self._recorder.path
        told("%s: %d events in %s, %d left out", self._name, self.written, path, self.dropped)

    def _run(self) -> None:
        while not self._ended.wait(WRITE_INTERVAL):
            self._write()
        self._write()

    def _write(self) -> None:
        with self._lock:
            some, self._waiting = self._waiting, []
        if not some:
            return
        try:
            self._recorder.commit([self._line(one) for one, _ in some], None)
        except Exception as error:  # noqa: BLE001  what cannot be written must not end the thread
            log.warning("%s: %d events are left out: %s", self._name, len(some), error)
            self.dropped += len(some)
        else:
            self.written += len(some)
        with self._lock:
            self._bytes -= sum(size for _, size in some)


class FileTap:
    """Writes arrivals to a capture."""

    def __init__(self, path: Path) -> None:
        self._lines = BackgroundLines(path, "tap", line_of)
        self.close = self._lines.close

    @property
    def written(self) -> int:
        """Events in the file."""
        return self._lines.written

    @property
    def dropped(self) -> int:
        """Events that were left out."""
        return self._lines.dropped

    def __call__(self, arrived: Sequence[Arrived]) -> None:
        self._lines.add([(one, _size(one)) for one in arrived])


class TappedSource:
    """A source whose deliveries a tap is told of."""

    def __init__(self, source: Source, tap: FileTap, channel: str) -> None:
        self._source = source
        self._tap = tap
        self._channel = channel
        self.acknowledge = source.acknowledge
        self.postpone = source.postpone
        self.close = source.close

    def __str__(self) -> str:
        return str(self._source)

    @property
    def hold(self) -> float:
        return self._source.hold

    @property
    def ended(self) -> bool:
        return self._source.ended

    def receive(self, most: int) -> list[Delivery]:
        found = self._source.receive(most)
        now = wall_clock()
        self._tap([Arrived(one.body, self._channel, one.id, now, one.times) for one in found])
        return found


def _size(one: Arrived) -> int:
    return len(one.body.raw if isinstance(one.body, Event) else one.body)
