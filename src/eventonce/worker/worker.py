"""Puts the parts together: who receives, who works, who holds and who lets go; and ends them."""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from functools import partial
from math import inf
from typing import Any, Final

import msgspec

from eventonce.consumer import Consumer
from eventonce.core.ports import Delivery, Source
from eventonce.errors import EventonceError
from eventonce.worker import upkeep
from eventonce.worker.crew import Asked, Crew
from eventonce.worker.desk import Desk
from eventonce.worker.hands import Hand
from eventonce.worker.leaving import Leaving
from eventonce.worker.pace import Pace
from eventonce.worker.pulse import Pulse
from eventonce.worker.receiving import Receiving

LATELY: Final = 60.0
"""Seconds: a long poll takes twenty, and is answered even if nothing came."""

AFTER_US: Final = 2.0
"""Seconds after which what could not be finished may come to another worker: this one has ended by
then, and with it the handler that did not."""

PATIENCE: Final = (0.05, 0.2, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0)
"""Seconds between tries to settle what has run, half a minute in all: a queue lets us hold on to an
event, and to run it again would be worse than to wait for the store."""

log = logging.getLogger("eventonce.worker")


class Settings(msgspec.Struct, frozen=True):
    """How much a worker does at once, and how long it may take to end."""

    concurrency: int = 10
    receivers: int = 2
    drain: float = 25.0


class Report(msgspec.Struct, frozen=True):
    """How a worker ended."""

    unfinished: int = 0
    """Events still in work when the time to drain was over: freed, and to come again."""
    error: BaseException | None = None
    """Why it ended, where nobody had asked it to."""


class Worker:
    """Runs until it is asked to stop, its source ends, or one of its threads dies."""

    def __init__(self, consumer: Consumer, source: Source, settings: Settings) -> None:
        self._consumer = consumer
        self._source = source
        self._settings = settings
        self._crew = Crew()
        self._pace = Pace(
            settings.concurrency, settings.receivers, side_by_side=consumer.asynchronous
        )
        self._desk = Desk(self._pace)
        self._queue = Pulse(str(source), lately=LATELY)
        self._store = Pulse("the store", lately=3 * upkeep.PROBED)
        self._leaving = Leaving(source, self._desk, self._queue)
        self._draining = False

    def run(self) -> Report:
        """Work; comes back when all has ended."""
        self._consumer.settle_with(PATIENCE)
        upkeep.probe(self._consumer.store, self._store)
        self._start()
        log.info("receiving from %s", self._source)
        news = self._crew.news()
        if isinstance(news, Asked):
            log.info("ending: %s", news.why)
            return Report(self._drain())
        # Our own errors say all there is to say; of a defect one wants to know where it is.
        defect = None if isinstance(news.error, EventonceError) else news.error
        log.error("ending: %s died: %s", news.name, news.error, exc_info=defect)
        return Report(self._drain(), news.error)

    def stop(self, why: str = "asked to") -> None:
        """End, after what is in work; safe in a signal handler."""
        self._crew.tell(Asked(why))

    def state(self) -> dict[str, Any]:
        """What a health check is told."""
        queue, live = self._queue, not self._crew.broken
        # While the desk is full nobody asks the queue, and its silence says nothing.
        answers = queue.fine or (queue.known and not queue.away and self._desk.full)
        return {
            "live": live,
            "ready": live and answers and self._store.fine and not self._draining,
            "draining": self._draining,
            "queue": self._queue.told(),
            "store": self._store.told(),
            "in_work": self._desk.in_work,
            "at_hand": self._desk.at_hand,
        }

    def _start(self) -> None:
        crew, desk, source = self._crew, self._desk, self._source
        hand = Hand(self._consumer, desk, self._leaving, self._pace, self._store)
        self._consumer.work_with(hand.work_off)
        for number in range(self._settings.concurrency):
            crew.start(f"hand-{number}", hand.work)
        receiving = Receiving(source, desk, crew, self._queue, self._store)
        for number in range(self._settings.receivers):
            crew.start(f"receiver-{number}", receiving.another if number else receiving.first)
        crew.start("letting-go", partial(upkeep.let_go, self._leaving, crew))
        crew.start("calling", partial(upkeep.share, desk, crew))
        store = self._consumer.store
        crew.start("probing", partial(upkeep.look_after, store, crew, self._store))
        if source.hold < inf:
            crew.start("holding", partial(upkeep.hold, source, desk, crew, self._queue))

    def _drain(self) -> int:
        """Give back what was not begun, wait for the rest, free what does not finish in time."""
        self._draining = True
        self._crew.release()
        end = time.monotonic() + self._settings.drain
        unbegun = self._desk.close()
        self._leaving.add([], [(one, time.monotonic()) for one in unbegun])
        unfinished = self._desk.clear(end - time.monotonic())
        self._crew.stop()
        if unfinished:
            self._abandon(unfinished)
        return len(unfinished)

    def _abandon(self, unfinished: list[Delivery]) -> None:
        log.warning("%d events are not finished: freed, they come again", len(unfinished))
        with suppress(EventonceError):
            self._source.postpone([(one, AFTER_US) for one in unfinished])
        with suppress(EventonceError):
            self._consumer.abandon()
