"""Which organisation a source belongs to, by its name."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

_GENESYS: Final = re.compile(
    r"aws\.partner/genesys\.com(?:\.test)?/cloud/([^/]+)(?:/.*)?", re.DOTALL
)

_LONGEST: Final = 512
"""Characters of a source that may name one: what no organisation has is not remembered."""


def organisation(source: str) -> str:
    """The Genesys organisation of a source, whichever of its integrations it names; else empty."""
    return _known(source) if len(source) <= _LONGEST else ""


@lru_cache(maxsize=1024)
def _known(source: str) -> str:
    match = _GENESYS.fullmatch(source)
    return match[1] if match else ""
