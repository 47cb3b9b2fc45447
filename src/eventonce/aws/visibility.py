"""When a record comes again: its message's visibility, changed to what a handler's `Retry` says.

Loads boto3, and asks SQS, only where a handler wants a time of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import ceil
from typing import TYPE_CHECKING, Any, Final

from eventonce.errors import EventonceError, Retry
from eventonce.log import log
from eventonce.types import Outcome

if TYPE_CHECKING:
    from eventonce.aws.sqs import Queue

Record = Mapping[str, Any]

NEEDED: Final = 5.0
"""Seconds of the invocation that must be left to ask for it: a connection takes three at most, and
a batch that is settled must not be lost to a pause."""


class Visibility:
    """The queues whose messages were held back, each with its own client."""

    def __init__(self) -> None:
        self._queues: dict[str, Queue] = {}

    def change(
        self,
        records: Sequence[Record],
        outcomes: Sequence[Outcome],
        group: Callable[[Record], str],
        left: float,
    ) -> None:
        """Hold back the records whose handler said `Retry(after=…)`, with what stands behind each
        in its group; where that cannot be done, they come when the queue's own time is over."""
        later: dict[str, list[tuple[str, float]]] = {}
        groups: dict[str, float] = {}
        for record, outcome in zip(records, outcomes, strict=True):
            if outcome.ack:
                continue
            after = outcome.error.after if isinstance(outcome.error, Retry) else None
            if after is not None and group(record):
                groups[group(record)] = after
            after = groups.get(group(record)) if after is None else after
            arn, receipt = record.get("eventSourceARN"), record.get("receiptHandle")
            if after is not None and isinstance(arn, str) and isinstance(receipt, str):
                later.setdefault(arn, []).append((receipt, ceil(after)))
        for arn, asked in later.items():
            self._hold(arn, asked, left)

    def _hold(self, arn: str, asked: Sequence[tuple[str, float]], left: float) -> None:
        try:
            if left < NEEDED:
                raise EventonceError("too little of the invocation is left to ask for it")
            refused = len(self._queue(arn).delay(asked))
            why = "the queue refused it"
        except EventonceError as error:
            refused, why = len(asked), str(error)
        if refused:
            log().warning(
                "Retry(after=…) is not kept for %d records of %s, which come again when the "
                "queue's own visibility timeout ends: %s",
                refused,
                arn,
                why,
            )

    def _queue(self, arn: str) -> Queue:
        if arn not in self._queues:
            from eventonce.aws.sqs import Queue, uri_of_arn  # noqa: PLC0415  for those who need it

            self._queues[arn] = Queue.from_uri(uri_of_arn(arn))
        return self._queues[arn]
