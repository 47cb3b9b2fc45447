"""Copies by cause over time, as `eventonce diagnose` counts them."""

from __future__ import annotations

from eventonce.study.page.diagnosis import causes_over_time
from pictures.studied import diagnosis, paper


def draw() -> str:
    """Return the picture."""
    found = diagnosis().over_time
    assert found is not None, "simulated events have arrivals"
    return paper(causes_over_time(found))
