"""The worker, made of fetcher, in-flight buffer, stages and acknowledgement buffer."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from itertools import count
from math import inf
from sys import maxsize
from typing import Any, Final

import msgspec

from eventonce import envelope
from eventonce.arguments import check_count, check_seconds
from eventonce.consumer import Consumer
from eventonce.core.outcomes import backoff
from eventonce.core.ports import Delivery, Source
from eventonce.core.status import RAN
from eventonce.errors import (
    ConfigError,
    EnvelopeError,
    EventonceError,
    StoreError,
    StoreMismatch,
    StoreUnavailable,
)
from eventonce.runtime.gate import is_overdue
from eventonce.runtime.running_batch import CopyWait, RunningBatch
from eventonce.runtime.shared_process import INSIDE_HANDLER
from eventonce.runtime.stages import StagedBatch, Stages
from eventonce.stores.probe import new_trial_key
from eventonce.types import Event, Outcome
from eventonce.worker.ack_buffer import NOT_BEGUN_DELAY, AckBuffer, delay_of, pause
from eventonce.worker.availability import Availability, look_after, probe
from eventonce.worker.fetcher import Fetcher
from eventonce.worker.inflight import BATCH_EVENTS, Inflight
from eventonce.worker.threads import Asked, Died, Threads

RECENT_ANSWER: Final = 60.0
"""Seconds for which an answer of the queue is recent: a long poll without messages takes twenty."""

PROBE_AFTER: Final = 10.0
"""Seconds of silence after which the store is probed."""

HANDOVER_DELAY: Final = 2.0
"""Seconds after which an unfinished event may come to another worker: this worker has ended by
then, and its handler with it."""

SETTLE_PAUSES: Final = (0.05, 0.2, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0)
"""Seconds between tries to settle an event that has run, half a minute in all: the queue lets the
worker keep the event, and a second run would be worse than a wait for the store."""

VISIBILITY_RENEWALS: Final = 4
"""Renewals of an event's visibility within one visibility timeout: two of the four may fail."""

STORE_AWAY: Final = (StoreUnavailable, StoreMismatch)
"""The errors that are about the whole store, not about one event."""

log = logging.getLogger("eventonce.worker")


class WorkerSettings(msgspec.Struct, frozen=True):
    """The settings of a worker: how much it does at once, and how long it may take to end."""

    concurrency: int = 10
    receivers: int = 2
    drain: float = 25.0

    def __post_init__(self) -> None:
        check_count("WorkerSettings: concurrency", self.concurrency)
        check_count("WorkerSettings: receivers", self.receivers)
        check_seconds("WorkerSettings: drain", self.drain)


class ExitReport(msgspec.Struct, frozen=True):
    """The end of a worker: its unfinished events, and the error."""

    unfinished: int = 0
    """Events still in work when the time to drain was over: they are freed, and come again."""
    error: BaseException | None = None
    """The reason of an end that was not asked for."""
    unhandled: int = 0
    """Events that no handler takes and that failed for it; they stay in the files of their
    source."""


