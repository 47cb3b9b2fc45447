"""The report to a caller about its events: counts for a direct invocation, a response for HTTP.

Shared by the Lambda entry point and the HTTP receiver.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from types import MappingProxyType
from typing import Final, NamedTuple

import msgspec

from eventonce.core.status import ACKNOWLEDGED, COPIES, EFFECTIVE, MEANINGS, USUAL, Status
from eventonce.envelope.headers import SNS_TYPE
from eventonce.errors import Reject, SourceUnavailable, StoreError
from eventonce.types import Outcome

_AGAIN: Final = frozenset((408, 429))
"""The statuses, besides 5xx, that ask the sender to send again."""

SOONEST_RETRY: Final = 1
"""The fewest seconds of Retry-After, which takes whole seconds."""


JSON: Final[Mapping[str, str]] = MappingProxyType({"content-type": "application/json"})
"""The headers of an answer without further headers."""


class Answer(msgspec.Struct, frozen=True):
    """An HTTP response."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class EventReport(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The status of one event, and the reason without private data."""

    id: str
    """The event's transport id, empty if it has none."""
    status: Status
    reason: str = ""
    key: str = ""
    """The key of the event: `eventonce show KEY` shows its record."""


class Report(msgspec.Struct, frozen=True):
    """The statuses of all events of a request, in the order they were sent."""

    processed: int
    duplicates: int
    errors: int
    statuses: dict[Status, int]
    events: list[EventReport]


class Counts(NamedTuple):
    """The number of events that ran, were copies, or failed, and the number of each status."""

    processed: int
    duplicates: int
    errors: int
    statuses: dict[Status, int]


def counts(outcomes: Sequence[Outcome]) -> Counts:
    """Count these outcomes."""
    each = [outcome.status for outcome in outcomes]
    statuses = {status: each.count(status) for status in dict.fromkeys(each)}
    processed = copies = errors = 0
    for status, number in statuses.items():
        if status in COPIES:
            copies += number
        elif status in EFFECTIVE:
            processed += number
        elif status not in USUAL:
            errors += number
    return Counts(processed, copies, errors, statuses)


def respond(outcomes: Sequence[Outcome], now: int) -> Answer:
    """Return one response for all events: if an event must come again, it says to send again."""
    counted = counts(outcomes)
    headers: Mapping[str, str] = JSON
    again = counted.statuses.keys() - ACKNOWLEDGED
    if again:
        status = max([MEANINGS[one].http for one in again])
        latest = max(one.retry_at or now for one in outcomes if one.status in again)
        # An earlier retry would only be refused again.
        wait = max(SOONEST_RETRY, ceil((latest - now) / 1000))
        headers = {**JSON, "retry-after": str(wait)}
    else:
        status = min([MEANINGS[one].http for one in counted.statuses], default=200)
    events = [
        EventReport(
            one.event.id if one.event is not None else "",
            one.status,
            "" if one.status == "done" else public_reason(one),
            one.key.hex(),
        )
        for one in outcomes
    ]
    return Answer(status, headers, _encode(Report(*counted, events)))


_encode: Final = msgspec.json.Encoder().encode


def understood(answer: Answer, headers: Mapping[str, str]) -> Answer:
    """Return the answer with a status that the sender of these headers understands.

    SNS sends again only after 5xx: it takes any 4xx for a delivery, and the message would be lost.
    """
    if SNS_TYPE in headers and answer.status in _AGAIN:
        return msgspec.structs.replace(answer, status=503)
    return answer


def public_reason(outcome: Outcome) -> str:
    """Return the reason without private data.

    The error of a handler may contain a customer's data or a password, and the error of a store its
    address. The sender gets only the type of a handler's error, and no text of a store's error. Log
    and dead letter have both in full. The fault of an invalid event is no secret.
    """
    error = outcome.error
    match outcome.status:
        case "done":
            return ""
        case "unguarded":
            return "ran without protection, as its rule says"
        case "invalid":
            return outcome.reason
        case _ if error is None:
            return outcome.reason
        case _ if isinstance(error, StoreError):
            return "the store is away"
        case _ if isinstance(error, SourceUnavailable):
            return "a queue is away"
        case "dead" if isinstance(error, Reject):
            return "rejected by the handler"
        case "dead":
            return f"given up: the handler raised {type(error).__name__}"
        case _:
            return f"the handler raised {type(error).__name__}"
