"""The effect of windows, as `eventonce diagnose` estimates it."""

from __future__ import annotations

from eventonce.study.page.diagnosis import windows_plot
from pictures.studied import diagnosis, paper


def draw() -> str:
    """Return the picture."""
    return paper(windows_plot(diagnosis().windows[0]))
