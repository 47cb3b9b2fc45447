"""The deletion of old dead letters and expired records, while the consumer works."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf
from threading import Event, Thread
from typing import Final

from eventonce.core.ports import StoreAdmin
from eventonce.errors import ConfigError, EventonceError, StoreUnavailable
from eventonce.log import Outage, log
from eventonce.rules.instants import duration, duration_text
from eventonce.runtime.background_task import EXIT_WAIT, BackgroundTask

LOOK_INTERVAL: Final = 3_600.0
"""Seconds between two looks of a process for old dead letters."""

SWEEP_INTERVAL: Final = 60.0
"""Seconds between two sweeps."""

FEWEST_SWEPT: Final = 10_000
MOST_SWEPT: Final = 1_000_000
"""The fewest and the most records of one sweep: PostgreSQL takes a millisecond for a thousand."""

LETTERS_AT_ONCE: Final = 100
"""Dead letters that are dropped in one call."""


def kept_for(name: str, keep: float | str | None) -> int | None:
    """Return the milliseconds for which dead letters are kept; None for ever."""
    if keep is None or keep == "":
        return None
    try:
        kept = duration(keep)
    except ValueError as error:
        raise ConfigError(f"{name}: {error}") from None
    if not kept:
        raise ConfigError(f"{name}: must be greater than 0; leave it out to keep them for ever")
    return kept


def drop_expired(admin: StoreAdmin, consumer: str, before: int) -> int:
    """Drop this consumer's dead letters from before this instant; return how many there were."""
    dropped = 0
    ids: list[str] = []
    for letter in admin.letters(consumer):
        if letter.at >= before:
            break  # they come oldest first
        ids.append(letter.id)
        if len(ids) == LETTERS_AT_ONCE:
            dropped += admin.drop_letters(ids, before)
            ids = []
    return dropped + (admin.drop_letters(ids, before) if ids else 0)


@contextmanager
def maintained(admin: StoreAdmin, retention: Retention | None) -> Iterator[None]:
    """Maintain the store beside the work of a long-running process: drop old dead letters now and
    every hour, also while no events come; drop expired records once a minute, unless the store does
    so with its claims."""
    sweeps = None if getattr(admin, "embedded", False) else Sweeps(admin)
    ended = Event()

    def maintain() -> None:
        while True:
            if retention is not None:
                retention.look_if_due()
            if ended.wait(SWEEP_INTERVAL):
                return
            if sweeps is not None:
                sweeps.sweep()

    thread = Thread(target=maintain, name="eventonce-maintenance", daemon=True)
    if sweeps is not None or retention is not None:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        if thread.ident is not None:
            thread.join(EXIT_WAIT)


class Sweeps:
    """Sweeps of a store: the more records have expired, the more the next sweep looks at."""

    def __init__(self, admin: StoreAdmin) -> None:
        self._admin = admin
        self._refused = Outage()
        self.limit = FEWEST_SWEPT
        """Records that the next sweep looks at."""

    def sweep(self) -> None:
        """Go on where the last sweep of any process stopped."""
        try:
            dropped = self._admin.sweep(self.limit)
        except StoreUnavailable:
            return  # other calls log the outage
        except Exception as error:  # noqa: BLE001  any store's error; the next sweep tries again
            if self._refused.tells():
                log().warning("expired records are not dropped: %s", error)
            return
        self._refused.ended()
        many = dropped * 10 > self.limit
        self.limit = min(MOST_SWEPT, self.limit * 2) if many else max(FEWEST_SWEPT, self.limit // 2)


class Retention:
    """Drops the dead letters of one consumer that are older than they may be.

    Once an hour a batch starts the search for them, in a thread, and does not wait for it.
    """

    def __init__(
        self, admin: StoreAdmin, consumer: str, keep: int, clock: Callable[[], int]
    ) -> None:
        self._admin = admin
        self._consumer = consumer
        self._keep = keep
        self._clock = clock
        self.told: Callable[[int], None] = lambda _: None
        """Called with the number of dropped dead letters, to count them."""
        self._due = -inf
        self._task = BackgroundTask("retention", self.look, at_exit=False)
        self.wait = self._task.wait

    def look_if_due(self) -> None:
        """Start a look, if the last one is an hour ago."""
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + LOOK_INTERVAL
        self._task.begin()

    def look(self) -> int:
        """Drop the dead letters that are too old; return how many there were. A store that is away
        is asked again in an hour."""
        try:
            dropped = drop_expired(self._admin, self._consumer, self._clock() - self._keep)
        except EventonceError as error:
            log().warning("dead letters: the old ones are not dropped yet: %s", error)
            return 0
        if dropped:
            self.told(dropped)
            log().warning(
                "dead letters: dropped %d of %s that were kept for %s (keep_letters)",
                dropped,
                self._consumer,
                duration_text(self._keep),
            )
        return dropped
