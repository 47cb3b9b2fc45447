"""How late copies come, as `eventonce diagnose` counts them."""

from __future__ import annotations

from eventonce.study.page.diagnosis import lateness
from pictures.studied import diagnosis, paper


def draw() -> str:
    """The picture."""
    return paper(lateness(diagnosis().late))
