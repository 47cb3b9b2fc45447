"""Signals that end a command."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from types import FrameType


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


@contextmanager
def called_by_hangup(call: Callable[[], None]) -> Iterator[None]:
    """SIGHUP has this called, in a thread of its own: a signal may come at any instant, also while
    a lock is held that the call needs. Signals that come meanwhile are one more call together."""
    if not hasattr(signal, "SIGHUP"):  # Windows
        yield
        return
    # Its `put` may interrupt itself; that of other queues, and `Event.set`, may not.
    asked = SimpleQueue[bool]()

    def one_by_one() -> None:
        while asked.get():
            while not asked.empty():
                if not asked.get():
                    return
            call()

    threading.Thread(target=one_by_one, name="eventonce-reload", daemon=True).start()
    before = signal.signal(signal.SIGHUP, lambda _number, _frame: asked.put(True))
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)
        asked.put(False)


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
