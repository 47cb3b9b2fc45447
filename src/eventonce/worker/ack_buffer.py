"""The acknowledgement buffer: acknowledges settled events and postpones the others, ten in a
request; and the pause until an event comes again."""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from eventonce.core.outcomes import backoff
from eventonce.core.ports import Delivery, Source
from eventonce.core.status import FAILURES
from eventonce.errors import ConfigError, EventonceError, SourceUnavailable
from eventonce.types import Outcome
from eventonce.worker.availability import Availability
from eventonce.worker.inflight import BATCH_EVENTS, Inflight
from eventonce.worker.threads import CHECK_INTERVAL, Threads

ACK_WAIT: Final = 0.1
"""Seconds that a request which is not full waits for more events."""

PAUSE_SPREAD: Final = 0.5
"""The largest random addition to a pause, as a share of the pause."""

NOT_BEGUN_DELAY: Final = 1e-9
"""Seconds: an event that was not begun may come again at once."""

log = logging.getLogger("eventonce.worker")


class AckBuffer:
    """The events to acknowledge or to postpone at the source; kept while the source is away."""

    def __init__(self, source: Source, inflight: Inflight, queue: Availability) -> None:
        self._source = source
        self._inflight = inflight
        self._queue = queue
        self._some = threading.Condition()
        self.postponing = threading.Lock()
        """Held during a request that postpones: of two about one event, the last one counts."""
        self._settled: list[Delivery] = []
        self._later: list[tuple[Delivery, float]] = []
        """Each event with the moment from which it may come again, by the monotonic clock."""

    def acknowledge(self, one: Delivery) -> None:
        """Let the source forget this event."""
        with self._some:
            self._settled.append(one)
            self._notify(len(self._settled), 1)

    def postpone(self, deliveries: Iterable[Delivery], seconds: float) -> None:
        """Let these events come again, after so many seconds."""
        at = time.monotonic() + seconds
        with self._some:
            before = len(self._later)
            self._later += [(one, at) for one in deliveries]
            self._notify(len(self._later), len(self._later) - before)

    def send_until_stopped(self, threads: Threads) -> None:
        """Send requests until the threads are stopping: a full one at once, others after
        `ACK_WAIT`."""
        while not threads.stopping:
            with self._some:
                if not self._some.wait_for(self._any, CHECK_INTERVAL):
                    continue
                self._some.wait_for(self._full, ACK_WAIT)
            threads.sleep(self.send())

    def send(self) -> float:
        """Send all requests that wait. Return the seconds to wait before the next try, if the
        source is away."""
        while True:
            with self._some:
                settled, later = self._settled[:BATCH_EVENTS], self._later[:BATCH_EVENTS]
                del self._settled[: len(settled)]
                del self._later[: len(later)]
            if not settled and not later:
                return 0.0
            try:
                if settled:
                    with self._leaving(settled):
                        self._source.acknowledge(settled)
                    settled = []
                if later:
                    with self._leaving([one for one, _ in later]), self.postponing:
                        now = time.monotonic()
                        self._source.postpone([(one, max(0.0, at - now)) for one, at in later])
            except (ConfigError, SourceUnavailable) as error:
                with self._some:
                    self._settled += settled
                    self._later += later
                return self._queue.failed(error)
            self._queue.answered()

    @contextmanager
    def _leaving(self, deliveries: Sequence[Delivery]) -> Iterator[None]:
        """Remove these events from the in-flight buffer after the request about them."""
        try:
            yield
        except (ConfigError, SourceUnavailable):
            raise
        except EventonceError as error:
            # A permanent refusal: a retry would not help, and the events come again anyway.
            log.warning("%s", error)
        self._inflight.gone(deliveries)

    def _notify(self, many: int, more: int) -> None:
        """Wake a sender for the first event, and for the event that makes a request full."""
        before = many - more
        if more and (not before or before < BATCH_EVENTS <= many):
            self._some.notify()

    def _any(self) -> bool:
        return bool(self._settled or self._later)

    def _full(self) -> bool:
        return len(self._settled) >= BATCH_EVENTS or len(self._later) >= BATCH_EVENTS


def delay_of(outcome: Outcome, times: int) -> float:
    """Return the seconds until an event that was delivered so many times may come again."""
    if outcome.retry_at is None:
        return pause(backoff(times))
    after = outcome.retry_at - time.time() * 1000
    if isinstance(outcome.error, EventonceError):
        # No attempt was counted, so the pause grows with the number of deliveries.
        after = max(after, backoff(times))
    # Events that failed together should not come again together; leases have different ends.
    spread = PAUSE_SPREAD if outcome.status in FAILURES else 0.0
    return pause(after, spread)


def pause(milliseconds: float, spread: float = PAUSE_SPREAD) -> float:
    """Return a pause of at least so long, in whole seconds as queues count them, with a random
    addition. Never 0, even if the store's clock is far from this one."""
    seconds = max(1.0, milliseconds / 1000)
    return math.ceil(seconds) + int(seconds * spread * random.random() + random.random())
