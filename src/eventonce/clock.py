"""The wall clock, in the law's unit; everything that needs the time takes it as an argument."""

from __future__ import annotations

import time


def wall_clock() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000
