"""What windows would do, as `eventonce diagnose` estimates it."""

from __future__ import annotations

from eventonce.study.page.diagnosis import windows_plot
from pictures.studied import diagnosis, paper


def draw() -> str:
    """The picture."""
    return paper(windows_plot(diagnosis().windows[0]))
