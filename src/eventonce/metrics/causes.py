"""The cause of an outcome: one word of a bounded set, where the reason is a sentence."""

from __future__ import annotations

from typing import Final

from eventonce.core.reasons import (
    GIVEN_UP_BEFORE,
    NEVER_SETTLED,
    NOT_ALONE,
    NOT_SETTLED,
    NOT_STARTED,
    REFUSED,
    REPLAY,
    SAME_BATCH,
)
from eventonce.errors import Reject, StoreError
from eventonce.types import Outcome

COPIES: Final = {True: "same_id", False: "other_id", None: "unknown_id"}

GIVEN_UP_AGAIN: Final = "given_up_before"
"""The cause of a copy of an event that was given up."""

NO_HANDLER: Final = "no_handler"
"""The cause of an event that no handler takes."""

_FIXED: Final = {"stale": "older_version", "unchanged": "same_state", "conflict": "content_differs"}


def cause_of(outcome: Outcome) -> str:
    """Return a key of `names.CAUSES`, or the class of the exception that a handler raised."""
    status, reason = outcome.status, outcome.reason
    # First, because nearly all events are one of these two.
    if status == "done":
        return "first_attempt" if outcome.attempt <= 1 else "later_attempt"
    if status == "duplicate":
        return COPIES[outcome.same_id]
    if status in _FIXED:
        return _FIXED[status]
    match status:
        case "invalid":
            return "not_an_event" if outcome.event is None else "no_key"
        case "ignored":
            return "replay" if outcome.key else NO_HANDLER
        case "unguarded":
            return "shadow" if outcome.shadowed else "store"
        case "busy":
            return _busy(reason)
        case "fenced" if reason == REFUSED["unknown"]:
            return "unknown_run"
        case "fenced":
            return "not_begun" if reason == NOT_STARTED else "lease_lost"
        case _:
            return _not_settled(outcome)


def _not_settled(outcome: Outcome) -> str:
    """Return the cause of a `failed` or `dead` outcome."""
    error = outcome.error
    if isinstance(error, StoreError):
        return "store"
    if isinstance(error, Reject):
        return "rejected"
    if error is not None:
        return type(error).__name__
    if not outcome.key:
        return NO_HANDLER
    return "not_begun" if outcome.status == "failed" else _dead(outcome.reason)


def _busy(reason: str) -> str:
    if reason == NOT_ALONE:
        return "alone"
    if reason.endswith(NOT_SETTLED):
        return "newer_version"
    return "same_batch" if reason.startswith(SAME_BATCH) else "another_run"


def _dead(reason: str) -> str:
    if reason.endswith(NEVER_SETTLED):
        return "newer_version"
    if reason.startswith(REPLAY):
        return "replay"
    return GIVEN_UP_AGAIN if reason == GIVEN_UP_BEFORE else "never_returned"
