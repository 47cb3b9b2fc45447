"""The threads of a worker, and the reason for which the main thread must end it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Final, NamedTuple

CHECK_INTERVAL: Final = 1.0
"""Seconds after which a waiting thread checks whether it is still needed."""


class Died(NamedTuple):
    """A thread has ended before it should."""

    name: str
    error: BaseException


class Asked(NamedTuple):
    """The worker must end: by a signal, or because the source has no more events."""

    why: str


EndReason = Died | Asked

SOURCE_ENDED: Final = Asked("the source has ended")

MAIN_SLEEP: Final = 1.0
"""Seconds that the main thread sleeps at a time. The system may deliver a signal to any thread;
Python runs the signal handler in the main thread, and does not wake the main thread for it."""


class Threads:
    """The threads, and the reasons to end that the main thread waits for."""

    def __init__(self) -> None:
        # Not an Event: a signal handler may interrupt the thread that waits while it holds the
        # event's lock. `SimpleQueue.put` is safe in a signal handler.
        self._reasons: SimpleQueue[EndReason] = SimpleQueue()
        self._stopping = threading.Event()
        self._released = False
        self.broken = False
        """Whether a thread died before it should end."""

    @property
    def stopping(self) -> bool:
        """Whether the threads must end."""
        return self._stopping.is_set()

    def start(self, name: str, work: Callable[[], None]) -> None:
        """Run this function in a thread; it must not end before the threads are released."""

        def watched() -> None:
            try:
                work()
                if self._released:
                    return
                raise RuntimeError(f"{name} ended by itself")
            except BaseException as error:  # noqa: BLE001  any end of a thread ends the worker
                self.broken = True
                self._reasons.put(Died(name, error))

        threading.Thread(target=watched, name=f"eventonce-{name}", daemon=True).start()

    def end(self, reason: EndReason) -> None:
        """Let the main thread end the worker; safe in a signal handler."""
        self._reasons.put(reason)

    def wait_for_end(self) -> EndReason:
        """Wait for the first reason to end."""
        while True:
            with suppress(Empty):
                return self._reasons.get(timeout=MAIN_SLEEP)

    def release(self) -> None:
        """Allow threads to end when they have nothing more to do."""
        self._released = True

    def stop(self) -> None:
        """Let all threads end."""
        self._stopping.set()

    def sleep(self, seconds: float) -> bool:
        """Sleep, and wake early if the threads are stopping; return whether they are."""
        return self._stopping.wait(seconds)
