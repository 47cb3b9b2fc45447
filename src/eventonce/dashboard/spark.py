"""Sparklines: small line plots inside a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from eventonce.markup import Html, tag

WIDE_PX: Final = 160
HIGH_PX: Final = 24


def spark(values: Sequence[float], said: str, *, wide: int = WIDE_PX) -> Html:
    """Return a line from the oldest value to the newest; `said` is its text for screen readers."""
    top = max(values, default=0) or 1
    step = wide / max(1, len(values) - 1)
    way = " ".join(
        f"{'L' if place else 'M'}{place * step:.1f} {HIGH_PX - 1 - (HIGH_PX - 3) * value / top:.1f}"
        for place, value in enumerate(values)
    )
    return tag(
        "svg",
        tag("path", d=way, class_="line accent"),
        viewBox=f"0 0 {wide} {HIGH_PX}",
        width=wide,
        height=HIGH_PX,
        role="img",
        aria_label=said,
        class_="spark",
    )
