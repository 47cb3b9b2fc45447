"""Why an event was not run, as a sentence: what `Outcome.reason`, logs and letters say."""

from __future__ import annotations

from typing import Final

from eventonce.types import Claim, Kept, Verdict

AGAIN: Final = {
    True: "redelivery: the same transport id again",
    False: "re-publish: the same under another transport id",
    None: "the same again",
}

REFUSED: Final[dict[Kept, str]] = {
    "fenced": "ran, but outlived its lease and another run took over",
    "unknown": "ran, but outlived its lease and its record: the store no longer knows this run",
}


NOT_STARTED: Final = "not run here: another run took it over while it waited for its turn"


def reason(claim: Claim, verdict: Verdict) -> str:
    """The sentence for this verdict on this claim."""
    match verdict.kind:
        case "duplicate" if claim.order is None:
            return AGAIN[verdict.redelivery]
        case "duplicate":
            return f"version {claim.order} was applied; {AGAIN[verdict.redelivery]}"
        case "stale":
            return f"version {claim.order} is older than {verdict.order}, which was applied"
        case "unchanged":
            within = claim.unchanged_within
            return f"the state of version {verdict.order} again, within {within} ms of it"
        case "busy" if verdict.order is not None:
            return (
                f"version {verdict.order}, newer than {claim.order}, was tried and is not settled"
            )
        case "busy":
            return "another run holds it"
        case "dead" if verdict.order is not None:
            return f"version {verdict.order}, newer than {claim.order}, was tried and never settled"
        case "dead" if verdict.attempt:
            return f"given up after {verdict.attempt} attempts, the last of which never returned"
        case "dead":
            return "was given up before"
        case "conflict":
            return "the same key, but its content differs from what was completed"
        case "error":
            return f"the store did not answer: {verdict.error}"
        case "run":
            return "it has no effect yet and would run"
