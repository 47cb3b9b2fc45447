"""The Lambda entry point: whatever AWS invokes a function with, given to a consumer and answered.

Imports no AWS library: only a store that needs one does.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, Final

import msgspec

from eventonce.answers import counts, respond
from eventonce.clock import wall_clock
from eventonce.consumer import Consumer
from eventonce.envelope import read_many
from eventonce.errors import EnvelopeError, EventonceError
from eventonce.types import Event, Outcome

COPIES: Final = frozenset[str](("duplicate", "stale", "unchanged", "ignored", "busy"))

MARGIN: Final = 1.0
"""Seconds kept back for settling before Lambda ends the process: a slow answer, tried again."""

MOST: Final = 100
"""Records claimed together at most: a batch's leases must not wait for its last handler."""


class NotSettled(EventonceError):
    """Some events are not settled: Lambda must invoke again."""

    def __init__(self, outcomes: Sequence[Outcome]) -> None:
        self.outcomes = [outcome for outcome in outcomes if not outcome.ack]
        first = self.outcomes[0]
        super().__init__(f"{len(self.outcomes)} events not settled: {first.status}: {first.reason}")


def lambda_handler(consumer: Consumer, *, margin: float = MARGIN) -> Callable[[Any, Any], Any]:
    """A Lambda function that gives its events to this consumer.

    An SQS batch is answered with the records that must come again; an HTTP request with a response;
    anything else with counts, or with an exception where Lambda must retry.
    """

    def handler(event: Any, context: Any = None) -> Any:
        clock = Deadline(context, margin)
        if isinstance(event, Mapping):
            if _is_queue(event):
                return _answer_queue(consumer, event["Records"], clock)
            if "requestContext" in event:
                return _answer_http(consumer, event)
        return _answer_direct(consumer, event, clock)

    return handler


class Deadline:
    """How much time this invocation has left, and how much an event takes."""

    def __init__(self, context: Any, margin: float) -> None:
        self._remaining = getattr(context, "get_remaining_time_in_millis", None)
        self._margin = margin
        self._slowest = 0.0

    def room(self) -> int:
        """How many events may be claimed now with time left to settle them."""
        if self._remaining is None:
            return MOST
        left = self._remaining() / 1000 - self._margin
        if left <= 0:
            return 0
        if not self._slowest:
            return 1
        return min(MOST, int(left / (2 * self._slowest)))

    def process(self, consumer: Consumer, events: Sequence[Any]) -> list[Outcome]:
        """Process, and learn from it how long an event takes."""
        started = time.monotonic()
        outcomes = consumer.process(events)
        ran = sum(outcome.status not in COPIES for outcome in outcomes)
        if ran:
            # A copy takes no time, and says nothing of what a handler takes.
            took = (time.monotonic() - started) / ran
            self._slowest = max(self._slowest, took)
        return outcomes


def _is_queue(event: Mapping[str, Any]) -> bool:
    records = event.get("Records")
    return isinstance(records, list) and all(
        isinstance(record, Mapping) and record.get("eventSource") == "aws:sqs" for record in records
    )


def _answer_queue(
    consumer: Consumer, records: Sequence[Mapping[str, Any]], clock: Deadline
) -> dict[str, Any]:
    """A partial batch response: exactly the records that may not be forgotten.

    Records of one FIFO group are processed one after the other, and once one of them is not
    settled, those behind it are not tried: their order would be lost.
    """
    settled: set[str] = set()
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for number, record in enumerate(records):
        group = record.get("attributes", {}).get("MessageGroupId")
        groups.setdefault(f"group {group}" if group else f"record {number}", []).append(record)
    stopped: set[str] = set()
    for row in _rows(groups):
        waiting = [(group, record) for group, record in row if group not in stopped]
        while waiting:
            room = clock.room()
            if not room:
                stopped.update(group for group, _ in waiting)
                break
            taken, waiting = waiting[:room], waiting[room:]
            outcomes = clock.process(consumer, [record for _, record in taken])
            for (group, record), outcome in zip(taken, outcomes, strict=True):
                if outcome.ack:
                    settled.add(record["messageId"])
                else:
                    stopped.add(group)
    failures = [record["messageId"] for record in records if record["messageId"] not in settled]
    return {"batchItemFailures": [{"itemIdentifier": failure} for failure in failures]}


def _rows(
    groups: Mapping[str, Sequence[Mapping[str, Any]]],
) -> Iterator[list[tuple[str, Mapping[str, Any]]]]:
    """The first records of all groups, then the second ones, and so on."""
    for row in zip_longest(*groups.values()):
        yield [pair for pair in zip(groups, row, strict=True) if pair[1] is not None]


def _answer_direct(consumer: Consumer, event: Any, clock: Deadline) -> dict[str, Any]:
    found = read_many(event)
    given = event if isinstance(event, list) else [event] * len(found)
    incoming = list(map(_incoming, found, given))
    outcomes: list[Outcome] = []
    while len(outcomes) < len(incoming):
        # There is no part to hand back: what has no room now is tried all the same.
        room = max(1, clock.room())
        outcomes += clock.process(consumer, incoming[len(outcomes) : len(outcomes) + room])
    if not all(outcome.ack for outcome in outcomes):
        raise NotSettled(outcomes)
    return {"statusCode": 200, "body": msgspec.json.encode(counts(outcomes)).decode()}


def _incoming(found: Event | EnvelopeError, event: Any) -> Any:
    """What the consumer is given; what is no event is given as it came, and becomes a letter."""
    return event if isinstance(found, EnvelopeError) else found


def _answer_http(consumer: Consumer, request: Mapping[str, Any]) -> dict[str, Any]:
    body = request.get("body") or ""
    raw = base64.b64decode(body) if request.get("isBase64Encoded") else body.encode()
    headers = {name.lower(): value for name, value in (request.get("headers") or {}).items()}
    incoming = [_incoming(found, raw) for found in read_many(raw, headers=headers)]
    answer = respond(consumer.process(incoming), wall_clock())
    return {
        "statusCode": answer.status,
        "headers": dict(answer.headers),
        "body": answer.body.decode(),
        "isBase64Encoded": False,
    }
