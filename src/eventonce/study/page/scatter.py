"""The scatter plot; the names of its points must not touch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from eventonce.markup import Html, tag
from eventonce.study.page.plots import Drawn, Plot, line, text
from eventonce.study.page.scales import LETTER_PX, Linear, Log

Box = tuple[float, float, float, float]
"""Left, top, right and bottom."""


class Point(NamedTuple):
    """A named point of a scatter plot."""

    name: str
    x: float
    y: float
    look: str


def scatter(
    title: str,
    said: str,
    points: Sequence[Point],
    axes: tuple[str, str],
    corners: Sequence[tuple[float, float, str]],
    low: float,
) -> Plot:
    """Return the plot of named points; x is logarithmic from `low` to 1, y linear from 0 to 1."""

    def draw(width: int) -> Drawn:
        top, foot, left = 92.0, 270.0, 24.0
        across, up = Log(low, 1, left + 8, width - 8), Linear(0, 1, foot - 10, top)
        parts: list[Html] = [
            line(left, foot + 0.5, width, foot + 0.5, "axis"),
            line(left + 0.5, 20, left + 0.5, foot, "axis"),
            text(width, foot + 34, f"{axes[0]} →", "small", "end"),
            text(0, 10, f"↑ {axes[1]}", "small"),
        ]
        parts += [text(left - 5, up.at(y) + 4, f"{y:g}", "small", "end") for y in (0, 0.5, 1)]
        x = low
        while x <= 1:
            parts.append(text(across.at(x), foot + 16, f"{x:g}", "small", "middle"))
            x *= 10
        taken = []
        for x, y, words in corners:
            at, wide, begins = across.at(x), LETTER_PX * len(words), x < 0.2
            box = (at, up.at(y) - 11, at + wide, up.at(y) + 4)
            box = box if begins else (at - wide, box[1], at, box[3])
            if not any(_touch(box, _around(across.at(one.x), up.at(one.y))) for one in points):
                parts.append(text(at, up.at(y), words, "corner", "start" if begins else "end"))
                taken.append(box)
        edges = (left, width, foot)
        return foot + 42, [*parts, *_labelled(points, across, up, edges, taken)]

    rows = [(one.name, f"{one.x:.4f}", f"{one.y:.2f}") for one in points]
    return Plot(title, said, draw, ("", *axes), rows)


def _labelled(
    points: Sequence[Point],
    across: Log,
    up: Linear,
    edges: tuple[float, float, float],
    taken: list[Box],
) -> Iterator[Html]:
    """Yield the points, and the names that have room, without overlaps."""
    left, width, foot = edges
    dots = [(across.at(one.x), up.at(one.y), one) for one in points]
    lines: list[Html] = []
    names: list[Html] = []
    for x, y, one in dots:
        wide = LETTER_PX * len(one.name)
        for down in (4, -10, 18, -26, 34, -42, 50, -58, 66, -74):
            begin = min(max(left + 4, x + (8 if down == 4 else -wide / 2)), width - wide)
            box = (begin - 2, y + down - 11, begin + wide + 2, y + down + 4)
            if not any(_touch(box, other) for other in taken) and box[1] > 16 and box[3] < foot:
                if any(_touch(box, _around(a, b)) for a, b, _ in dots):
                    continue
                taken.append(box)
                if down != 4:
                    lines.append(line(x, y, x, box[3] - 1 if down < 0 else box[1] + 3, "leader"))
                names.append(text(begin, y + down, one.name, f"small halo {one.look}"))
                break
    yield from (*lines, *names)
    for x, y, one in dots:
        told = tag("title", f"{one.name}: {one.x:.4f}, {one.y:.2f}")
        yield tag("circle", told, cx=x, cy=y, r=4, class_=f"dot {one.look}")


def _around(x: float, y: float) -> Box:
    return x - 5, y - 5, x + 5, y + 5


def _touch(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
