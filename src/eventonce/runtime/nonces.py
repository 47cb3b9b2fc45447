"""Nonces: each names one batch that claims. Two batches with one nonce would both get the run."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from time import time_ns
from typing import Final

from eventonce import forks

DRAWN_TOGETHER: Final = 32
"""Nonces that are drawn together: Python releases its lock while it asks the system, and in a
receiver each draw costs a system call and a change of threads."""

NONCE_LIFE: Final = 10_000_000
"""Nanoseconds for which drawn nonces are used. Processes that are restored from one snapshot have
the same nonces in memory; the clock shows that these are old."""


class Nonces:
    """Nonces from the system's randomness: Python's generator would give the same numbers in every
    process that is restored from the same snapshot."""

    def __init__(self, at_once: int, clock: Callable[[], int] = time_ns) -> None:
        self._at_once = at_once
        self._clock = clock
        self.discard()

    def new(self) -> int:
        """Return a nonce that no other batch has; safe in many threads."""
        now = self._clock()
        if not self._drawn <= now < self._drawn + NONCE_LIFE:
            self._draw(now)
        while True:
            try:
                # `pop` is atomic: no two threads get the same nonce.
                return self._spare.pop()
            except IndexError:
                self._draw(now)

    def discard(self) -> None:
        """Discard the drawn nonces: the child of a fork has those of its parent."""
        self._drawn = 0
        self._spare: deque[int] = deque()

    def _draw(self, now: int) -> None:
        drawn = os.urandom(7 * self._at_once)
        # A new deque: another thread may still take from the old one.
        self._spare = deque(
            int.from_bytes(drawn[at : at + 7]) >> 4 | 1 for at in range(0, len(drawn), 7)
        )
        self._drawn = now


# Lambda takes snapshots by itself (SnapStart), and has one event at a time.
_here: Final = Nonces(1 if "AWS_LAMBDA_FUNCTION_NAME" in os.environ else DRAWN_TOGETHER)
new_nonce: Final = _here.new
forks.register(_here, Nonces.discard)
