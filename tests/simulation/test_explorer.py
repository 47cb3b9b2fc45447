"""The law keeps its promises in every state a small world can reach, and a broken law does not."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import NamedTuple

import pytest
from msgspec.structs import replace

from eventonce.core import ledger
from eventonce.core.ledger import Judged, Record, Settled
from eventonce.types import Action, Claim, Settlement, Verdict
from tests.contract.bent import JUDGES, SETTLES, Settle
from tests.simulation.explorer import explore
from tests.simulation.scenarios import SCENARIOS
from tests.simulation.world import Law
from tests.unit import test_ledger


class Hole(NamedTuple):
    """A law that is bent, the world in which that shows, and the promise it breaks."""

    law: str
    scenario: str
    broken: str


HOLES = (
    Hole(
        "ignores dirty",
        "a state that comes back",
        "the sink does not hold the newest state",
    ),
    Hole(
        "counts tokens from one",
        "a fact, and all that can go wrong",
        "a token returned",
    ),
    Hole(
        "ends a record with its memory, lease or no lease",
        "a lease longer than the memory",
        "a completion that nobody overtook is unknown",
    ),
    Hole(
        "forgets a run as soon as its rule would forget its completion",
        "a fact that is remembered for half a second",
        "a completion that nobody overtook is unknown",
    ),
    Hole(
        "forgets the nonce",
        "a fact, and all that can go wrong",
        "locked out by its own lost reply",
    ),
    Hole(
        "refuses a late completion",
        "a fact, and all that can go wrong",
        "a completion that nobody overtook is fenced",
    ),
    Hole(
        "applies an older version after a crash",
        "two versions",
        "the sink saw its subject go backwards",
    ),
    Hole(
        "lets an older version wait for ever",
        "two versions, one of which may never come back",
        "busy without end",
    ),
    Hole(
        "lets a version inherit attempts",
        "a poisoned version and its successor",
        "given up before its own attempts were used",
    ),
    Hole(
        "forgets a burial at once",
        "a fact that is given up and redriven",
        "what was given up ran afresh",
    ),
    Hole(
        "forgets what is dead",
        "a tie of which one is given up, hardly remembered",
        "what was given up ran afresh",
    ),
    Hole(
        "knows the last tie only",
        "a tie above an older version",
        "ran again",
    ),
    Hole(
        "takes a tie for a duplicate",
        "a tie above an older version",
        "acknowledged without effect",
    ),
    Hole(
        "takes arrival for the event's time",
        "the same state, too late by its own time",
        "too far apart by the events' own times",
    ),
    Hole(
        "compares with any version of a tie",
        "a state that one version of a tie had",
        "another state was applied last",
    ),
    Hole(
        "checks no token",
        "a fact, and all that can go wrong",
        "of an overtaken run was believed",
    ),
    Hole(
        "forgets a burial with the tie that completed",
        "a tie of which one is given up, hardly remembered",
        "what was given up ran afresh",
    ),
)


def _any_of_a_tie(record: Record | None, claim: Claim, now: int) -> Judged:
    if record is not None and claim.digest in record.digests:
        others = tuple(digest for digest in record.digests if digest != claim.digest)
        record = replace(record, digests=(*others, claim.digest))
    return ledger.judge(record, claim, now)


def _tie_is_a_duplicate(record: Record | None, claim: Claim, now: int) -> Judged:
    verdict, written = ledger.judge(record, claim, now)
    if verdict.kind == "run" and record is not None and record.done and claim.order == record.order:
        return Verdict("duplicate", order=record.order), None
    return verdict, written


def _ended(record: Record | None, now: int) -> Record | None:
    return record if record is None or now < record.expires else None


def _remembers(action: Action, memory: Callable[[Claim], int]) -> Settle:
    """A `settle` that remembers settlements with this action for the time of `memory`."""

    def settle(record: Record | None, settlement: Settlement, now: int) -> Settled:
        kept, written = ledger.settle(record, settlement, now)
        if written is not None and settlement.action == action:
            written = replace(written, expires=now + memory(settlement.claim))
        return kept, written

    return settle


LAWS = {
    **{name: Law(judge, ledger.settle) for name, judge in JUDGES.items()},
    **{name: Law(ledger.judge, settle) for name, settle in SETTLES.items()},
    "ends a record with its memory, lease or no lease": Law(
        lambda record, claim, now: ledger.judge(_ended(record, now), claim, now),
        lambda record, settlement, now: ledger.settle(_ended(record, now), settlement, now),
    ),
    "compares with any version of a tie": Law(_any_of_a_tie, ledger.settle),
    "takes a tie for a duplicate": Law(_tie_is_a_duplicate, ledger.settle),
    "forgets a burial with the tie that completed": Law(
        ledger.judge, _remembers("complete", lambda claim: claim.remember)
    ),
    "forgets a burial at once": Law(ledger.judge, _remembers("bury", lambda _: 1)),
}
"""The law, bent in one place each."""


@pytest.mark.parametrize("name", SCENARIOS)
def test_no_promise_is_broken_in_any_state_that_can_be_reached(name: str) -> None:
    began = time.process_time()
    found = explore(Law(ledger.judge, ledger.settle), SCENARIOS[name])
    seconds = time.process_time() - began
    # Shown by `pytest -rP`.
    sys.stdout.write(f"{name}: {found.states} states, {found.moves} moves, {seconds:.1f} s\n")
    assert not found.broken, "\n".join((found.broken, *found.story))


@pytest.mark.parametrize("hole", HOLES, ids=lambda hole: hole.law)
def test_the_explorer_finds_each_fault_that_is_planted_in_the_law(hole: Hole) -> None:
    found = explore(LAWS[hole.law], SCENARIOS[hole.scenario])
    sys.stdout.write("\n".join((*found.story, found.broken, "")))
    assert hole.broken in found.broken


def test_the_fault_that_breaks_no_promise_of_the_world_is_found_by_its_unit_test(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A transport id only makes the reason true or false: nothing runs or rests because of it."""
    judged = ledger.judge

    def judge(record: Record | None, claim: Claim, now: int) -> Judged:
        verdict, written = judged(record, claim, now)
        return replace(verdict, same_id=verdict.kind == "duplicate"), written

    monkeypatch.setattr(ledger, "judge", judge)
    with pytest.raises(AssertionError):
        test_ledger.test_two_events_without_a_transport_id_are_not_reported_to_have_the_same_id()
