"""The scales of plots: the place of a value on an axis, and the labels of the axis."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from math import log10
from typing import Final, NamedTuple

from eventonce.markup import HYPHEN
from eventonce.study.units import DAY, HOUR, MINUTE, SECOND

LETTER_PX: Final = 6.8
"""The average width of a letter in a plot, in pixels."""


class Linear(NamedTuple):
    """Equal distances for equal differences."""

    low: float
    high: float
    begin: float
    end: float

    def at(self, value: float) -> float:
        """Return the pixel of a value."""
        share = (value - self.low) / ((self.high - self.low) or 1)
        return self.begin + min(1.0, max(0.0, share)) * (self.end - self.begin)


class Log(NamedTuple):
    """Equal distances for equal factors; values outside are at the edge."""

    low: float
    high: float
    begin: float
    end: float

    def at(self, value: float) -> float:
        """Return the pixel of a value."""
        share = log10(max(value, self.low) / self.low) / log10(self.high / self.low)
        return self.begin + min(1.0, share) * (self.end - self.begin)


def rounded(most: float) -> float:
    """Return the next number that an axis can end with: 1, 2 or 5 with zeros."""
    if most <= 0:
        return 1.0
    power = 10.0 ** int(log10(most) // 1)
    return next(step * power for step in (1, 2, 5, 10) if step * power >= most * (1 - 1e-9))


def staggered(labels: Iterable[tuple[float, str]], end: float) -> Iterator[tuple[float, int, str]]:
    """Yield labels at their places, each in the first row where it touches no other."""
    taken: list[float] = []
    for place, label in labels:
        half = LETTER_PX * len(label) / 2
        middle = min(max(place, half), end - half)
        row = next((r for r, x in enumerate(taken) if middle - half > x + 4), len(taken))
        if row == len(taken):
            taken.append(0.0)
        taken[row] = middle + half
        yield middle, row, label


def days(begin: int, end: int, most: int) -> Iterator[tuple[int, str]]:
    """Yield instants to label between two others, with their labels, in UTC."""
    steps = (HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR, DAY, 2 * DAY, 7 * DAY, 28 * DAY, 91 * DAY)
    step = next((step for step in steps if (end - begin) / step <= most), 364 * DAY)
    at = -(-begin // step) * step
    while at <= end:
        yield at, f"{datetime.fromtimestamp(at / 1000, UTC):{'%H:%M' if at % DAY else '%-d %b'}}"
        at += step


def minute(milliseconds: int) -> str:
    """Return an instant without seconds, which does not wrap."""
    try:
        told = datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat("\u00a0", "minutes")
        return told[:16].replace("-", HYPHEN)
    except (ValueError, OverflowError, OSError):
        return str(milliseconds)


def duration(milliseconds: float) -> str:
    """Return a duration for people."""
    for unit, name in ((DAY, "days"), (HOUR, "hours"), (MINUTE, "minutes"), (SECOND, "seconds")):
        if milliseconds >= 2 * unit or unit in (milliseconds, SECOND):
            count = milliseconds / unit
            shown = f"{count:.1f}".removesuffix(".0")
            return f"{shown}\u00a0{name if shown != '1' else name[:-1]}"
    raise AssertionError
