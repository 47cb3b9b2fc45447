"""How long an event takes lately, and so how many may be taken together and kept at hand."""

from __future__ import annotations

from typing import Final

QUICK: Final = 0.05
"""Seconds that what is taken together may take together: nothing waits noticeably for another, and
events that take a millisecond still share their calls to the store."""

SOON: Final = 1.0
"""Seconds within which what is received should be begun: its visibility runs meanwhile."""

MOST: Final = 100
"""Events taken together: more would not make their share of a call to the store any smaller."""

AHEAD: Final = 20
"""Events kept at hand for each receiver, when they are quick: the two requests of ten that come in
while the ten before them are worked on."""

FADE: Final = 0.8
"""What is left of the slowest time seen after each that was quicker: one slow event makes the
worker careful for some twenty more."""


class Pace:
    """Learns from every portion; knows nothing at first, and then takes one event at a time."""

    def __init__(self, concurrency: int, receivers: int, *, side_by_side: bool) -> None:
        """`side_by_side`: whether the events of a portion run at the same time (async handlers), or
        one after the other."""
        self._concurrency = concurrency
        self._receivers = receivers
        self._side_by_side = side_by_side
        self._slowest: float | None = None

    def learn(self, seconds: float, events: int) -> None:
        """So many events ran in a portion that took so long; copies do not count."""
        if not events:
            return
        each = seconds if self._side_by_side else seconds / events
        self._slowest = max(each, (self._slowest or 0.0) * FADE)

    def portion(self, in_work: int) -> int:
        """How many may be taken now, with so many in work already."""
        free = self._concurrency - in_work if self._side_by_side else MOST
        return min(free, self._together())

    def limit(self) -> int:
        """How many may be at hand: in work, waiting to be soon, and on their way out."""
        if self._slowest is None:
            return self._concurrency
        soon = self._concurrency * SOON / max(self._slowest, 1e-6)
        return self._concurrency + int(min(AHEAD * self._receivers, soon))

    def _together(self) -> int:
        if self._slowest is None:
            return 1
        if self._side_by_side:
            return MOST if self._slowest <= QUICK else 1
        return max(1, min(MOST, int(QUICK / max(self._slowest, 1e-6))))
