"""The service's time: DynamoDB has no function that tells it, but every answer carries its date."""

from __future__ import annotations

from collections.abc import Callable
from email.utils import parsedate_to_datetime

SECOND = 1_000


class ServiceClock:
    """This machine's clock, put right by the `Date` of the answers that came.

    A date names a whole second. The answer was made between sending and receiving, so it bounds
    how far the machine is off from both sides; many answers together bound it to about one round
    trip. A machine within the bounds is believed. One that is not is put to the earlier bound:
    until more is known it is then up to a second behind the service and never ahead of it, so
    that it ends no lease early.
    """

    def __init__(self, wall: Callable[[], int]) -> None:
        self.wall = wall
        self._bounds: tuple[int, int] | None = None
        self._parsed: tuple[str, int] = ("", 0)

    @property
    def offset(self) -> int:
        """Milliseconds to add to this machine's time."""
        if self._bounds is None:
            return 0
        earliest, latest = self._bounds
        return 0 if earliest <= 0 <= latest else earliest

    def now(self) -> int:
        """Milliseconds since the epoch, as the service counts them."""
        return self.wall() + self.offset

    def hear(self, date: str | None, sent: int, received: int) -> None:
        """Learn from an answer, by this machine's times of sending and receiving."""
        if date is None or received < sent:
            return
        second = self._second(date)
        earliest, latest = second - received, second + SECOND - sent
        if self._bounds is not None:
            narrowed = max(earliest, self._bounds[0]), min(latest, self._bounds[1])
            if narrowed[0] <= narrowed[1]:
                self._bounds = narrowed
                return
        # The first answer, or this machine's clock was set since the last one.
        self._bounds = earliest, latest

    def _second(self, date: str) -> int:
        """The date in milliseconds; most answers of a second have the same one."""
        text, second = self._parsed
        if text != date:
            second = int(parsedate_to_datetime(date).timestamp()) * SECOND
            self._parsed = date, second
        return second
