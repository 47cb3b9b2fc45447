"""A question that any store answers and none remembers."""

from __future__ import annotations

from typing import Final

from eventonce.types import Claim

PROBE: Final = Claim(b"eventonce probe\0", 1, 1_000, 1_000, 1, peek=True)
"""A claim that only looks: it writes nothing, and shows that the store answers."""
