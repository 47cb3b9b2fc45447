"""The log of background work. `logging` is imported with the first line, because every import makes
the cold start of a Lambda function slower."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from logging import Logger

SECOND_LINE: Final = 10.0
"""Seconds between the first and the second line about an outage."""


def log() -> Logger:
    """Return the logger `eventonce`."""
    from logging import getLogger  # noqa: PLC0415  see above

    return getLogger("eventonce")


class Outage:
    """The lines of the log about one outage: when it begins, each time it has lasted twice as long
    as at the line before, and when it ends. A line for each failure would hide all others."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._began: float | None = None
        self._next = 0.0

    @property
    def lasts(self) -> float:
        """Seconds since the outage began; 0 if there is none."""
        return 0.0 if self._began is None else self._clock() - self._began

    def tells(self) -> bool:
        """Note a failure; return whether it gets a line."""
        now = self._clock()
        if self._began is None:
            self._began, self._next = now, now + SECOND_LINE
            return True
        if now < self._next:
            return False
        self._next = now + (now - self._began)
        return True

    def ended(self) -> float | None:
        """Note a success; return the seconds of the outage that it ends, or None."""
        if self._began is None:
            return None
        lasted, self._began = self._clock() - self._began, None
        return lasted


def on_one_line(text: str) -> str:
    """Return a sender's text on one line, so that it cannot imitate a line of the log."""
    return text if text.isprintable() else repr(text)[1:-1]
