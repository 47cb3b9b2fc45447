"""What the service could not take now is tried again, after pauses that grow."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import Final

TRIES: Final = 6
PAUSE: Final = 0.1
"""Seconds before the second attempt, doubled each time: about three in all, by which a throttled
account has room again."""


def attempts() -> Iterator[bool]:
    """Whether this is the last of some attempts, with a pause before each but the first."""
    for attempt in range(TRIES):
        if attempt:
            time.sleep(random.uniform(0.5, 1) * PAUSE * 2 ** (attempt - 1))
        yield attempt == TRIES - 1
