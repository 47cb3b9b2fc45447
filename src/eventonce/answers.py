"""What a caller is told of its events: counts for a direct invocation, a response for HTTP.

Shared by the Lambda entry point and the HTTP receiver.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any, Final

import msgspec

from eventonce.types import Outcome, Status

HTTP_STATUS: Final[Mapping[Status, int]] = {
    "done": 200,
    "duplicate": 200,
    "stale": 200,
    "unchanged": 200,
    "ignored": 200,
    "dead": 200,
    "unguarded": 200,
    "busy": 429,
    "failed": 503,
    "fenced": 503,
    "conflict": 409,
    "invalid": 400,
}
"""EventBridge's API destinations and most webhooks send again after 429 and 5xx, and after no other
status: so these two are for what must come again, and copies are a success."""

SOONEST_RETRY: Final = 1
"""Seconds: Retry-After takes whole ones."""


class Answer(msgspec.Struct, frozen=True):
    """An HTTP response."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def counts(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """How many ran, were copies, or failed, and how many there were of each status."""
    statuses = Counter(outcome.status for outcome in outcomes)
    copies = statuses["duplicate"] + statuses["stale"] + statuses["unchanged"]
    processed = statuses["done"] + statuses["unguarded"]
    errors = len(outcomes) - processed - copies - statuses["ignored"]
    return {
        "processed": processed,
        "duplicates": copies,
        "errors": errors,
        "statuses": dict(statuses),
    }


def respond(outcomes: Sequence[Outcome], now: int) -> Answer:
    """One response for all events: if one must come again, the sender is told to send again."""
    again = [outcome for outcome in outcomes if not outcome.ack]
    headers = {"content-type": "application/json"}
    if again:
        status = max(HTTP_STATUS[outcome.status] for outcome in again)
        headers["retry-after"] = str(_seconds(again, now))
    else:
        status = min((HTTP_STATUS[outcome.status] for outcome in outcomes), default=200)
    body = {**counts(outcomes), "events": [_told(outcome) for outcome in outcomes]}
    return Answer(status, headers, msgspec.json.encode(body))


def _seconds(again: Sequence[Outcome], now: int) -> int:
    """Until the last of them may be tried: earlier is only another refusal."""
    latest = max(outcome.retry_at or now for outcome in again)
    return max(SOONEST_RETRY, ceil((latest - now) / 1000))


def _told(outcome: Outcome) -> dict[str, str]:
    event = outcome.event
    told = {"id": event.id if event is not None else "", "status": outcome.status}
    if outcome.reason:
        told["reason"] = outcome.reason
    if outcome.key:
        told["key"] = outcome.key.hex()
    return told
