"""The promises of the statuses to transports, senders and people."""

from __future__ import annotations

import logging
from typing import get_args

import pytest

from eventonce.core import status
from eventonce.core.status import MEANINGS, Status
from eventonce.dashboard import health
from eventonce.runtime import log_lines, redrive
from eventonce.stores.memory import MemoryStore
from eventonce.types import Letter, Outcome
from eventonce.worker import ack_buffer

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
        (status.FAILURES, {"failed"}),
        (status.USUAL, {"done", "ignored"} | status.COPIES),
    ],
    ids=[
        "come again",
        "are dead letters",
        "are copies",
        "took effect",
        "ran",
        "are failures",
        "are usual",
    ],
)
def test_a_set_of_statuses_has_exactly_these_members(told: frozenset[str], which: set[str]) -> None:
    assert told == which


def test_the_http_answer_asks_for_a_retry_of_unacknowledged_events_only() -> None:
    answers = {name: says.http for name, says in MEANINGS.items()}
    again = {"busy": 429, "failed": 503, "fenced": 503}
    assert answers == dict.fromkeys(ALL, 200) | again | {"conflict": 422, "invalid": 400}


def test_another_status_that_is_a_failure_is_treated_as_one_everywhere(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for module in (redrive, ack_buffer, health, log_lines):
        monkeypatch.setattr(module, "FAILURES", {"busy"})
    store = MemoryStore()
    letter = Letter("abc", "crm", "dead", "an older reason", "rule", b"key", b"{}", 1_000)
    store.put_letters([letter])
    outcome = Outcome(None, "busy", "the newest reason", retry_at=2**53)
    redrive.settle(store, [(letter, outcome)], now=2_000)
    assert [it.reason for it in store.letters()] == ["the newest reason"]
    assert len({ack_buffer.delay_of(outcome, 1) for _ in range(20)}) > 2
    found = health.health(health.Seen(recent={"done": 99, "busy": 1}))
    assert "failure to be tried again" in str(found.sentence)
    log_lines.write_line(Outcome(None, "busy", error=ValueError()), logging.getLogger())
    log_lines.write_line(Outcome(None, "fenced", error=ValueError()), logging.getLogger())
    assert [bool(line.exc_info) for line in caplog.records] == [True, False]
