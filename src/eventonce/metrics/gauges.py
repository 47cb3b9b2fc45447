"""The gauges: what is true at the moment of asking, in this process and in the store."""

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
"""Seconds between two looks at how full the store is."""

STATS_SHARE: Final = 20
"""A look that takes long is repeated after so many times as long: Redis counts keys one by one."""

STATS_WAIT: Final = 1.0
"""Seconds that a scrape waits for the store: it must tell of a store that is away, too."""


class Gauges:
    """The gauges of one consumer."""

    def __init__(self, consumer: Consumer) -> None:
        self._gate = consumer.runtime.gate
        self._stats = StoreStats(consumer.admin.stats)

    def read(self) -> Iterator[tuple[Metric, float]]:
        """Each gauge with its value now; those of the store are left out while it is away."""
        yield names.IN_FLIGHT, len(self._gate.held())
        stats = self._stats.latest()
        if stats is not None:
            yield names.STORE_KEYS, stats.records
            yield names.STORE_LETTERS, stats.letters
            if stats.bytes is not None:
                yield names.STORE_BYTES, stats.bytes


class StoreStats:
    """How full the store is: looked up by a thread of its own, and seldom."""

    def __init__(self, ask: Callable[[], Stats], clock: Callable[[], float] = monotonic) -> None:
        self._ask = ask
        self._clock = clock
        self._lock = Lock()
        self._thread: Thread | None = None
        self._next = -inf
        self._known: Stats | None = None

    def latest(self) -> Stats | None:
        """The numbers of the last look; None if the store did not answer it."""
        with self._lock:
            thread = self._thread
            if (thread is None or not thread.is_alive()) and self._clock() >= self._next:
                thread = self._thread = Thread(
                    target=self._look, name="eventonce-stats", daemon=True
                )
                thread.start()
        if thread is not None:
            thread.join(STATS_WAIT)
        return self._known

    def _look(self) -> None:
        began = self._clock()
        try:
            self._known = self._ask()
        except Exception as error:  # noqa: BLE001  a store of anybody's; the scrape tells the rest
            self._known = None
            log().warning("metrics: the store does not tell how full it is: %s", error)
        now = self._clock()
        self._next = now + max(STATS_INTERVAL, STATS_SHARE * (now - began))
