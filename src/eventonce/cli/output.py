"""Standard output for events: all of it is written, or an error says that it was not."""

from __future__ import annotations

import errno
import os
import sys
from typing import BinaryIO

from eventonce.errors import ConfigError


def standard_output() -> BinaryIO:
    """Where events are written to."""
    if sys.stdout is None:
        raise ConfigError("standard output is closed: there is nowhere to write events to")
    return sys.stdout.buffer


def write_whole(out: BinaryIO, data: bytes) -> None:
    """Write and flush. Under `python -u` the stream is the bare file, whose `write` may take only
    a part, or nothing if it would have to wait, and raises neither time."""
    rest = memoryview(data)
    while rest:
        taken = out.write(rest)
        if not taken:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        rest = rest[taken:]
    out.flush()