class Worker:
    """A worker: runs until a signal, the end of its source, or the death of one of its threads."""

    def __init__(self, consumer: Consumer, source: Source, settings: WorkerSettings) -> None:
        if not isinstance(consumer, Consumer):
            raise ConfigError(f"Worker: expected a Consumer, not {type(consumer).__name__}")
        if not hasattr(source, "receive"):
            raise ConfigError(f"Worker: expected a Source, not {type(source).__name__}")
        self._consumer = consumer
        self._source = source
        self._settings = settings
        self._threads = Threads()
        self._inflight = Inflight(
            settings.concurrency, settings.receivers, asynchronous=consumer.asynchronous
        )
        self._queue = Availability(str(source), lately=RECENT_ANSWER)
        self._store = Availability("the store", lately=3 * PROBE_AFTER)
        self._trial_key = new_trial_key()
        self._acks = AckBuffer(source, self._inflight, self._queue)
        self._stages = Stages(consumer.runtime, settings.concurrency, self._inflight.waits)
        self._starter = consumer.runtime.awaiting.starter() if consumer.asynchronous else None
        self._context = copy_context()
        self._context.run(INSIDE_HANDLER.set, True)
        self._draining = False
        self._unhandled = count()
        self._keeps = getattr(source, "keeps", False)

    def run(self) -> ExitReport:
        """Work until the end."""
        self._consumer.runtime.pauses = SETTLE_PAUSES
        probe(self._consumer.store, self._store, self._trial_key)
        self._start()
        log.info("receiving from %s", self._source)
        reason = self._threads.wait_for_end()
        if isinstance(reason, Asked):
            log.info("ending: %s", reason.why)
            return ExitReport(self._drain(), unhandled=next(self._unhandled))
        # An error of eventonce says everything; a defect needs its traceback.
        defect = None if isinstance(reason.error, EventonceError) else reason.error
        log.error("ending: %s died: %s", reason.name, reason.error, exc_info=defect)
        return ExitReport(self._drain(), reason.error)

    def stop(self, why: str = "asked to") -> None:
        """End after the events in work are finished; safe in a signal handler."""
        self._threads.end(Asked(why))

    def in_flight(self) -> int:
        """How many events were received and are not acknowledged yet."""
        return len(self._inflight)

    def state(self) -> dict[str, Any]:
        """The state for a health check."""
        queue, live = self._queue, not self._threads.broken
        held = self._consumer.runtime.gate.held()
        running = [run for run in held if run.started and not run.finished]
        oldest = min((run.started for run in running), default=inf)
        now = time.monotonic()
        overdue = sum(is_overdue(run, now) for run in running)
        stuck = overdue >= self._settings.concurrency
        # While the buffer is full the queue is not asked, so its silence is no failure.
        answers = queue.fine or (queue.known and not queue.away and self._inflight.full)
        return {
            "live": live,
            "ready": live and answers and self._store.fine and not self._draining and not stuck,
            "draining": self._draining,
            "queue": self._queue.report(),
            "store": self._store.report(),
            "running": len(running),
            "in_flight": self.in_flight(),
            "oldest_seconds": round(now - oldest, 1) if running else 0.0,
            "overdue": overdue,
        }

    def _start(self) -> None:
        threads, source = self._threads, self._source
        fetcher = Fetcher(source, self._inflight, threads, self._queue, self._store, self._begin)
        for number in range(self._settings.receivers):
            threads.start(f"receiver-{number}", fetcher.another if number else fetcher.first)
            threads.start(f"acks-{number}", partial(self._acks.send_until_stopped, threads))
        threads.start(
            "probing",
            partial(
                look_after, self._consumer.store, threads, self._store, PROBE_AFTER, self._trial_key
            ),
        )
        if source.hold < inf:
            threads.start("visibility", self._renew_visibility)

    def _begin(self, deliveries: Sequence[Delivery]) -> None:
        """Plan these events, and give them to the stages."""
        runtime = self._consumer.runtime
        batches = []
        for one in deliveries:
            began = time.perf_counter()
            batch = StagedBatch(
                RunningBatch(runtime, runtime.plan([_incoming(one)]), CopyWait(here=inf)),
                partial(self._ended, one, began),
                context=self._context,
                starter=self._starter,
            )
            batch.cancelled = self._draining
            batches.append(batch)
        self._stages.submit(batches)

    def _ended(self, one: Delivery, began: float, batch: StagedBatch) -> None:
        """Acknowledge an event whose outcome is known, or let it come again."""
        seconds = None
        try:
            (outcome,) = batch.result()
            if outcome.ack or not _is_put_back(batch):
                (outcome,) = self._consumer.runtime.tell([outcome], began)
            seconds = self._delay(batch, outcome, one)
        except (ConfigError, StoreMismatch) as error:
            self._threads.end(Died("the store", error))
        except StoreError as error:
            # Of the whole call: the refusal of one event is a verdict, and no exception.
            self._store.failed(error)
        except BaseException:  # an observer may call `sys.exit`
            # An unexpected error of one event must not stop the others. The event comes again,
            # after longer and longer pauses, until its queue gives it up.
            log.exception("an event could not be processed; it comes again")
        if seconds == 0.0:
            following = self._inflight.acknowledged(one)
            self._acks.acknowledge(one)
            if following:
                self._begin(following)
            return
        later = pause(backoff(one.times)) if seconds is None else seconds
        self._acks.postpone(self._inflight.postponed(one), later)

    def _delay(self, batch: StagedBatch, outcome: Outcome, one: Delivery) -> float:
        """Return the seconds until an event may come again, 0 if it is acknowledged. Also note the
        answer of the store and the time of the handler."""
        for run in batch.running.runs:
            if run.started and outcome.status in RAN:
                self._inflight.note_time(run.took)
        # A dead letter whose queue or sealing key is away says nothing about the store.
        if (outcome.ack or outcome.key) and not any(run.letter_away for run in batch.running.runs):
            error = outcome.error
            # Only errors of the whole store: an event that the store refuses must not delay others.
            if isinstance(error, STORE_AWAY) and not outcome.ack:
                self._store.failed(error)
            elif outcome.key:
                self._store.heard()
        if outcome.ack:
            return 0.0
        if self._keeps and not batch.running.runs and outcome.error is None:
            # This process has no handler for it, however often it comes; the file keeps it.
            next(self._unhandled)
            return 0.0
        if batch.cancelled and all(run.job is None for run in batch.running.runs):
            return NOT_BEGUN_DELAY
        return delay_of(outcome, one.times)

    def _renew_visibility(self) -> None:
        """Renew the visibility of events in flight, so that no other worker receives them.

        The gate renews their leases in the store: if one of the two renewals fails, the other still
        guards the run.
        """
        share = self._source.hold / VISIBILITY_RENEWALS
        while not self._threads.sleep(share):
            now = time.monotonic()
            held = self._inflight.received_before(now - share)
            for start in range(0, len(held), BATCH_EVENTS):
                try:
                    with self._acks.postponing:
                        # Looked up again: an event that has failed meanwhile has its own pause.
                        some = self._inflight.in_work(held[start : start + BATCH_EVENTS])
                        if self._threads.stopping or not some:
                            continue
                        self._source.postpone([(one, self._source.hold) for one in some])
                except EventonceError as error:
                    self._queue.failed(error)
                    break
                self._queue.answered()
                for one in some:
                    one.held = now

    def _drain(self) -> int:
        """Postpone the events that were not begun, wait for the others, and free those that do not
        finish in time. Return their number."""
        self._draining = True
        self._threads.release()
        end = time.monotonic() + self._settings.drain
        self._acks.postpone(self._inflight.close(), 0.0)
        self._stages.cancel()
        unfinished = self._inflight.drained(end - time.monotonic())
        self._threads.stop()
        if unfinished:
            self._abandon(unfinished)
        else:
            self._stages.close()
        return len(unfinished)

    def _abandon(self, unfinished: list[Delivery]) -> None:
        log.warning("%d events are not finished: they are freed and come again", len(unfinished))
        with suppress(EventonceError):
            self._consumer.runtime.abandon()
        # Last, so that the delay begins when cancelled handlers have ended.
        with suppress(EventonceError), self._acks.postponing:
            self._source.postpone([(one, HANDOVER_DELAY) for one in unfinished])


def _is_put_back(batch: StagedBatch) -> bool:
    """Whether the worker ended before the handler of this event began. That is no failure, and no
    observer is told of it."""
    runs = batch.running.runs
    return batch.cancelled and any(
        run.job is None and isinstance(run.error, InterruptedError) for run in runs
    )


def _incoming(delivery: Delivery) -> bytes | Event:
    """Return the event of a delivery, with the transport's id if it has none of its own. Invalid
    bytes stay as they are, and the consumer makes a dead letter of them."""
    try:
        # No limit here: the consumer checks the size of every event.
        event = envelope.read(delivery.body, max_bytes=maxsize)
    except EnvelopeError:
        return delivery.body
    # The event is new, so changing it is safe.
    msgspec.structs.force_setattr(event, "receives", delivery.times)
    if delivery.trace and not event.trace:
        msgspec.structs.force_setattr(event, "trace", delivery.trace)
    if event.id.strip() and event.form != "cxone":
        return event
    # An id inside the event may be the id of an entity, so the transport's id has priority.
    return msgspec.structs.replace(event, id=delivery.id or event.id, delivery=delivery.receipt)
