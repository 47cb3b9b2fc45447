"""The tap: writes what arrives at a worker or a receiver, and never makes it wait.

The events are written by a thread of the tap's own. What comes faster than the disk takes it is
left out, counted and reported.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from eventonce.clock import wall_clock
from eventonce.core.ports import Delivery, Source
from eventonce.envelope.captured import Arrived, line_of
from eventonce.errors import EventonceError
from eventonce.study.capture.recorder import Recorder
from eventonce.types import Event

BUFFER_BYTES: Final = 32 << 20
"""Bytes of events that may wait for the disk: about half a minute of a thousand events a second."""
WRITE_INTERVAL: Final = 1.0  # seconds

log = logging.getLogger("eventonce.capture")


class FileTap:
    """Writes arrivals to a capture; called by many threads."""

    def __init__(self, path: Path) -> None:
        self.written = 0
        self.dropped = 0
        """Events that were left out."""
        self._recorder = Recorder(path, "a tap")
        self._waiting: list[Arrived] = []
        self._bytes = 0
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="eventonce-tap", daemon=True)
        self._thread.start()

    def __call__(self, arrived: Sequence[Arrived]) -> None:
        size = sum(_size(one) for one in arrived)
        with self._lock:
            if self._bytes + size > BUFFER_BYTES:
                self.dropped += len(arrived)
                return
            self._bytes += size
            self._waiting += arrived

    def close(self) -> None:
        """Write what waits, and say how much was written and left out."""
        self._ended.set()
        self._thread.join()
        self._recorder.close()
        told = log.warning if self.dropped else log.info
        told("tap: %d events in %s, %d left out", self.written, self._recorder.path, self.dropped)

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
            self._recorder.commit([line_of(one) for one in some], None)
        except EventonceError as error:
            log.warning("tap: %d events are left out: %s", len(some), error)
            self.dropped += len(some)
        else:
            self.written += len(some)
        with self._lock:
            self._bytes -= sum(_size(one) for one in some)


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
