"""A capture: what arrives somewhere, written to files as it came.

A feed brings arrivals, the recorder writes them, and only then the feed lets go of them.
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
"""Lines are committed together, as many as come in so long or are so large: a commit waits for the
disk, and lines that are compressed together become smaller."""

TICK: Final = 0.5
"""Seconds after which a feed that has nothing says so."""

Brought = Arrived | bytes
"""An arrival, or a line of a capture as it stands there."""


class Feed(Protocol):
    """Where a capture comes from.

    Guaranteed: what was brought and not committed is brought again by the next start.
    """

    notes: list[str]
    """Notes for the person who reads the end of the capture."""
    broken: bool
    """Whether something could not be read."""

    def __str__(self) -> str:
        """The name of the place, the same at every start."""
        ...

    def resume(self, position: Any) -> None:
        """Go on from here: what `position` was at the last commit, None at the beginning."""
        ...

    def __iter__(self) -> Iterator[Sequence[Brought]]:
        """The arrivals, some at a time; an empty list, now and then, while none come."""
        ...

    def position(self) -> Any:
        """Where to go on after all that was brought."""
        ...

    def committed(self) -> None:
        """All that was brought is on the disk: let go of it."""
        ...

    def close(self) -> None:
        """Let go of connections and threads."""
        ...


class Progress(msgspec.Struct):
    """The progress of a capture since it was started."""

    lines: int = 0
    last: int = 0
    """When the last line was committed, in milliseconds; 0 if none was."""


def record(
    feed: Feed,
    recorder: Recorder,
    *,
    change: Callable[[bytes], bytes] = bytes,
    stopping: Callable[[], bool] = lambda: False,
    told: Callable[[Progress], None] = lambda _: None,
    clock: Callable[[], float] = time.monotonic,
) -> Progress:
    """Write what the feed brings until it ends, or until it is to stop; `change` is made to every
    line, and `told` is how far it is."""
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
