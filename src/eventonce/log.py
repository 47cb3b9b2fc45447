"""The log for what happens out of anybody's sight; `logging` is loaded when there is something to
say, because a Lambda pays for every import with each cold start."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from logging import Logger

SECOND_LINE: Final = 10.0
"""Seconds between the first line about an outage and the second."""


def log() -> Logger:
    """The logger `eventonce`."""
    from logging import getLogger  # noqa: PLC0415  see above

    return getLogger("eventonce")


class Outage:
    """When the log tells of something that is away: as that begins, whenever it has lasted twice as
    long as at the line before, and as it ends. A line for each failure would bury all others."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._began: float | None = None
        self._next = 0.0

    @property
    def lasts(self) -> float:
        """Seconds since it began; 0 where there is none."""
        return 0.0 if self._began is None else self._clock() - self._began

    def tells(self) -> bool:
        """Note a failure; whether it gets a line."""
        now = self._clock()
        if self._began is None:
            self._began, self._next = now, now + SECOND_LINE
            return True
        if now < self._next:
            return False
        self._next = now + (now - self._began)
        return True

    def ended(self) -> float | None:
        """Note a success; the seconds of the outage that it ends, or None."""
        if self._began is None:
            return None
        lasted, self._began = self._clock() - self._began, None
        return lasted


def on_one_line(text: str) -> str:
    """A text of a sender on one line, so that it cannot pass for a line of ours."""
    return text if text.isprintable() else repr(text)[1:-1]
