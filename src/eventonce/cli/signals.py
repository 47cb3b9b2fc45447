"""The signals that end a command: SIGTERM and SIGINT."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event
from types import FrameType
from typing import Final

WAKE_INTERVAL: Final = 0.2
"""Seconds after which a thread that waits looks whether there was a signal."""


@contextmanager
def ended_by_signals(stop: Callable[[str], None]) -> Iterator[None]:
    """SIGTERM and SIGINT stop a work that would go on for ever; the second signal ends the process
    at once."""
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


def wait_for_signal(ended: Event) -> None:
    """Wait until a handler of signals has set this. The system may give a signal to another thread:
    the main thread, which handles it, must wake up by itself."""
    while not ended.wait(WAKE_INTERVAL):
        pass


@contextmanager
def ended_after(tidy: Callable[[], None]) -> Iterator[None]:
    """SIGTERM ends the process at once, but not before this was done. An exception could come while
    a pool of processes starts, which would then wait for ever."""

    def on(number: int, _frame: FrameType | None) -> None:
        tidy()
        os._exit(128 + number)

    before = signal.signal(signal.SIGTERM, on)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
