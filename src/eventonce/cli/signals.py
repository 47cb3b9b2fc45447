"""The signals that end a command: SIGTERM and SIGINT."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import Event, current_thread, main_thread
from types import FrameType
from typing import Final

WAKE_INTERVAL: Final = 0.2
"""Seconds after which a waiting main thread wakes up, so that Python can handle a signal."""


@contextmanager
def handled(on: Callable[[int, FrameType | None], object], *numbers: int) -> Iterator[None]:
    """Handle these signals by this function, and afterwards as before."""
    before = {number: signal.signal(number, on) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def ended_by_signals(stop: Callable[[str], None]) -> AbstractContextManager[None]:
    """Stop endless work at SIGTERM or SIGINT; the second signal ends the process at once, unless it
    is the SIGHUP that `called_by_hangup` gives on."""
    asked: list[int] = []
    numbers = (signal.SIGTERM, signal.SIGINT)

    def on(number: int, _frame: FrameType | None) -> None:
        # Appended before the count: the other signal may interrupt this function.
        asked.append(number)
        if len(asked) == 1:
            stop(signal.Signals(number).name)
        elif number in numbers:
            os._exit(128 + number)

    return handled(on, *numbers)


def wait_for_signal(ended: Event) -> None:
    """Wait until a signal handler has set this event. The system may deliver a signal to another
    thread, but Python handles it in the main thread, which must wake up by itself."""
    while not ended.wait(WAKE_INTERVAL):
        pass


def ended_after(tidy: Callable[[int], None]) -> AbstractContextManager[None]:
    """At SIGTERM or SIGINT, call this function with the number of the signal, and end the process
    at once. An exception instead could come while a pool of processes starts, or while one of them
    answers, and the pool would wait for ever."""
    here = os.getpid()

    def on(number: int, _frame: FrameType | None) -> None:
        try:
            # A process that was forked meanwhile has this handler, too.
            if os.getpid() == here:
                tidy(number)
        finally:
            os._exit(128 + number)

    wanted = (signal.SIGTERM, signal.SIGINT)
    return handled(on, *(one for one in wanted if signal.getsignal(one) is not signal.SIG_IGN))


class Interrupt:
    """Ctrl-C, which waits for the end of a step that must be finished; the second one does not."""

    def __init__(self) -> None:
        self._in_step = False
        self._came = False

    def handled(self) -> AbstractContextManager[None]:
        """Handle SIGINT here, unless the caller of the process has it ignored."""
        here = current_thread() is main_thread()
        if not here or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            return nullcontext()
        return handled(self._on, signal.SIGINT)

    @contextmanager
    def after(self) -> Iterator[None]:
        """Finish this step before a KeyboardInterrupt is raised."""
        self._in_step = True
        try:
            yield
        finally:
            self._in_step = False
        if self._came:
            raise KeyboardInterrupt

    def _on(self, _number: int, _frame: FrameType | None) -> None:
        if self._in_step and not self._came:
            self._came = True
        else:
            raise KeyboardInterrupt
