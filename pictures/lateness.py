"""The lateness of copies, as `eventonce diagnose` counts it."""

from __future__ import annotations

from eventonce.study.page.diagnosis import lateness
from pictures.studied import diagnosis, paper


def draw() -> str:
    """Return the picture."""
    return paper(lateness(diagnosis().late))
