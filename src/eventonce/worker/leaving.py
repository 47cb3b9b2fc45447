"""The way out: what is settled is acknowledged, the rest postponed, ten at a time."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from typing import Final

from eventonce.core.ports import Delivery, Source
from eventonce.errors import ConfigError, EventonceError, SourceUnavailable
from eventonce.worker.desk import Desk
from eventonce.worker.pulse import Pulse

BATCH: Final = 10
"""Messages of one request: SQS takes no more."""

LINGER: Final = 0.1
"""Seconds a few wait for others to fill their request."""

log = logging.getLogger("eventonce.worker")


class Leaving:
    """Tells the source what became of deliveries; keeps it while the source is away."""

    def __init__(self, source: Source, desk: Desk, pulse: Pulse) -> None:
        self._source = source
        self._desk = desk
        self._pulse = pulse
        self._some = threading.Condition()
        self._settled: list[Delivery] = []
        self._later: list[tuple[Delivery, float]] = []
        """Each with when it may come again, by the monotonic clock."""

    def add(self, settled: Sequence[Delivery], later: Sequence[tuple[Delivery, float]]) -> None:
        """Let these go; who brings the tenth sends them off."""
        with self._some:
            before = bool(self._settled or self._later)
            self._settled += settled
            self._later += later
            full = max(len(self._settled), len(self._later)) >= BATCH
            if not before:
                self._some.notify()
        if full and not self._pulse.away:
            self.send(full_only=True)

    def wait(self, within: float) -> bool:
        """Wait for something to leave, and then a little for more of it."""
        with self._some:
            if not self._some.wait_for(lambda: bool(self._settled or self._later), within):
                return False
        time.sleep(LINGER)
        return True

    def send(self, *, full_only: bool = False) -> float:
        """Tell the source; the seconds to wait before trying again, if it is away."""
        while True:
            settled, later = self._batch(full_only=full_only)
            if not settled and not later:
                return 0.0
            try:
                if settled:
                    self._source.acknowledge(settled)
                    self._desk.gone(settled)
                    settled = []
                if later:
                    now = time.monotonic()
                    self._source.postpone([(one, max(0.0, at - now)) for one, at in later])
                    self._desk.gone([one for one, _ in later])
            except (ConfigError, SourceUnavailable) as error:
                with self._some:
                    self._settled += settled
                    self._later += later
                return self._pulse.failed(error)
            except EventonceError as error:
                # Refused for what it is: to ask again would be in vain, and they come again anyway.
                log.warning("%s", error)
                self._desk.gone([*settled, *(one for one, _ in later)])
            self._pulse.answered()

    def _batch(self, *, full_only: bool) -> tuple[list[Delivery], list[tuple[Delivery, float]]]:
        with self._some:
            settled, later = self._settled[:BATCH], self._later[:BATCH]
            if full_only:
                settled = settled if len(settled) == BATCH else []
                later = later if len(later) == BATCH else []
            del self._settled[: len(settled)]
            del self._later[: len(later)]
            return settled, later
