"""The reasons for which an event was not run, as sentences for `Outcome.reason`, logs and dead
letters."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

from eventonce.rules.instants import instant
from eventonce.types import Claim, Event, SettleResult, Verdict

AGAIN: Final = {
    True: "the same again under the same transport id",
    False: "the same again under another transport id",
    None: "the same again",
}

REFUSED: Final[dict[SettleResult, str]] = {
    "fenced": "ran, but outlived its lease and another run took over",
    "unknown": "ran, but outlived its lease and its record: the store no longer knows this run",
}

NOT_ALONE: Final = "its last run ended with its process, and another such event runs alone here"

NOT_STARTED: Final = "not run here: another run took it over while it waited for its turn"

GIVEN_UP: Final = "given up, kept as a dead letter"
"""The words in the log for a new dead letter, and the words that an alarm looks for."""

GIVEN_UP_BEFORE: Final = "was given up before"

NOT_SETTLED: Final = "was tried and is not settled"
"""The end of the sentence for an event that waits for a newer version of its subject."""

NEVER_SETTLED: Final = "was tried and never settled"
"""The end of the sentence for an event that can never run because of a newer version."""

SAME_BATCH: Final = "its copy in the same batch is"
"""The beginning of the sentence for a copy whose original is not settled."""

REPLAY: Final = "a replay"
"""The beginning of every sentence for an event that was replayed too late."""

TOO_LATE: Final = "not run here: the events before it left too little time before the process ends"

STALLED: Final = "not run here: its event loop was stopped, and its lease was not renewed meanwhile"


def given_up_after(attempts: int) -> str:
    """Return the beginning of the sentence for an event whose attempts are used up."""
    return f"given up after {attempts} {'attempt' if attempts == 1 else 'attempts'}"


def reason(claim: Claim, verdict: Verdict) -> str:
    """Return the sentence for this verdict on this claim."""
    match verdict.kind:
        case "duplicate" if claim.order is None:
            return AGAIN[verdict.same_id]
        case "duplicate":
            return f"version {claim.order} was applied; {AGAIN[verdict.same_id]}"
        case "stale":
            return f"version {claim.order} is older than {verdict.order}, which was applied"
        case "unchanged":
            within = claim.unchanged_within
            return f"the state of version {verdict.order} again, within {within} ms of it"
        case "busy" if verdict.order is not None:
            return f"version {verdict.order}, newer than {claim.order}, {NOT_SETTLED}"
        case "busy":
            return "another run holds the lease"
        case "dead" if verdict.order is not None:
            return f"version {verdict.order}, newer than {claim.order}, {NEVER_SETTLED}"
        case "dead" if verdict.attempt:
            return f"{given_up_after(verdict.attempt)}, the last of which never returned"
        case "dead":
            return GIVEN_UP_BEFORE
        case "conflict":
            return "the same key, but its content differs from what was completed"
        case "error":
            return f"the store did not answer: {verdict.error}"
        case "run":
            return "it has no effect yet and would run"


_WON: Final = re.compile(
    r"older than (-?\d+), which was applied|the state of version (-?\d+) again"
)


def winning_version(said: str) -> int | None:
    """The version that won, as the reason of a stale or an unchanged event names it."""
    found = _WON.search(said)
    return int(found[1] or found[2]) if found else None


def forgotten(event: Event, claim: Claim, now: int) -> str:
    """Return why it cannot be known whether this replayed event took effect; empty if the store
    knows.

    A record lives for `remember` from its completion, which is after the time of the event. So an
    event younger than `remember` still has its record, or never had one. The time of the event is
    the earlier of the envelope's and its own: a second publish has a later envelope.
    """
    known = [at for at in (instant(event.time), claim.at) if at and at > 0]
    if not known:
        return f"{REPLAY} of an event that has no time: {_UNKNOWN}"
    happened = min(known)
    if happened > now + CLOCK_AHEAD:
        return f"{REPLAY} of an event whose time has not come yet: {_UNKNOWN}"
    if now - happened < claim.remember:
        return ""
    when = datetime.fromtimestamp(happened / 1000, UTC).isoformat(timespec="seconds")
    span = _span(claim.remember)
    return f"{REPLAY} from {when}, longer ago than the {span} that are remembered: {_UNKNOWN}"


CLOCK_AHEAD: Final = 300_000
"""Milliseconds that a sender's clock may be ahead of ours: the times of a clock that is further
ahead cannot be used."""

_UNKNOWN: Final = "nobody knows whether it took effect"


def _span(milliseconds: int) -> str:
    days, rest = divmod(milliseconds, 86_400_000)
    return f"{days} days" if not rest else f"{milliseconds / 1000:g} seconds"
