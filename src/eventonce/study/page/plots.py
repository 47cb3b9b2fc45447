"""Plots as SVG without a script: each is drawn for a width, and has a table of its numbers.

Series are named where they are drawn, so that a reader needs neither a legend nor colours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from textwrap import wrap
from typing import Final, NamedTuple

from eventonce.markup import Html, number, tag
from eventonce.study.page.scales import LETTER_PX, Linear, Log, days, rounded, staggered

PAGE_PX: Final = 720
PHONE_PX: Final = 328
"""The widths of a plot in pixels: on a page, and on a telephone."""
LABEL_PX: Final = 16
"""Pixels from one row of labels to the next."""

Drawn = tuple[float, list[Html]]
"""The height of a plot, and its parts."""


class Plot(NamedTuple):
    """A plot, and its numbers for readers who cannot see it."""

    title: str
    said: str
    """The content of the plot, in a sentence."""
    draw: Callable[[int], Drawn]
    head: tuple[str, ...]
    rows: Sequence[tuple[object, ...]]


def svg(plot: Plot, width: int, look: str = "") -> Html:
    """Return the plot as one element."""
    height, parts = plot.draw(width)
    return tag(
        "svg",
        tag("title", plot.title),
        tag("desc", plot.said),
        *parts,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width} {height:g}",
        width=width,
        height=f"{height:g}",
        role="img",
        aria_label=f"{plot.title}. {plot.said}",
        class_=look or None,
    )


def text(x: float, y: float, words: object, look: str = "", anchor: str = "start") -> Html:
    """Return words with their baseline at `y`."""
    return tag("text", words, x=x, y=y, class_=look or None, text_anchor=anchor)


def _bar(x: float, y: float, width: float, height: float, look: str, told: str = "") -> Html:
    inside = (tag("title", told),) if told else ()
    return tag("rect", *inside, x=x, y=y, width=width, height=height, class_=look)


def line(x: float, y: float, to_x: float, to_y: float, look: str) -> Html:
    """Return a straight line."""
    return tag("line", x1=x, y1=y, x2=to_x, y2=to_y, class_=look)


def bars(
    title: str, said: str, rows: Sequence[tuple[str, tuple[int, ...], bool]], of: tuple[str, ...]
) -> Plot:
    """Return a plot with a bar for each number of a row, named by `of`; strong rows stand out."""
    most = max((value for _, values, _ in rows for value in values), default=0) or 1
    looks = ("harm", "accent") if len(of) == 2 else ("accent",)

    def draw(width: int) -> Drawn:
        parts: list[Html] = []
        y = 0.0
        room = Linear(0, most, 0, width - LETTER_PX * (len(number(most)) + max(map(len, of)) + 3))
        for name, values, strong in rows:
            for words in wrap(name, int(width / LETTER_PX) - 1)[:3]:
                y += 16
                parts.append(text(0, y, words, "strong" if strong else "name"))
            y += 7
            for place, (value, word) in enumerate(zip(values, of, strict=True)):
                end = max(1.5, room.at(value))
                look = looks[place] if value else "zero"
                told = f"{number(value)} {word}"
                parts += [
                    _bar(0, y, end, 10, look, f"{name}: {told}"),
                    text(end + 7, y + 9.5, told, "small strong ours" if strong else "small"),
                ]
                y += 15
            y += 11
        return y - 8, parts

    return Plot(title, said, draw, ("", *of), [(name, *values) for name, values, _ in rows])


def timelines(
    title: str, said: str, rows: Mapping[str, Sequence[int]], begin: int, step: int, unit: str
) -> Plot:
    """Return a plot with columns over time for each name, each row with its own scale."""
    steps = max((len(values) for values in rows.values()), default=0)
    end = begin + steps * step

    def draw(width: int) -> Drawn:
        parts: list[Html] = []
        across = Linear(begin, end, 0, width)
        bottom = len(rows) * 58.0
        ticks = list(days(begin, end, width // 64))
        parts += [line(across.at(at), 0, across.at(at), bottom, "grid") for at, _ in ticks]
        column = width / max(1, steps)
        for place, (name, values) in enumerate(rows.items()):
            foot = place * 58.0 + 50
            most = max(values, default=0) or 1
            told = f"{number(sum(values))}, at most {number(most)} {unit}"
            parts += [
                text(0, foot - 34, name, "name halo"),
                text(width, foot - 34, told, "small halo", "end"),
                line(0, foot + 0.5, width, foot + 0.5, "axis"),
            ]
            parts += [
                _bar(at * column, foot - high, max(1.0, column - 0.6), high, "accent")
                for at, value in enumerate(values)
                if value
                for high in [max(1.5, 26 * value / most)]
            ]
        for middle, row, label in staggered(((across.at(at), label) for at, label in ticks), width):
            parts.append(text(middle, bottom + 14 + row * LABEL_PX, label, "small", "middle"))
        return bottom + 20, parts

    return Plot(
        title,
        said,
        draw,
        ("", "all", f"most {unit}"),
        [(name, sum(values), max(values, default=0)) for name, values in rows.items()],
    )


def histogram(
    title: str,
    said: str,
    bins: Sequence[tuple[float, float, int]],
    marks: Sequence[tuple[float, str]],
    between: Sequence[int],
    range_: tuple[float, float],
) -> Plot:
    """Return a plot of columns over a logarithmic axis, with marks, and counts between them."""
    most = max((value for *_, value in bins), default=0) or 1

    def draw(width: int) -> Drawn:
        across = Log(*range_, 0, width)
        foot = 176.0
        height, parts = _marked(across, marks, width, 24, foot)
        for low, high, value in bins:
            if value:
                x, tall = across.at(low), max(2.0, 136 * value / most)
                wide = max(1.0, across.at(high) - x - 1)
                parts.append(_bar(x, foot - tall, wide, tall, "accent", number(value)))
        edges = [0.0, *(across.at(place) for place, _ in marks), float(width)]
        for value, left, right in zip(between, edges, edges[1:], strict=False):
            if value and LETTER_PX * len(number(value)) + 4 < right - left:
                parts.append(text((left + right) / 2, 16, number(value), "small", "middle"))
        parts.append(line(0, foot + 0.5, width, foot + 0.5, "axis"))
        return height, parts

    names = [*(f"up to {name}" for _, name in marks), "later"]
    return Plot(title, said, draw, ("", "number"), list(zip(names, between, strict=True)))


def _marked(
    across: Log, marks: Sequence[tuple[float, str]], width: int, top: float, foot: float
) -> Drawn:
    """Return the marks of an axis as lines from `top` to `foot`, with their names below, and the
    height of a plot with all of these."""
    parts: list[Html] = []
    lowest = 0
    labels = staggered(((across.at(at), name) for at, name in marks), width)
    for (place, _), (middle, row, label) in zip(marks, labels, strict=True):
        x, down = across.at(place), row * LABEL_PX
        parts += [
            line(x, top, x, foot + 5 + down, "grid"),
            text(middle, foot + 17 + down, label, "small halo", "middle"),
        ]
        lowest = max(lowest, down)
    return foot + 26 + lowest, parts


class Curve(NamedTuple):
    """One line, in a panel of its own."""

    name: str
    points: Sequence[tuple[float, float]]
    look: str
    shown: Callable[[float], str] = number
    top: float | None = None
    """The highest value of the panel; None for that of the points."""
    within: Sequence[tuple[float, float]] = ()
    """A thinner line: the expected values, if the line is a bound."""


def curves(
    title: str,
    said: str,
    panels: Sequence[Curve],
    marks: Sequence[tuple[float, str]],
    range_: tuple[float, float],
    named: Callable[[float], str] = number,
) -> Plot:
    """Return a plot of lines, one above the other, over one logarithmic axis; `named` formats its
    values in the table."""

    def draw(width: int) -> Drawn:
        across = Log(*range_, 4, width - 4)
        high, gap = 96.0, 34.0
        height, parts = _marked(across, marks, width, gap, len(panels) * (high + gap))
        for place, curve in enumerate(panels):
            foot = (place + 1) * (high + gap)
            top = curve.top or rounded(max((y for _, y in curve.points), default=0))
            up = Linear(0, top, foot, foot - high)
            parts += [
                line(0, foot + 0.5, width, foot + 0.5, "axis"),
                text(0, foot - high - 12, curve.name, "name halo"),
                _way(curve.within, across, up, f"line thin {curve.look}"),
                _way(curve.points, across, up, f"line {curve.look}"),
            ]
            parts += _ends(curve, across, up, width, top)
        return height, parts

    columns = [
        column
        for curve in panels
        for column in (
            [(curve.name, curve), ("expected", curve._replace(points=curve.within))]
            if curve.within
            else [(curve.name, curve)]
        )
    ]
    xs = sorted({x for curve in panels for x, _ in curve.points})
    rows = [
        (named(x), *(_shown(curve, dict(curve.points).get(x)) for _, curve in columns)) for x in xs
    ]
    return Plot(title, said, draw, ("", *(name for name, _ in columns)), rows)


def _way(points: Sequence[tuple[float, float]], across: Log, up: Linear, look: str) -> Html:
    way = " ".join(
        f"{'L' if step else 'M'}{across.at(x):.1f} {up.at(y):.1f}"
        for step, (x, y) in enumerate(points)
    )
    return tag("path", d=way, class_=look) if way else Html("")


def _shown(curve: Curve, value: float | None) -> str:
    return "" if value is None else curve.shown(value)


def _ends(curve: Curve, across: Log, up: Linear, width: int, top: float) -> Iterator[Html]:
    """Yield the values at both ends of a line, with a dot at the last."""
    for x, y in curve.points[:1]:
        # Below the line if the name of the panel is just above it.
        away = 16 if y > 0.8 * top else -8
        yield text(across.at(x), up.at(y) + away, curve.shown(y), "small halo")
    for x, y in curve.points[-1:]:
        yield tag("circle", cx=across.at(x), cy=up.at(y), r=3.5, class_=f"dot {curve.look}")
        yield text(width, up.at(y) - 8, curve.shown(y), "strong halo", "end")
