"""The law of settlements: which settlements are kept, and how they change the record."""

from __future__ import annotations

import msgspec
import pytest

from eventonce.types import Action, Claim
from tests.unit.one_key import DAY, LEASE, REMEMBER, SECOND, T0, A, B, Key, fact, state


@pytest.mark.parametrize("action", ["complete", "release", "return", "bury", "extend"])
@pytest.mark.parametrize("one", [fact(1), state(1, A, 1)])
def test_a_run_that_was_overtaken_settles_nothing(one: Claim, action: Action) -> None:
    key = Key()
    paused = key.claim(one, T0)
    two = msgspec.structs.replace(one, nonce=2)
    key.claim(two, T0 + paused.wait)
    before = key.record
    assert key.settle(action, one, paused, T0 + paused.wait + 1) == "fenced"
    assert key.record is before


@pytest.mark.parametrize("claim", [fact(), state(1, A)])
def test_a_late_completion_is_kept_if_no_other_run_has_begun(claim: Claim) -> None:
    key = Key()
    run = key.claim(claim, T0)
    assert key.settle("complete", claim, run, T0 + DAY) == "kept"
    assert key.claim(claim, T0 + DAY).kind == "duplicate"


@pytest.mark.parametrize("claim", [fact(), state(1, A)])
def test_a_late_completion_of_a_dead_key_is_kept(claim: Claim) -> None:
    """The effect is done: a redrive of the dead letter is then a duplicate."""
    key = Key()
    claim = msgspec.structs.replace(claim, alone=True)
    last = T0
    for _ in range(3):
        run = key.claim(claim, last)
        last += run.wait
    assert key.claim(claim, last).kind == "dead"
    assert key.settle("complete", claim, run, last + 1) == "kept"
    again = msgspec.structs.replace(claim, redrive=True)
    assert key.claim(again, last + 2).kind == "duplicate"


@pytest.mark.parametrize("action", ["complete", "release", "return", "bury", "extend"])
@pytest.mark.parametrize("claim", [fact(), state(1, A)])
def test_a_settlement_of_a_forgotten_record_is_unknown(claim: Claim, action: Action) -> None:
    key = Key()
    run = key.claim(claim, T0)
    assert key.settle(action, claim, run, T0 + REMEMBER) == "unknown"
    assert Key().settle(action, claim, run, T0) == "unknown"


@pytest.mark.parametrize("action", ["release", "return", "bury", "extend"])
@pytest.mark.parametrize("claim", [fact(), state(1, A)])
def test_a_completed_run_is_neither_released_returned_buried_nor_extended(
    claim: Claim, action: Action
) -> None:
    key = Key()
    run = key.done(claim, T0)
    assert key.settle(action, claim, run, T0 + 1) == "fenced"
    assert key.claim(claim, T0 + 2).kind == "duplicate"


def test_a_renewal_prolongs_the_lease() -> None:
    key = Key()
    run = key.claim(fact(), T0)
    assert key.settle("extend", fact(), run, T0 + 50 * SECOND) == "kept"
    assert key.claim(fact(2), T0 + 50 * SECOND + LEASE - 1).kind == "busy"
    assert key.claim(fact(2), T0 + 50 * SECOND + LEASE).kind == "run"


def test_a_renewal_never_shortens_the_lease() -> None:
    key = Key()
    run = key.claim(fact(), T0)
    assert key.settle("extend", fact(lease=SECOND), run, T0 + 1) == "kept"
    assert key.claim(fact(2), T0 + LEASE - 1).kind == "busy"


def test_a_renewal_after_the_end_of_the_lease_is_kept_if_no_other_run_has_begun() -> None:
    key = Key()
    run = key.claim(fact(), T0)
    assert key.settle("extend", fact(), run, T0 + 2 * LEASE) == "kept"
    assert key.claim(fact(2), T0 + 2 * LEASE).kind == "busy"


@pytest.mark.parametrize("action", ["release", "return", "bury"])
def test_a_renewal_after_a_settlement_is_fenced(action: Action) -> None:
    key = Key()
    run = key.claim(fact(), T0)
    assert key.settle(action, fact(), run, T0 + 1) == "kept"
    assert key.settle("extend", fact(), run, T0 + 2) == "fenced"
    assert key.claim(fact(2), T0 + 3).kind == ("dead" if action == "bury" else "run")


@pytest.mark.parametrize("action", ["release", "return", "bury"])
@pytest.mark.parametrize("claim", [fact(), state(1, A)])
def test_a_release_or_burial_repeated_because_its_reply_was_lost_is_kept(
    claim: Claim, action: Action
) -> None:
    key = Key()
    run = key.claim(claim, T0)
    assert key.settle(action, claim, run, T0 + 1) == "kept"
    before = key.record
    assert key.settle(action, claim, run, T0 + 2) == "kept"
    assert key.record == before


def test_a_release_after_a_burial_is_fenced() -> None:
    key = Key()
    run = key.claim(fact(), T0)
    key.settle("bury", fact(), run, T0 + 1)
    assert key.settle("release", fact(), run, T0 + 2) == "fenced"


def test_a_repeated_release_is_kept_though_a_tied_version_was_given_up() -> None:
    key = Key()
    key.settle("bury", state(2, A), key.claim(state(2, A), T0), T0)
    run = key.claim(state(2, B, 2), T0 + 1)
    assert key.settle("release", state(2, B, 2), run, T0 + 2) == "kept"
    assert key.settle("release", state(2, B, 2), run, T0 + 3) == "kept"


def test_a_burial_ends_the_lease_and_lets_only_a_redrive_run() -> None:
    key = Key()
    run = key.claim(fact(), T0)
    assert key.settle("bury", fact(), run, T0 + 1) == "kept"
    assert key.claim(fact(2), T0 + 2).kind == "dead"
    assert key.claim(fact(3, redrive=True), T0 + 3).kind == "run"
