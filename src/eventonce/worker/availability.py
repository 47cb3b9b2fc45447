"""Whether the queue and the store answer, and how long to leave alone one that does not."""

from __future__ import annotations

import logging
import random
import threading
import time
from typing import Any, Final

from eventonce.core.ports import Store
from eventonce.errors import StoreError, StoreMismatch
from eventonce.stores import PROBE
from eventonce.worker.threads import Threads

SHORTEST_PAUSE: Final = 1.0
"""Seconds before the next try: what is throttled wants no less."""

LONGEST_PAUSE: Final = 30.0
"""Seconds between tries while something is away: it is back that soon after it is back."""

TICK: Final = 1.0
"""Seconds after which a thread that waits looks whether it is still needed."""

log = logging.getLogger("eventonce.worker")


class Availability:
    """What was last heard of something; says so in the log when that changes."""

    def __init__(self, name: str, *, lately: float) -> None:
        """`lately`: seconds after which an answer proves nothing any more."""
        self.name = name
        self._lately = lately
        self._lock = threading.Lock()
        self._error: Exception | None = None
        self._away_since = 0.0
        self.answered_at: float | None = None

    @property
    def away(self) -> bool:
        """Whether the last that was heard is a failure."""
        return self._error is not None

    @property
    def known(self) -> bool:
        """Whether it ever answered."""
        return self.answered_at is not None

    def answered(self) -> None:
        """It did."""
        self.answered_at = time.monotonic()
        if self._error is not None:
            self._error = None
            log.info("%s answers again", self.name)

    def failed(self, error: Exception) -> float:
        """It did not; the seconds to leave it alone: as long again as it has been away, so that it
        does not matter how many ask."""
        now = time.monotonic()
        with self._lock:
            first, self._error = self._error is None, error
            if first:
                self._away_since = now
            pause = min(LONGEST_PAUSE, max(SHORTEST_PAUSE, now - self._away_since))
        log.log(logging.WARNING if first else logging.INFO, "%s", error)
        return pause * random.uniform(0.5, 1.0)

    def silent_for(self) -> float:
        """Seconds since it last answered; since for ever, if it never did."""
        return float("inf") if self.answered_at is None else time.monotonic() - self.answered_at

    @property
    def fine(self) -> bool:
        """Whether it answered lately, and nothing to the contrary was heard since."""
        return not self.away and self.silent_for() <= self._lately

    def report(self) -> dict[str, Any]:
        """The same for a health check."""
        silent = self.silent_for()
        return {
            "fine": self.fine,
            "answered_seconds_ago": None if silent == float("inf") else round(silent, 1),
            "why": "" if self._error is None else str(self._error),
        }


def look_after(store: Store, threads: Threads, availability: Availability, silence: float) -> None:
    """Ask the store whether it is there, after such a silence, until the threads are stopping."""
    pause = 0.0
    while not threads.sleep(pause):
        asks = availability.away or availability.silent_for() > silence
        pause = probe(store, availability) if asks else TICK


def probe(store: Store, availability: Availability) -> float:
    """Ask the store whether it is there; the seconds until it shall be asked again."""
    try:
        (verdict,) = store.claim([PROBE])
    except StoreMismatch:
        raise
    except StoreError as error:
        return availability.failed(error)
    if verdict.error is not None:
        return availability.failed(verdict.error)
    availability.answered()
    return TICK
