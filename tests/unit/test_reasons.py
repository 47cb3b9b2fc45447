"""The sentences that outcomes, logs and dead letters give for a verdict."""

from __future__ import annotations

from typing import Any

import pytest

from eventonce.core.reasons import forgotten, given_up_after, reason, winning_version
from eventonce.errors import StoreUnavailable
from eventonce.types import Claim, Event, Verdict

AGAIN = "the same again under the same transport id"
FACT = Claim(b"k", 1, 60_000, 864_000_000, 5)
STATE = Claim(b"k", 1, 60_000, 864_000_000, 5, order=3, unchanged_within=500)


@pytest.mark.parametrize(
    ("claim", "kind", "answered", "said"),
    [
        (FACT, "duplicate", {"same_id": True}, AGAIN),
        (STATE, "duplicate", {"same_id": True}, f"version 3 was applied; {AGAIN}"),
        (STATE, "stale", {"order": 4}, "version 3 is older than 4, which was applied"),
        (STATE, "unchanged", {"order": 2}, "the state of version 2 again, within 500 ms of it"),
        (STATE, "busy", {"order": 4}, "version 4, newer than 3, was tried and is not settled"),
        (FACT, "busy", {}, "another run holds the lease"),
        (STATE, "dead", {"order": 4}, "version 4, newer than 3, was tried and never settled"),
        (
            FACT,
            "dead",
            {"attempt": 2},
            "given up after 2 attempts, the last of which never returned",
        ),
        (FACT, "dead", {}, "was given up before"),
        (FACT, "conflict", {}, "the same key, but its content differs from what was completed"),
        (FACT, "error", {"error": StoreUnavailable("full")}, "the store did not answer: full"),
        (FACT, "run", {}, "it has no effect yet and would run"),
    ],
)
def test_every_verdict_has_its_sentence(
    claim: Claim, kind: Any, answered: dict[str, Any], said: str
) -> None:
    assert reason(claim, Verdict(kind, **answered)) == said


def test_the_reason_for_one_attempt_is_in_the_singular() -> None:
    assert given_up_after(1) == "given up after 1 attempt"


@pytest.mark.parametrize(
    ("remember", "said"), [(2 * 86_400_000, "the 2 days"), (90_000, "the 90 seconds")]
)
def test_a_replay_says_how_long_events_are_remembered(remember: int, said: str) -> None:
    claim = Claim(b"k", 1, 60_000, remember, 5, at=1_000)
    assert said in forgotten(Event(b"{}", b"{}"), claim, 1_000 + remember)
    assert forgotten(Event(b"{}", b"{}"), claim, 999 + remember) == ""


@pytest.mark.parametrize("order", [0, 4, -4, 1_780_000_000_000])
def test_the_winning_version_is_read_from_the_reason_that_names_it(order: int) -> None:
    stale, unchanged, duplicate = (
        reason(STATE, Verdict(kind, order=order)) for kind in ("stale", "unchanged", "duplicate")
    )
    assert (winning_version(stale), winning_version(unchanged)) == (order, order)
    assert winning_version(duplicate) is None
