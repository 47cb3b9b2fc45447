"""An SQS batch in Lambda: its records by FIFO groups, the partial batch response, and the delay of
records. A client is loaded only after a handler raised `Retry(after=…)`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import TYPE_CHECKING, Any, Final

from eventonce.aws.invocation import Invocation, logged
from eventonce.consumer import Consumer
from eventonce.errors import EventonceError, Retry
from eventonce.log import log
from eventonce.runtime.fifo import Groups
from eventonce.types import Outcome

if TYPE_CHECKING:
    from eventonce.aws.sqs import Queue

Record = Mapping[str, Any]

NO_TIME: Final = Outcome(None, "failed", "not tried: no time was left before Lambda's deadline")

VISIBILITY_SECONDS: Final = 5.0
"""Seconds of the invocation that must be left to change a message's visibility: a connection takes
at most three, and the answer of a settled batch must not be lost."""


def sqs_records(event: Any) -> Sequence[Record] | None:
    """Return the records of an SQS batch; None for another event. A pipe sends a bare list."""
    records = event.get("Records") if isinstance(event, Mapping) else event or None
    if isinstance(records, list) and all(
        isinstance(record, Mapping)
        and record.get("eventSource") == "aws:sqs"
        and isinstance(record.get("messageId"), str)
        for record in records
    ):
        return records
    return None


def process_batch(
    consumer: Consumer, records: Sequence[Record], invocation: Invocation, *, attempts: int | None
) -> list[Outcome]:
    """Return one outcome for each record.

    Records of one FIFO group are processed in order. After a record that is not settled, the later
    records of its group are not tried: their order would be lost.
    """
    outcomes = {id(record): NO_TIME for record in records}
    groups = Groups(records, _group)
    while groups and (room := invocation.room(consumer)):
        taken = groups.take(room)
        for record, outcome in zip(
            taken, invocation.process(consumer, taken, attempts), strict=True
        ):
            outcomes[id(record)] = outcome
            if outcome.ack:
                groups.settled(record)
    return logged([outcomes[id(record)] for record in records])


def batch_response(records: Sequence[Record], outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return the partial batch response: exactly the records that must come again."""
    pairs = zip(records, outcomes, strict=True)
    again = [record["messageId"] for record, outcome in pairs if not outcome.ack]
    return {"batchItemFailures": [{"itemIdentifier": name} for name in again]}


def _group(record: Record) -> str:
    """Return the FIFO group; empty for a standard queue, whose groups are only for fairness."""
    arn, attributes = record.get("eventSourceARN"), record.get("attributes")
    if not isinstance(attributes, Mapping) or (isinstance(arn, str) and not arn.endswith(".fifo")):
        return ""
    return str(attributes.get("MessageGroupId") or "")


class Visibility:
    """The queues whose messages were delayed, each with its own client."""

    def __init__(self) -> None:
        self._queues: dict[str, Queue] = {}

    def change(self, records: Sequence[Record], outcomes: Sequence[Outcome], left: float) -> None:
        """Delay the records whose handler raised `Retry(after=…)`, and the later records of their
        FIFO groups. If that fails, they come again when the queue's visibility timeout ends. `left`
        are the seconds that are left of the invocation."""
        delays: dict[str, list[tuple[str, float]]] = {}
        groups: dict[str, float] = {}
        for record, outcome in zip(records, outcomes, strict=True):
            if outcome.ack:
                continue
            group = _group(record)
            after = outcome.error.after if isinstance(outcome.error, Retry) else None
            if after is not None and group:
                groups[group] = after
            after = groups.get(group) if after is None else after
            arn, receipt = record.get("eventSourceARN"), record.get("receiptHandle")
            if after is not None and isinstance(arn, str) and isinstance(receipt, str):
                delays.setdefault(arn, []).append((receipt, ceil(after)))
        for arn, asked in delays.items():
            self._delay(arn, asked, left)

    def _delay(self, arn: str, asked: Sequence[tuple[str, float]], left: float) -> None:
        try:
            if left < VISIBILITY_SECONDS:
                raise EventonceError("too little of the invocation is left for the request")
            refused = len(self._queue(arn).delay(asked))
            why = "the queue refused it"
        except EventonceError as error:
            refused, why = len(asked), str(error)
        if refused:
            log().warning(
                "Retry(after=…) has no effect for %d records of %s, which come again when the "
                "queue's own visibility timeout ends: %s",
                refused,
                arn,
                why,
            )

    def _queue(self, arn: str) -> Queue:
        if arn not in self._queues:
            from eventonce.aws.sqs import Queue, uri_of_arn  # noqa: PLC0415  seldom needed

            self._queues[arn] = Queue.from_uri(uri_of_arn(arn))
        return self._queues[arn]
