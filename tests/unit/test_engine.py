"""The engine, step by step: its requests, and the outcomes that follow from the answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from eventonce import Rule, envelope
from eventonce.core.engine import Ask, Batch, Enter, Execute, Keep, Request, Settle, Wait
from eventonce.core.outcomes import finish, settlement
from eventonce.core.plan import Plan
from eventonce.types import Claim, Outcome, Verdict

NOW, LEASE, TOKEN, ATTEMPTS = 1_764_000_000_000, 60_000, 7, 2
RULE = Rule(name="call", match="call", key=["detail.call"])
EVENT = envelope.read({"id": "1", "detail-type": "call", "detail": {"call": 1}})
SUSPECT = Verdict("run", TOKEN, 1, LEASE, alone=True)


class Driven:
    """A batch of one event."""

    def __init__(self) -> None:
        plan = Plan(EVENT, RULE, Claim(b"call 1", 1, LEASE, 864_000_000, ATTEMPTS))
        self._steps = Batch([plan], "crm", lambda: NOW).steps()

    def to(self, kind: type[Request], answer: object = None) -> Any:
        """Give this answer; the request that follows is of this kind."""
        request = self._steps.send(answer)
        assert type(request) is kind
        return request

    def end(self, answer: object) -> Outcome:
        """Give this answer, the last one."""
        with pytest.raises(StopIteration) as stop:
            self._steps.send(answer)
        (outcome,) = stop.value.value
        assert isinstance(outcome, Outcome)
        return outcome


@pytest.mark.parametrize(
    ("started", "spared", "status", "action"),
    [
        (True, 0, "dead", "bury"),
        (True, 1, "failed", "release"),
        (False, 0, "failed", "return"),
    ],
    ids=["at the last attempt", "after one that does not count", "before it began"],
)
def test_an_event_is_given_up_only_after_the_attempts_of_its_rule(
    started: bool, spared: int, status: str, action: str
) -> None:
    batch = Driven()
    batch.to(Enter)
    batch.to(Ask, False)
    (run,) = batch.to(Execute, [Verdict("run", TOKEN, ATTEMPTS, LEASE, spared=spared)]).runs
    if started:
        run.start()
    finish(run, error=ValueError("no"))
    if status == "dead":
        batch.to(Keep)
    (settled,) = batch.to(Settle).runs
    assert settlement(settled).action == action
    assert batch.end(["kept"]).status == status


def asked(ask: Ask) -> Sequence[bool]:
    return [claim.alone for claim in ask.claims]


def test_an_event_that_was_busy_while_alone_claims_again_without_the_mark_alone() -> None:
    """With the mark, a crash beside others would count as an attempt of the event."""
    batch = Driven()
    assert batch.to(Enter) == Enter(alone=False)
    assert asked(batch.to(Ask, False)) == [False]
    assert batch.to(Enter, [SUSPECT]) == Enter(alone=True)
    assert asked(batch.to(Ask, True)) == [True]
    for times in (0, 1):
        wait = batch.to(Wait, [Verdict("busy", wait=LEASE)])
        assert wait.times == times
        assert batch.to(Enter, True) == Enter(alone=False)
        assert asked(batch.to(Ask, False)) == [False]


def test_an_event_that_cannot_run_alone_is_retried_when_its_lease_has_ended() -> None:
    batch = Driven()
    batch.to(Enter)
    batch.to(Ask, False)
    batch.to(Enter, [SUSPECT])
    outcome = batch.end(None)
    assert (outcome.status, outcome.retry_at) == ("busy", NOW + LEASE)


@pytest.mark.parametrize("answer", ["fenced", "unknown"])
def test_an_event_whose_settlement_was_refused_is_retried_soon(answer: str) -> None:
    batch = Driven()
    batch.to(Enter)
    batch.to(Ask, False)
    (run,) = batch.to(Execute, [Verdict("run", TOKEN, 1, LEASE)]).runs
    run.start()
    finish(run)
    batch.to(Settle)
    outcome = batch.end([answer])
    assert (outcome.status, outcome.rule, outcome.retry_at) == ("fenced", "call", NOW + 1_000)


def test_an_empty_batch_ends_without_a_request() -> None:
    with pytest.raises(StopIteration) as stop:
        Batch([], "crm", lambda: NOW).steps().send(None)
    assert stop.value.value == []
