"""The field map of a source that no preset knows, as `eventonce diagnose` learns it."""

from __future__ import annotations

from eventonce.study.page.diagnosis import field_map
from pictures.studied import diagnosis, paper


def draw() -> str:
    """Return the picture."""
    (kind, *_) = (kind for kind in diagnosis().kinds if kind.rule == "eventbridge")
    return paper(field_map(kind)._replace(title=f"Fields of {kind.type}"))
