"""The availability of the queue and of the store, and the pauses while one of them is away."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from eventonce.core.ports import Store
from eventonce.errors import StoreError, StoreMismatch
from eventonce.log import Outage
from eventonce.stores.probe import read_trial, write_trial
from eventonce.worker.threads import CHECK_INTERVAL, Threads

SHORTEST_PAUSE: Final = 1.0
"""The shortest seconds before the next try, for a service that throttles."""

LONGEST_PAUSE: Final = 30.0
"""The longest seconds between two tries: the end of an outage is noticed within this time."""

log = logging.getLogger("eventonce.worker")


class Availability:
    """The last answer of a queue or a store. An outage is logged when it begins, seldom while it
    lasts, and when it ends."""

    def __init__(
        self, name: str, *, lately: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`lately`: seconds for which an answer counts as recent."""
        self.name = name
        self._lately = lately
        self._clock = clock
        self._lock = threading.Lock()
        self._error: Exception | None = None
        self._outage = Outage(clock)
        self.answered_at: float | None = None

    @property
    def away(self) -> bool:
        """Whether the last answer was a failure."""
        return self._error is not None

    @property
    def known(self) -> bool:
        """Whether there ever was an answer."""
        return self.answered_at is not None

    def answered(self) -> None:
        """Note an answer."""
        self.answered_at = self._clock()
        if self._error is not None:
            with self._lock:
                self._error, lasted = None, self._outage.ended()
            if lasted is not None:
                log.info("%s answers again, after %.0f s", self.name, lasted)

    def heard(self) -> None:
        """Note an answer without a write, such as that about a copy. It does not end an outage,
        because a store that is full also gives it."""
        if not self.away:
            self.answered_at = self._clock()

    def failed(self, error: Exception) -> float:
        """Note a failure, and return the seconds of the next pause: as long as the outage has
        lasted. So the number of threads that ask does not matter."""
        with self._lock:
            self._error, tells = error, self._outage.tells()
            pause = min(LONGEST_PAUSE, max(SHORTEST_PAUSE, self._outage.lasts))
        if tells:
            log.warning("%s", error)
        return pause * random.uniform(0.5, 1.0)

    def silent_for(self) -> float:
        """Seconds since the last answer; infinite if there was none."""
        return float("inf") if self.answered_at is None else self._clock() - self.answered_at

    @property
    def fine(self) -> bool:
        """Whether there was an answer lately, and no failure since."""
        return not self.away and self.silent_for() <= self._lately

    def report(self) -> dict[str, Any]:
        """The state for a health check."""
        silent = self.silent_for()
        return {
            "fine": self.fine,
            "answered_seconds_ago": None if silent == float("inf") else round(silent, 1),
            "why": "" if self._error is None else str(self._error),
        }


def look_after(
    store: Store, threads: Threads, availability: Availability, silence: float, key: bytes
) -> None:
    """Probe the store after each silence of so many seconds, until the threads are stopping. During
    an outage the probe is a write under this key; otherwise it is a read, which costs less."""
    pause = 0.0
    while not threads.sleep(pause):
        if availability.away:
            pause = _noted(partial(write_trial, store, key), availability)
        elif availability.silent_for() > silence:
            pause = _noted(partial(read_trial, store), availability)
        else:
            pause = CHECK_INTERVAL


def probe(store: Store, availability: Availability, key: bytes) -> None:
    """Check that the store accepts a write, before the work begins."""
    _noted(partial(write_trial, store, key), availability)


def _noted(ask: Callable[[], None], availability: Availability) -> float:
    """Ask the store, and note whether it answered. Return the seconds until the next probe."""
    try:
        ask()
    except StoreMismatch:
        raise
    except StoreError as error:
        return availability.failed(error)
    availability.answered()
    return CHECK_INTERVAL
