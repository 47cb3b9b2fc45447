"""The benchmark figures that have a bound: their distance from it, and their history."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, log2
from typing import Final

from benchmarks.history import Measured, Run, runs
from pictures.svg import page, text

WIDTH: Final = 1040
ROW: Final = 26
BOUND: Final = 500
"""The place of the bound; to the right of it is better than required."""
OCTAVE: Final = 46
"""The pixels of a factor of two."""
WIDEST: Final = 4
"""The most octaves; a figure sixteen times as good as required fills the row."""
NAME, VALUE, HISTORY = 24, 704, 944
LOOK: Final = """
.bar { fill: var(--green); opacity: .75; } .bar.short { fill: var(--red); }
.bound { stroke: var(--ink); stroke-width: 1.5; } .spark { fill: none; stroke: var(--blue); }
.dot { fill: var(--blue); } .grid { stroke: var(--edge); stroke-dasharray: 2 4; }
"""


def draw() -> str:
    """Return the picture."""
    return chart(runs())


def chart(history: Sequence[Run]) -> str:
    """Return a row for every bounded figure of the latest run of each benchmark."""
    latest = {figure.benchmark: run for run in history for figure in run.figures}
    y = 40
    parts = [
        text(BOUND - 12, y, "← worse", "small", "end"),
        text(BOUND + 12, y, "better than asked →", "small", "start"),
        text(HISTORY, y, "earlier runs", "small", "start"),
        text(BOUND, y + 22, "bound", "small"),
    ]
    y += 50
    rows: list[str] = []
    for benchmark in sorted(latest):
        run = latest[benchmark]
        bounded = [one for one in run.figures if one.benchmark == benchmark and _score(one)]
        if not bounded:
            continue
        about = f"{run.date[:10]} · {run.commit}"
        rows += [
            text(NAME, y, benchmark, "name", "start"),
            text(WIDTH - NAME, y, about, "small", "end"),
        ]
        y += ROW
        for one in bounded:
            rows += _row(one, y, _values(one, history))
            y += ROW
        y += 10
    for octave in range(-2, WIDEST + 1):
        x = BOUND + OCTAVE * octave
        if octave:
            parts.append(f'<path class="grid" d="M{x} 74V{y - 12}"/>')
        if octave > 0:
            parts.append(text(x, 62, f"x {2**octave}", "small"))
    machines = sorted({run.machine for run in latest.values()})
    parts += [*rows, text(NAME, y + 4, machines, "small", "start")]
    return page(WIDTH, y + 30, "Benchmark figures and their bounds", parts, look=LOOK)


def _score(one: Measured) -> float:
    """Return how many times better than required a figure is; 0 if nothing is required."""
    if one.at_most is not None:
        # A cost that is a difference may be negative.
        return one.at_most / one.value if one.value > 0 else inf
    return one.value / one.at_least if one.at_least else 0


def _values(one: Measured, history: Sequence[Run]) -> list[float]:
    name = (one.benchmark, one.what, one.unit)
    return [
        same.value
        for run in history
        for same in run.figures
        if (same.benchmark, same.what, same.unit) == name
    ]


def _row(one: Measured, y: float, values: Sequence[float]) -> list[str]:
    octaves = max(-2.0, min(WIDEST, log2(_score(one))))
    left, width = BOUND + min(0, octaves) * OCTAVE, max(2, abs(octaves) * OCTAVE)
    at_most = one.at_most is not None
    asked = f"at most {_short(one.at_most)}" if at_most else f"at least {_short(one.at_least)}"
    short = " short" if octaves < 0 else ""
    return [
        text(NAME, y, one.what, "", "start"),
        f'<rect class="bar{short}" x="{left:.1f}" y="{y - 7}" width="{width:.1f}" height="14"/>',
        f'<path class="bound" d="M{BOUND} {y - 11}v22"/>',
        text(VALUE, y, f"{_short(one.value)} {one.unit}", "", "start"),
        text(VALUE + 122, y, asked, "small", "start"),
        *_spark(values, y),
    ]


def _short(value: float | None) -> str:
    return f"{value:,.0f}" if value and value >= 1000 else f"{value:.3g}"


def _spark(values: Sequence[float], y: float) -> list[str]:
    """Return the line of the values of all runs, the lowest at the bottom; nothing for a single
    run. A range of less than a fifth does not fill the height: it may be noise."""
    if len(values) < 2:
        return []
    low, high = min(values), max(values)
    span = max(high - low, abs(high) / 5) or 1.0
    across = 72 / (len(values) - 1)
    points = [
        (HISTORY + across * place, y + 8 - 16 * (value - low) / span)
        for place, value in enumerate(values)
    ]
    line = " ".join(f"{x:.1f},{at:.1f}" for x, at in points)
    x, at = points[-1]
    return [
        f'<polyline class="spark" points="{line}"/>',
        f'<circle class="dot" cx="{x:.1f}" cy="{at:.1f}" r="2.5"/>',
    ]
