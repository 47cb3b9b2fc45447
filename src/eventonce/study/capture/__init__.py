"""A capture: events as they arrive, written to files.

A feed brings arrivals, the recorder writes them, and only then the feed may delete them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any, Final, Protocol

import msgspec

from eventonce.envelope.captured import Arrived, line_of
from eventonce.study.capture.recorder import Recorder

GATHER_SECONDS: Final = 1.0
GATHER_BYTES: Final = 4 << 20
"""Lines are committed together, for so many seconds or up to so many bytes: a commit waits for the
disk, and lines that are compressed together become smaller."""

EMPTY_INTERVAL: Final = 0.5
"""Seconds after which a feed without arrivals yields an empty list."""

Brought = Arrived | bytes
"""An arrival, or a line of a capture, which is written unchanged."""


class Feed(Protocol):
    """The source of a capture.

    Guaranteed: an arrival that was brought and not committed is brought again after a restart.
    """

    notes: list[str]
    """Notes for the person who reads the end of the capture."""
    broken: bool
    """Whether a part could not be read."""

    def __str__(self) -> str:
        """Return the name of the source, the same at every start."""
        ...

    def resume(self, position: Any) -> None:
        """Continue at `position`, the one of the last commit; None at the beginning."""
        ...

    def __iter__(self) -> Iterator[Sequence[Brought]]:
        """Yield the arrivals, some at a time; an empty list, now and then, while none arrive."""
        ...

    def position(self) -> Any:
        """Return where to continue after all arrivals so far."""
        ...

    def committed(self) -> None:
        """All arrivals so far are on the disk: they may be deleted at the source."""
        ...

    def close(self) -> None:
        """Close the connections and end the threads."""
        ...


class Progress(msgspec.Struct):
    """The progress of a capture since it was started."""

    lines: int = 0
    last: int = 0
    """The instant of the last commit, in milliseconds; 0 if there was none."""


def record(
    feed: Feed,
    recorder: Recorder,
    *,
    change: Callable[[bytes], bytes] = bytes,
    stopping: Callable[[], bool] = lambda: False,
    told: Callable[[Progress], None] = lambda _: None,
    clock: Callable[[], float] = time.monotonic,
) -> Progress:
    """Write the arrivals of the feed until it ends, or until `stopping`; `change` is applied to
    every line, and `told` is called with the progress."""
    progress = Progress()
    lines: list[bytes] = []
    size, since = 0, clock()
    feed.resume(recorder.position)

    def commit() -> None:
        nonlocal size
        if lines:
            recorder.commit(lines, feed.position())
            progress.lines += len(lines)
            progress.last = time.time_ns() // 1_000_000
            lines.clear()
            size = 0
        feed.committed()
        told(progress)

    with closing(feed):
        for some in feed:
            if some and not lines:
                since = clock()
            for one in some:
                line = change(one if isinstance(one, bytes) else line_of(one))
                lines.append(line)
                size += len(line)
            if size >= GATHER_BYTES or clock() - since >= GATHER_SECONDS or stopping():
                commit()
                since = clock()
            if stopping():
                break
        commit()
    return progress
