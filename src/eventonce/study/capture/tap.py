"""The tap: writes the events that arrive at a worker or a receiver, and never makes them wait.

A separate thread writes, which the record of shadow mode uses too. Events that come faster than the
disk can write are left out, counted and reported.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Final, Generic, TypeVar

from eventonce.clock import wall_clock
from eventonce.core.ports import Delivery, Source
from eventonce.envelope.captured import Arrived, Tap, line_of
from eventonce.errors import EventonceError
from eventonce.runtime.background import Background
from eventonce.study.capture.recorder import Recorder
from eventonce.types import Event

BUFFER_BYTES: Final = 32 << 20
"""The most bytes of events that wait for the disk: half a minute of a thousand events a second."""

log = logging.getLogger("eventonce.capture")


T = TypeVar("T")


class BackgroundLines(Generic[T]):
    """Writes lines to a file in a thread of its own; can be called by many threads."""

    def __init__(
        self, path: Path, *, name: str, line: Callable[[T], bytes], size: Callable[[T], int]
    ) -> None:
        """`name` names the lines in the log and beside the file; `line` makes a line of each, and
        `size` tells how many bytes each takes while it waits."""
        self._name = name
        self._line = line
        self._size = size
        self._recorder = Recorder(path, f"a {name}")
        self._process = os.getpid()
        self._background = Background[Sequence[T]](name, self._write, BUFFER_BYTES)

    @property
    def written(self) -> int:
        """The number of lines in the file."""
        return self._background.written

    @property
    def dropped(self) -> int:
        """The number of lines that were left out."""
        return self._background.dropped

    def close(self) -> None:
        """Write the waiting lines, and log how many were written and left out."""
        if not self._background.close():
            return
        self._recorder.close()
        told = log.warning if self.dropped else log.info
        path = self._recorder.path
        told("%s: %d events in %s, %d left out", self._name, self.written, path, self.dropped)

    def __call__(self, some: Sequence[T]) -> None:
        """Queue these for writing."""
        # A copy: the caller may change its list.
        self._background.add(tuple(some), sum(map(self._size, some)), len(some))

    def _write(self, some: Sequence[Sequence[T]]) -> None:
        if os.getpid() != self._process:
            raise EventonceError(f"{self._recorder.path} is written by the process that forked")
        self._recorder.commit([self._line(one) for one in chain.from_iterable(some)], None)


def _size(one: Arrived) -> int:
    return len(one.body.raw if isinstance(one.body, Event) else one.body)


FileTap: Final = partial(BackgroundLines[Arrived], name="tap", line=line_of, size=_size)
"""Writes arrivals to the capture at a path; `line` makes the line of each."""


class TappedSource:
    """A source whose deliveries are also given to a tap."""

    def __init__(self, source: Source, tap: Tap, channel: str) -> None:
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
