"""Nonces: the names of asks, which no two asks for one key may share."""

from __future__ import annotations

from os import urandom
from typing import Final

MAX_NONCE: Final = 2**52 - 1


def nonce() -> int:
    """From the system's randomness: a process restored from a snapshot, as SnapStart does it, has
    Python's generator in the very state that others restored from it have."""
    return int.from_bytes(urandom(7)) >> 4 | 1
