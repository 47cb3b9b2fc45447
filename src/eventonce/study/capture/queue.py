"""The queue of a capture: each message is deleted after its line is on the disk."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, repeat
from queue import Empty, Full, Queue
from typing import Any, Final

from eventonce.aws.limits import SQS_BATCH_ENTRIES
from eventonce.aws.sqs import Queue as SQSQueue
from eventonce.clock import wall_clock
from eventonce.envelope.captured import Arrived
from eventonce.errors import ConfigError, EventonceError, SourceUnavailable
from eventonce.study.capture import EMPTY_INTERVAL

QUEUE_SUFFIX: Final = "-capture"
"""The end of the name of a queue that is made for a capture: no one else reads it."""

RECEIVERS: Final = 4
VISIBILITY: Final = 120
"""Seconds until a message that is not yet on the disk is received again."""
RECEIVE_WAIT: Final = 2
"""Seconds that a request waits for a message, and a capture for the end of its requests."""
EMPTY_ANSWERS: Final = 2
"""Empty answers in a row after which a receiver takes the queue for empty."""
ANSWERS_AHEAD: Final = 100
"""The most answers of ten messages that wait for the disk."""
RETRY_PAUSES: Final = (1.0, 2.0, 5.0, 15.0, 30.0)
"""Seconds between attempts while the queue cannot be reached."""
ATTRIBUTES: Final = ("ApproximateReceiveCount",)

log = logging.getLogger("eventonce.capture")

Message = tuple[Arrived, str]
"""An arrival, and its receipt."""


def own(queue: SQSQueue, *, said: bool) -> None:
    """Raise ConfigError, unless the name or the user says that only the capture reads the queue."""
    if said or queue.name.removesuffix(".fifo").endswith(QUEUE_SUFFIX):
        return
    raise ConfigError(
        f"{queue}: capture deletes each message once it is written, and would take it from a "
        f"worker or a function that reads this queue. Make a queue of its own with `eventonce "
        f"infra apply --role capture`, whose name ends with {QUEUE_SUFFIX}; or, if nobody else "
        f"reads this one, add --own-queue"
    )


class QueueFeed:
    """Several receivers. The ids of messages whose deletion is not certain are remembered: they may
    come again, and are not written twice."""

    def __init__(self, queue: SQSQueue, *, follow: bool) -> None:
        self.notes: list[str] = []
        self.broken = False
        self._queue = queue
        self._follow = follow
        self._received: Queue[list[Message] | EventonceError | None] = Queue(ANSWERS_AHEAD)
        self._stopped = threading.Event()
        self._undeleted: dict[str, str] = {}
        """The receipts of messages that were brought, by message id."""
        self._pool = ThreadPoolExecutor(RECEIVERS, thread_name_prefix="eventonce-deleting")
        self._threads: list[threading.Thread] = []
        self._ended = False
        """Whether the queue had no more messages."""
        self._resumed = False
        self._elsewhere = 0

    def __str__(self) -> str:
        return str(self._queue)

    def resume(self, position: Any) -> None:
        self._resumed = position is not None
        self._undeleted = dict.fromkeys(position or (), "")

    def __iter__(self) -> Iterator[Sequence[Arrived]]:
        # The first request is made here, so that a missing queue is reported at once.
        yield self._new(self._receive(wait=0))
        for number in range(RECEIVERS):
            thread = threading.Thread(target=self._run, name=f"receiver-{number}", daemon=True)
            thread.start()
            self._threads.append(thread)
        running = RECEIVERS
        while running:
            try:
                found = self._received.get(timeout=EMPTY_INTERVAL)
            except Empty:
                yield ()
                continue
            if found is None:
                running -= 1
            elif isinstance(found, EventonceError):
                raise found
            else:
                yield self._new(found)
        self._ended = True

    def position(self) -> list[str]:
        return list(self._undeleted)

    def committed(self) -> None:
        due = [one for one in self._undeleted.items() if one[1]]
        tens = [due[at : at + SQS_BATCH_ENTRIES] for at in range(0, len(due), SQS_BATCH_ENTRIES)]
        for gone, refused in self._pool.map(self._delete, tens):
            for message in gone:
                del self._undeleted[message]
            # These messages come again, with another receipt.
            self._undeleted.update(dict.fromkeys(refused, ""))

    def close(self) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()
        self._pool.shutdown()
        if self._ended:
            self._note_in_flight()
        self._queue.close()
        if self._elsewhere:
            self.notes.append(
                f"{self._elsewhere} messages had been received before: if a worker or a function "
                f"reads this queue too, each takes messages from the other"
            )

    def _note_in_flight(self) -> None:
        try:
            others = self._queue.in_flight() - len(self._undeleted)
        except EventonceError as error:
            self.notes.append(f"whether messages are in flight elsewhere is not known: {error}")
            return
        if others > 0:
            self.notes.append(
                f"the queue counts about {others} messages in flight, up to a minute late: a "
                f"capture that was killed, or another reader, has received them. They come again "
                f"when their visibility time-out ends, those of a capture after {VISIBILITY} "
                f"seconds: start the same command again"
            )

    def _new(self, messages: Sequence[Message]) -> list[Arrived]:
        """Return the messages that were not written before."""
        found = []
        for one, receipt in messages:
            if one.id not in self._undeleted:
                found.append(one)
                # After a killed capture, messages that it had not written come again.
                self._elsewhere += one.receives > 1 and not self._resumed
            self._undeleted[one.id] = receipt
        return found

    def _run(self) -> None:
        empty = 0
        try:
            while not self._stopped.is_set() and (self._follow or empty < EMPTY_ANSWERS):
                messages = self._patiently(lambda: self._receive(RECEIVE_WAIT))
                empty = 0 if messages else empty + 1
                if messages:
                    self._put(messages)
        except EventonceError as error:
            self._put(error)
        else:
            self._put(None)

    def _put(self, found: list[Message] | EventonceError | None) -> None:
        while not self._stopped.is_set():
            try:
                self._received.put(found, timeout=EMPTY_INTERVAL)
            except Full:
                continue
            return

    def _patiently(self, call: Callable[[], list[Message]]) -> list[Message]:
        for pause in chain(RETRY_PAUSES, repeat(RETRY_PAUSES[-1])):
            try:
                return call()
            except SourceUnavailable as error:
                log.warning("%s; trying again in %g s", error, pause)
                if self._stopped.wait(pause):
                    break
        return []

    def _receive(self, wait: int) -> list[Message]:
        messages = self._queue.receive(SQS_BATCH_ENTRIES, wait, VISIBILITY, ATTRIBUTES)
        now, channel = wall_clock(), f"sqs:{self._queue.name}"
        return [_message(message, now, channel) for message in messages]

    def _delete(self, messages: Sequence[tuple[str, str]]) -> tuple[list[str], list[str]]:
        """Return the ids of deleted messages, and of refused ones; messages in neither list are
        tried again."""
        try:
            refused = set(self._queue.delete([receipt for _, receipt in messages]))
        except SourceUnavailable as error:
            log.warning("%s; the messages that are written are deleted later", error)
            return [], []
        gone = [message for message, receipt in messages if receipt not in refused]
        return gone, [message for message, receipt in messages if receipt in refused]


def _message(message: dict[str, Any], now: int, channel: str) -> Message:
    receives = int((message.get("Attributes") or {}).get("ApproximateReceiveCount", 1))
    one = Arrived(message["Body"], channel, message["MessageId"], now, receives)
    return one, message["ReceiptHandle"]
