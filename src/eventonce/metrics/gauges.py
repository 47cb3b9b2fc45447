"""The gauges: values of this process and of the store at the moment of the scrape."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import inf
from threading import Lock, Thread
from time import monotonic
from typing import Final

from eventonce.consumer import Consumer
from eventonce.core.ports import Stats
from eventonce.log import log
from eventonce.metrics import names
from eventonce.metrics.names import Metric

STATS_INTERVAL: Final = 60.0
"""Seconds between two questions to the store about its size."""

STATS_SHARE: Final = 20
"""The next question waits this many times as long as the last one took: Redis is slow to count."""

STATS_WAIT: Final = 1.0
"""Seconds that a scrape waits for the store: a scrape must answer while the store is away."""


class Gauges:
    """The gauges of one consumer."""

    def __init__(self, consumer: Consumer) -> None:
        self._gate = consumer.runtime.gate
        self._stats = StoreStats(consumer.admin.stats)

    def read(self) -> Iterator[tuple[Metric, float]]:
        """Yield each gauge with its value; gauges of the store are left out while it is away."""
        yield names.IN_FLIGHT, len(self._gate.held())
        stats = self._stats.latest()
        if stats is not None:
            yield names.STORE_KEYS, stats.records
            yield names.STORE_LETTERS, stats.letters
            if stats.bytes is not None:
                yield names.STORE_BYTES, stats.bytes


class StoreStats:
    """The size of the store, asked for by a thread of its own at long intervals."""

    def __init__(self, ask: Callable[[], Stats], clock: Callable[[], float] = monotonic) -> None:
        self._ask = ask
        self._clock = clock
        self._lock = Lock()
        self._thread: Thread | None = None
        self._next = -inf
        self._known: Stats | None = None

    def latest(self) -> Stats | None:
        """Return the last answer of the store; None if the last question had no answer."""
        with self._lock:
            thread = self._thread
            if (thread is None or not thread.is_alive()) and self._clock() >= self._next:
                thread = self._thread = Thread(
                    target=self._refresh, name="eventonce-stats", daemon=True
                )
                thread.start()
        if thread is not None:
            thread.join(STATS_WAIT)
        return self._known

    def _refresh(self) -> None:
        began = self._clock()
        try:
            self._known = self._ask()
        except Exception as error:  # noqa: BLE001  a user's store; the scrape shows the rest
            self._known = None
            log().warning("metrics: the size of the store is not known: %s", error)
        now = self._clock()
        self._next = now + max(STATS_INTERVAL, STATS_SHARE * (now - began))
