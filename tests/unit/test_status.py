"""The promises of the statuses to transports, senders and people."""

from __future__ import annotations

from typing import get_args

import pytest

from eventonce.core import status
from eventonce.core.status import MEANINGS, Status

ALL = frozenset(get_args(Status))


def test_every_status_has_its_meaning() -> None:
    assert MEANINGS.keys() == ALL


@pytest.mark.parametrize(
    ("told", "which"),
    [
        (ALL - status.ACKNOWLEDGED, {"busy", "failed", "fenced"}),
        (status.DEAD_LETTERS, {"dead", "conflict", "invalid"}),
        (status.COPIES, {"duplicate", "stale", "unchanged"}),
        (status.EFFECTIVE, {"done", "unguarded"} | status.COPIES),
        (status.RAN, {"done", "unguarded", "failed", "fenced"}),
        (status.USUAL, {"done", "ignored"} | status.COPIES),
    ],
    ids=["come again", "are dead letters", "are copies", "took effect", "ran", "are usual"],
)
def test_a_set_of_statuses_has_exactly_these_members(told: frozenset[str], which: set[str]) -> None:
    assert told == which


def test_the_http_answer_asks_for_a_retry_of_unacknowledged_events_only() -> None:
    answers = {name: says.http for name, says in MEANINGS.items()}
    again = {"busy": 429, "failed": 503, "fenced": 503}
    assert answers == dict.fromkeys(ALL, 200) | again | {"conflict": 422, "invalid": 400}
