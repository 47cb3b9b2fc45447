"""The wall clock, in the law's unit; all code that needs the time gets a clock as an argument."""

from __future__ import annotations

import time


def wall_clock() -> int:
    """Return the milliseconds since the epoch."""
    return time.time_ns() // 1_000_000
