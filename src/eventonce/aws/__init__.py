"""The Lambda entry point: whatever AWS invokes a function with, given to a consumer and answered.

Imports no AWS library: only a store that needs one does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from eventonce.answers import Answer, counts, respond
from eventonce.aws.deadline import MARGIN, Deadline, Pace
from eventonce.aws.request import Request, is_request, request_of, response
from eventonce.clock import wall_clock
from eventonce.consumer import Consumer
from eventonce.envelope import parts, read_body
from eventonce.errors import ConfigError, EventonceError
from eventonce.groups import Groups
from eventonce.types import Event, Outcome

Record = Mapping[str, Any]
Admits = Callable[[Mapping[str, str], bytes], bool]
"""Whether a request with these headers, names in lower case, and this body may send events."""

TRIES: Final = 3
"""How often Lambda tries an asynchronous invocation: once, and two retries unless told otherwise.
After that it drops the event, or sends it to the function's on-failure destination."""

NO_TIME: Final = Outcome(None, "failed", "not tried: no time was left before Lambda's deadline")


class NotSettled(EventonceError):
    """Some events are not settled: Lambda must invoke again."""

    def __init__(self, outcomes: Sequence[Outcome]) -> None:
        self.outcomes = [outcome for outcome in outcomes if not outcome.ack]
        first = self.outcomes[0]
        super().__init__(
            f"{len(self.outcomes)} of {len(outcomes)} events not settled, "
            f"the first is {first.status}: {first.reason}"
        )


def lambda_handler(
    consumer: Consumer,
    *,
    margin: float = MARGIN,
    partial: bool = True,
    tries: int = TRIES,
    admits: Admits | None = None,
) -> Callable[[Any, Any], Any]:
    """A Lambda function that gives its events to this consumer.

    A batch of SQS records, from the queue itself or through a pipe, is answered with the records
    that must come again; an HTTP request with a response; anything else with counts, or with an
    exception where Lambda must retry.

    `margin` is how many seconds before its deadline it stops taking records. With `partial=False`
    a batch that is not settled raises too: for an event source mapping that does not have
    `ReportBatchItemFailures`, and for a pipe that does not wait for the answer. `admits` is asked
    about every HTTP request; without it, who may send is for API Gateway or IAM to decide.

    `tries` is how often Lambda itself invokes with an event before it drops it: failing as often
    makes it a letter, whatever its rule says. Queues and HTTP bring theirs as the rule wants it.
    """
    if tries < 1:
        raise ConfigError(f"lambda_handler: tries must be at least 1, not {tries}")
    pace = Pace()

    def handler(event: Any, context: Any = None) -> Any:
        clock = Deadline(context, margin, pace)
        records = _queued(event)
        if records is not None:
            # A pipe that reads no answer leaves the retries to Lambda, which soon ends them.
            fires = not partial and records is event
            return _answer_queue(
                consumer, records, clock, partial=partial, tries=tries if fires else None
            )
        if isinstance(event, Mapping) and is_request(event):
            return response(event, _answer_request(consumer, request_of(event), clock, admits))
        return _answer_direct(consumer, event, clock, tries)

    return handler


def _queued(event: Any) -> Sequence[Record] | None:
    """The records of an SQS batch; a pipe sends them as a bare list."""
    records = event.get("Records") if isinstance(event, Mapping) else event or None
    if isinstance(records, list) and all(
        isinstance(record, Mapping)
        and record.get("eventSource") == "aws:sqs"
        and isinstance(record.get("messageId"), str)
        for record in records
    ):
        return records
    return None


def _answer_queue(
    consumer: Consumer,
    records: Sequence[Record],
    clock: Deadline,
    *,
    partial: bool,
    tries: int | None,
) -> dict[str, Any]:
    """A partial batch response: exactly the records that may not be forgotten.

    Records of one FIFO group are processed one after the other, and once one of them is not
    settled, those behind it are not tried: their order would be lost.
    """
    outcomes = {id(record): NO_TIME for record in records}
    groups = Groups(records, _group)
    while groups and (room := clock.room(consumer)):
        taken = groups.take(room)
        for record, outcome in zip(taken, clock.process(consumer, taken, tries), strict=True):
            outcomes[id(record)] = outcome
            if outcome.ack:
                groups.settled(record)
    again = [record["messageId"] for record in records if not outcomes[id(record)].ack]
    if again and not partial:
        raise NotSettled(list(outcomes.values()))
    return {"batchItemFailures": [{"itemIdentifier": name} for name in again]}


def _group(record: Record) -> str:
    """The FIFO group; a standard queue has groups too, but only to share its turns among them."""
    arn, attributes = record.get("eventSourceARN"), record.get("attributes")
    if not isinstance(attributes, Mapping) or (isinstance(arn, str) and not arn.endswith(".fifo")):
        return ""
    return str(attributes.get("MessageGroupId") or "")


def _answer_direct(consumer: Consumer, event: Any, clock: Deadline, tries: int) -> dict[str, Any]:
    outcomes = _processed(consumer, parts(event), clock, tries)
    if not all(outcome.ack for outcome in outcomes):
        raise NotSettled(outcomes)
    return {"statusCode": 200, "body": msgspec.json.encode(counts(outcomes)).decode()}


def _answer_request(
    consumer: Consumer, request: Request, clock: Deadline, admits: Admits | None
) -> Answer:
    if request.probes:
        return Answer(200, {"content-type": "application/json"}, b"{}")
    if request.method != "POST":
        return _refusal(405, f"events are sent with POST, not {request.method}", allow="POST")
    if admits is not None and not admits(request.headers, request.body):
        return _refusal(401, "this request may not send events")
    incoming = read_body(
        request.body,
        request.headers,
        keep=consumer.kept_headers,
        max_bytes=consumer.max_bytes,
    )
    return respond(_processed(consumer, incoming, clock), wall_clock())


def _refusal(status: int, why: str, **headers: str) -> Answer:
    body = msgspec.json.encode({"reason": why})
    return Answer(status, {"content-type": "application/json", **headers}, body)


def _processed(
    consumer: Consumer, incoming: Sequence[Any], clock: Deadline, tries: int | None = None
) -> list[Outcome]:
    """One outcome per event, also for those there was no time for."""
    outcomes: list[Outcome] = []
    while len(outcomes) < len(incoming) and (room := clock.room(consumer)):
        some = incoming[len(outcomes) : len(outcomes) + room]
        outcomes += clock.process(consumer, some, tries)
    return outcomes + [
        Outcome(part if isinstance(part, Event) else None, NO_TIME.status, NO_TIME.reason)
        for part in incoming[len(outcomes) :]
    ]
