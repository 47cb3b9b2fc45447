"""The order in which threads get at the file: calls of the store itself do not wait for long.

An exception may come out of a signal at any instant, and the turn must survive each of them. So
its state is attributes and lists that one instruction changes, and whoever waits looks at that
state again and again: a wake-up that was lost costs `CHECK`, and nothing else.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Final

CHECK: Final = 0.1
"""Seconds, at most, between two looks at whose turn it is: an interrupted thread wakes nobody."""

REST: Final = 0.1
"""The file is left to other processes for this share of the time that a transaction took …"""

MAX_REST: Final = 0.004
"""… and for no more seconds than these, in which each of them looks at the lock (`file.POLL`)."""

Ticket = SimpleQueue[None]
"""One wait for the turn; what is put into it wakes the thread that waits."""


class Turn:
    """Calls of the store wait for one transaction of a handler at the most; handlers get their
    turns as they came, each after the calls that were waiting when the one before it ended."""

    def __init__(self) -> None:
        self.holder: Ticket | None = None
        """Whose turn it is. The holder gives it back by assigning None: a call could be
        interrupted before it does anything."""
        self._mutex = threading.Lock()
        self._calls: list[Ticket] = []
        self._handlers: list[Ticket] = []
        self._first: list[Ticket] = []
        """Calls that have waited for a transaction, and must not wait for another one."""
        self._rests_until = 0.0

    def take(self, ticket: Ticket, wait: float, *, handler: bool = False) -> bool:
        """Wait for the turn so many seconds; whether it is this ticket's now."""
        line = self._handlers if handler else self._calls
        deadline = 0.0
        try:
            line.append(ticket)
            while True:
                with self._mutex:
                    if self.holder is None and self._next() is ticket:
                        self.holder = ticket
                        return True
                now = time.monotonic()
                deadline = deadline or now + wait
                if now >= deadline:
                    break
                pause = min(CHECK, deadline - now)
                if handler and now < self._rests_until:
                    pause = min(pause, self._rests_until - now)
                with suppress(Empty):
                    ticket.get(timeout=pause)
        finally:
            if ticket in line:
                line.remove(ticket)
        self.wake()
        return False

    def ended(self, took: float) -> None:
        """Say that a handler's transaction ends now, after so many seconds."""
        self._first = list(self._calls)
        self._rests_until = time.monotonic() + min(took * REST, MAX_REST)

    def wake(self) -> None:
        """Wake the thread whose turn it is."""
        ticket = self._next() or next(iter(self._handlers), None)
        if ticket is not None:
            ticket.put(None)

    def _next(self) -> Ticket | None:
        for ticket in self._first:
            if ticket in self._calls:
                return ticket
        if self._handlers and time.monotonic() >= self._rests_until:
            return next(iter(self._handlers), None)
        return next(iter(self._calls), None)
