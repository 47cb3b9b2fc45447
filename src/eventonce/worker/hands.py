"""What a hand does with what it takes from the desk: run it, and say what shall become of it."""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Callable, Sequence
from sys import maxsize
from typing import Final

import msgspec

from eventonce import envelope
from eventonce.consumer import Consumer
from eventonce.core.engine import backoff
from eventonce.core.ports import Delivery, Task
from eventonce.errors import (
    ConfigError,
    EnvelopeError,
    EventonceError,
    StoreError,
    StoreMismatch,
    StoreUnavailable,
)
from eventonce.runtime.fifo import Groups
from eventonce.runtime.renewal import SETTLE_INTERVAL
from eventonce.types import Event, Outcome
from eventonce.worker.desk import Desk
from eventonce.worker.leaving import Leaving
from eventonce.worker.line import Line
from eventonce.worker.pace import Pace
from eventonce.worker.pulse import Pulse

NOT_RUN: Final = frozenset[str](("duplicate", "stale", "unchanged", "ignored", "busy", "invalid"))
"""The statuses that say nothing of how long a handler takes."""

AWAY: Final = (StoreUnavailable, StoreMismatch)
"""The errors that are about the whole store, not about one event."""

SPREAD: Final = 0.5
"""The share of a pause that chance may add to it."""

log = logging.getLogger("eventonce.worker")


class Hand:
    """Works through what it takes; one that raises gives back what it holds first."""

    def __init__(
        self, consumer: Consumer, desk: Desk, leaving: Leaving, pace: Pace, store: Pulse
    ) -> None:
        self._consumer = consumer
        self._desk = desk
        self._leaving = leaving
        self._pace = pace
        self._store = store

    def work(self) -> None:
        """Until the desk closes."""
        while (taken := self._desk.take()) is not None:
            if isinstance(taken, Line):
                taken.help()
                self._desk.rest()
                continue
            settled: list[Delivery] = []
            later: dict[int, tuple[Delivery, float]] = {}
            try:
                self._run(taken, settled, later)
            except (ConfigError, StoreMismatch):
                raise
            except StoreError as error:
                self._store.failed(error)
            except SystemExit as stop:
                # A handler's own `sys.exit()`: its run was freed, and has cost it an attempt.
                log.warning("a handler raised %r; its event and those with it come again", stop)
            except Exception:
                # One event that nobody foresaw must not stop all others; it comes again, more and
                # more slowly, until its queue gives it up.
                log.exception("%d events could not be processed, they come again", len(taken))
            finally:
                self._let_go(taken, settled, later)
                self._desk.rest()

    def work_off(
        self, tasks: Sequence[Task], finished: list[Task], run: Callable[[Task], None]
    ) -> None:
        """Run what was taken together, so that idle hands can help."""
        line = Line(tasks, finished, run)
        self._desk.lay_open(line)
        try:
            # After a while what has returned is settled: failures and letters shall not wait.
            line.work(until=time.monotonic() + SETTLE_INTERVAL)
        finally:
            self._desk.take_away(line)
            line.close()

    def _let_go(
        self,
        taken: Sequence[Delivery],
        settled: Sequence[Delivery],
        later: dict[int, tuple[Delivery, float]],
    ) -> None:
        now, done = time.monotonic(), set(map(id, settled))
        for one in taken:
            if id(one) not in done and id(one) not in later:
                later[id(one)] = one, now + _pause(backoff(one.times))
        self._desk.left_work(taken)
        self._leaving.add(settled, list(later.values()))

    def _run(
        self,
        taken: Sequence[Delivery],
        settled: list[Delivery],
        later: dict[int, tuple[Delivery, float]],
    ) -> None:
        groups = Groups(taken, _group)
        while groups:
            some = groups.take(len(taken))
            started = time.monotonic()
            outcomes = self._consumer.process([_incoming(one) for one in some])
            now = time.monotonic()
            self._pace.learn(now - started, sum(one.status not in NOT_RUN for one in outcomes))
            self._listen(outcomes)
            for one, outcome in zip(some, outcomes, strict=True):
                if outcome.ack:
                    settled.append(one)
                    groups.settled(one)
                else:
                    self._postpone(one, taken, now + delay_of(outcome, one.times), later)

    def _postpone(
        self,
        one: Delivery,
        taken: Sequence[Delivery],
        until: float,
        later: dict[int, tuple[Delivery, float]],
    ) -> None:
        """Bring it again, and not before it what stands behind it in its group."""
        later[id(one)] = one, until
        if one.group:
            behind = taken[taken.index(one) + 1 :]
            later.update({id(it): (it, until) for it in behind if it.group == one.group})

    def _listen(self, outcomes: Sequence[Outcome]) -> None:
        """Learn from the outcomes whether the store answers."""
        errors = [it.error for it in outcomes if it.error is not None and not it.ack]
        # One event that the store cannot hold must not keep all others waiting.
        away = next((error for error in errors if isinstance(error, AWAY)), None)
        if away is not None:
            self._store.failed(away)
        elif any(outcome.key for outcome in outcomes):
            self._store.answered()


def _group(delivery: Delivery) -> str:
    return delivery.group


def _incoming(delivery: Delivery) -> bytes | Event:
    """The event of a delivery, under the transport's id if it has none of its own; what is no event
    is left as it is, for the consumer to make a letter of."""
    try:
        # The limit is the consumer's own, which holds every event to it.
        event = envelope.read(delivery.body, max_bytes=maxsize)
    except EnvelopeError:
        return delivery.body
    if event.id.strip() and event.form != "cxone":
        return event
    # An id that stands in the event itself may be an entity's: the transport's comes before it.
    return msgspec.structs.replace(event, id=delivery.id or event.id, delivery=delivery.receipt)


def delay_of(outcome: Outcome, times: int) -> float:
    """Seconds until it may come again, for what came so many times."""
    if outcome.retry_at is None:
        return _pause(backoff(times))
    after = outcome.retry_at - time.time() * 1000
    if isinstance(outcome.error, EventonceError):
        # No attempt was counted: how often it came is all there is to slow it down by.
        after = max(after, backoff(times))
    # What failed together shall not come together; a lease ends when it ends.
    spread = SPREAD if outcome.status == "failed" else 0.0
    return _pause(after, spread)


def _pause(milliseconds: float, spread: float = SPREAD) -> float:
    """At least so long, in whole seconds as queues count them, and somewhat more by chance. Never
    at once, however far the store's clock is from ours."""
    seconds = max(1.0, milliseconds / 1000)
    return math.ceil(seconds) + int(seconds * spread * random.random() + random.random())
