"""The law keeps its promises in every state a small world can reach, and a broken law does not."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

from eventonce.core import ledger
from tests.mutants import MUTANTS
from tests.mutants.mutant import planted
from tests.simulation.explorer import explore
from tests.simulation.scenarios import SCENARIOS
from tests.simulation.world import Law
from tests.unit import one_key, test_ledger


class Hole(NamedTuple):
    """A fix taken out of the law, the world in which that shows, and the promise it breaks."""

    mutant: str
    scenario: str
    broken: str


HOLES = (
    Hole(
        "a state is unchanged while another run is unsettled",
        "a state that comes back",
        "the sink does not hold the newest state",
    ),
    Hole(
        "tokens are counted, and return after a record expired",
        "a fact, and all that can go wrong",
        "a token returned",
    ),
    Hole(
        "a record ends with its memory, though it is held",
        "a lease longer than the memory",
        "a completion that nobody overtook is unknown",
    ),
    Hole(
        "attempts are forgotten when little is remembered",
        "a fact that is remembered for half a second",
        "a completion that nobody overtook is unknown",
    ),
    Hole(
        "a worker is locked out by its own lost reply",
        "a fact, and all that can go wrong",
        "locked out by its own lost reply",
    ),
    Hole(
        "a completion is refused once the lease has ended",
        "a fact, and all that can go wrong",
        "a completion that nobody overtook is fenced",
    ),
    Hole(
        "an older version runs after a newer one crashed",
        "two versions",
        "the sink saw its subject go backwards",
    ),
    Hole(
        "an older version waits for ever",
        "two versions, one of which may never come back",
        "busy without end",
    ),
    Hole(
        "a new version inherits the attempts of a poisoned one",
        "a poisoned version and its successor",
        "given up before its own attempts were used",
    ),
    Hole(
        "a burial is forgotten at once",
        "a fact that is given up and redriven",
        "what was given up ran afresh",
    ),
    Hole(
        "a version that was given up runs afresh",
        "a tie of which one is given up, hardly remembered",
        "what was given up ran afresh",
    ),
    Hole(
        "of a tie only the last version is known",
        "a tie above an older version",
        "ran again",
    ),
    Hole(
        "a tie is a duplicate",
        "a tie above an older version",
        "acknowledged without effect",
    ),
    Hole(
        "unchanged is judged by arrival",
        "the same state, too late by its own time",
        "too far apart by the events' own times",
    ),
    Hole(
        "a state is unchanged if any version of a tie had it",
        "a state that one version of a tie had",
        "another state was applied last",
    ),
    Hole(
        "any token settles",
        "a fact, and all that can go wrong",
        "of an overtaken run was believed",
    ),
    Hole(
        "a completion shortens the memory of what was given up",
        "a tie of which one is given up, hardly remembered",
        "what was given up ran afresh",
    ),
)


def broken_law(name: str) -> ModuleType:
    """A law of its own, with this breakage in it."""
    (mutant,) = (mutant for mutant in MUTANTS if mutant.name == name)
    text = planted(mutant, Path(ledger.__file__).read_text(encoding="utf-8"))
    module = ModuleType("broken_law")
    exec(compile(text, mutant.file, "exec"), module.__dict__)
    return module


@pytest.mark.parametrize("name", SCENARIOS)
def test_no_promise_is_broken_in_any_state_that_can_be_reached(name: str) -> None:
    began = time.process_time()
    found = explore(Law(ledger.judge, ledger.settle), SCENARIOS[name])
    seconds = time.process_time() - began
    # Shown by `pytest -rP`.
    sys.stdout.write(f"{name}: {found.states} states, {found.moves} moves, {seconds:.1f} s\n")
    assert not found.broken, "\n".join((found.broken, *found.story))


@pytest.mark.parametrize("hole", HOLES, ids=lambda hole: hole.mutant)
def test_the_explorer_finds_each_hole_once_its_fix_is_taken_out(hole: Hole) -> None:
    law = broken_law(hole.mutant)
    found = explore(Law(law.judge, law.settle), SCENARIOS[hole.scenario])
    sys.stdout.write("\n".join((*found.story, found.broken, "")))
    assert hole.broken in found.broken


def test_the_one_hole_that_breaks_no_promise_of_the_world_is_found_by_its_own_test(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A transport id only makes the reason true or false: nothing runs or rests because of it."""
    law = broken_law("events without a transport id are taken for one another")
    monkeypatch.setattr(one_key, "ledger", law)
    with pytest.raises(AssertionError):
        test_ledger.test_two_events_without_a_transport_id_are_not_called_a_redelivery()
