"""The events that each guard loses and lets through, as `eventonce backtest` counts them."""

from __future__ import annotations

from eventonce.study.page.backtested import guards
from pictures.studied import paper, results


def draw() -> str:
    """Return the picture."""
    return paper(guards(results()))
