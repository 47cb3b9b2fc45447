"""Signals that end a command which would go on for ever: the first asks, the second insists."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def ended_by_signals(stop: Callable[[str], None]) -> Iterator[None]:
    """SIGTERM and SIGINT stop the work; the second signal ends the process at once."""
    asked: list[int] = []

    def on(number: int, _frame: FrameType | None) -> None:
        # Noted before it is counted: the other signal may interrupt this very function.
        asked.append(number)
        if len(asked) > 1:
            os._exit(128 + number)
        stop(signal.Signals(number).name)

    before = {number: signal.signal(number, on) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
