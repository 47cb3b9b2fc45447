"""An SQS queue as a source of a worker: its messages, and the renewal of their visibility."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from typing import Any, Final

from eventonce.aws.limits import SQS_VISIBILITY_SECONDS
from eventonce.aws.sqs import Queue
from eventonce.core.ports import Delivery
from eventonce.envelope.tracing import W3C, XRAY_ATTRIBUTE, of_message
from eventonce.errors import ConfigError

VISIBILITY: Final = 60.0
"""Seconds that a dead worker's messages stay invisible: as long as the usual lease, which must end
too before another worker can take over."""

SHORTEST_VISIBILITY: Final = 2.0
"""The fewest seconds: SQS counts whole seconds, and a renewal needs time."""

RECEIVE_WAIT: Final = 5.0
"""Seconds that a request waits for a message. A worker waits for its request before it ends: a
request that was cut off may have received messages."""

VISIBILITY_MARGIN: Final = 5.0
"""Seconds by which our count of the longest visibility ends before that of SQS."""

log = logging.getLogger("eventonce.worker")


class SQSSource:
    """A source that receives by long polling; a queue may have many such sources."""

    ended = False

    def __init__(
        self, queue: str | Queue, *, visibility: float = VISIBILITY, wait: float = RECEIVE_WAIT
    ) -> None:
        """The queue is `sqs://NAME?region=…`, its URL, or a `Queue`."""
        if isinstance(queue, str):
            queue = Queue.from_uri(queue)
        if not SHORTEST_VISIBILITY <= visibility <= SQS_VISIBILITY_SECONDS:
            raise ConfigError(
                f"{queue}: visibility is {visibility:g} s; it must be {SHORTEST_VISIBILITY:g} s to "
                f"12 h"
            )
        self.hold = visibility
        self._queue = queue
        self._wait = int(wait)
        self._answered = False
        # A group on a standard queue is for fairness, and has no order.
        groups = ("MessageGroupId",) if queue.fifo else ()
        self._asked = ("ApproximateReceiveCount", XRAY_ATTRIBUTE, *groups)

    def __str__(self) -> str:
        return str(self._queue)

    def receive(self, most: int) -> list[Delivery]:
        # The first request does not wait, to find out soon whether the queue exists.
        wait = self._wait if self._answered else 0
        messages = self._queue.receive(most, wait, int(self.hold), self._asked, W3C)
        self._answered = True
        now = time.monotonic()
        return [_delivery(message, now, fifo=self._queue.fifo) for message in messages]

    def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        refused = self._queue.delete([one.receipt for one in deliveries])
        if refused:
            log.info("%s: %d messages not deleted, they come again as copies", self, len(refused))

    def postpone(self, deliveries: Sequence[tuple[Delivery, float]]) -> None:
        now = time.monotonic()
        asked = [
            # Rounded up: a message that came back too early would have to be postponed again.
            (one.receipt, min(math.ceil(seconds), _left(one, now)))
            for one, seconds in deliveries
            if _left(one, now) > 0
        ]
        refused = self._queue.delay(asked)
        if refused:
            log.info("%s: %d messages could not be postponed", self, len(refused))

    def close(self) -> None:
        self._queue.close()


def _left(delivery: Delivery, now: float) -> float:
    """Return the seconds that this message can still be invisible: SQS allows twelve hours."""
    return SQS_VISIBILITY_SECONDS - VISIBILITY_MARGIN - (now - delivery.since)


def _delivery(message: dict[str, Any], now: float, *, fifo: bool) -> Delivery:
    known = message.get("Attributes") or {}
    return Delivery(
        # A body that JSON cannot hold, such as a lone surrogate, must become a dead letter.
        message["Body"].encode("utf-8", "surrogatepass"),
        message["ReceiptHandle"],
        message["MessageId"],
        known.get("MessageGroupId", "") if fifo else "",
        int(known.get("ApproximateReceiveCount", 1)),
        now,
        now,
        of_message(message),
    )
