"""What each guard loses and lets through, as `eventonce backtest` counts it."""

from __future__ import annotations

from eventonce.study.page.backtested import guards
from pictures.studied import paper, results


def draw() -> str:
    """The picture."""
    return paper(guards(results()))
