"""The law of states: latest wins, ties run, and an unchanged state is not applied again."""

from __future__ import annotations

import msgspec
import pytest

from eventonce.types import Action
from tests.unit.one_key import REMEMBER, SECOND, T0, A, B, C, Key, fact, state


def test_an_older_version_is_stale_and_its_verdict_has_the_applied_order() -> None:
    key = Key()
    key.done(state(2, B), T0)
    stale = key.claim(state(1, A, 2), T0 + 1)
    assert (stale.kind, stale.order) == ("stale", 2)


def test_a_state_that_comes_back_runs_as_the_order_rises() -> None:
    key = Key()
    for order, digest in ((1, A), (2, B), (3, A)):
        key.done(state(order, digest, order), T0 + order)


def test_an_unchanged_version_advances_the_order() -> None:
    key = Key()
    key.done(state(1, A, unchanged_within=500), T0)
    unchanged = key.claim(state(3, A, 2, unchanged_within=500), T0 + 1)
    assert (unchanged.kind, unchanged.order) == ("unchanged", 1)
    assert key.claim(state(2, B, 3), T0 + 2).kind == "stale"
    assert key.claim(state(3, A, 4, unchanged_within=500), T0 + 3).kind == "duplicate"
    assert key.claim(state(3, B, 5), T0 + 4).kind == "run"


def test_an_unchanged_version_is_remembered_as_long_as_a_version_that_ran() -> None:
    key = Key()
    key.done(state(1, A, unchanged_within=500), T0)
    later = T0 + REMEMBER - 1
    assert key.claim(state(2, A, 2, unchanged_within=500), later).kind == "unchanged"
    assert key.claim(state(1, B, 3), later + REMEMBER - 1).kind == "stale"


def test_an_unchanged_version_does_not_shorten_the_memory() -> None:
    """The rule now remembers for less; the time promised before the rule changed still holds."""
    key = Key()
    key.done(state(1, A), T0)
    shorter = state(2, A, 2, unchanged_within=500, remember=500)
    assert key.claim(shorter, T0 + 1).kind == "unchanged"
    assert key.claim(state(1, B, 3), T0 + REMEMBER - 1).kind == "stale"


def test_an_unchanged_version_forgets_the_ties_of_the_order_before_it() -> None:
    """
    B(1) ──done      A(1) ──done      A(2) unchanged      B(2): has had no effect, and runs
    """
    key = Key()
    key.done(state(1, B), T0)
    key.done(state(1, A, 2), T0)
    assert key.claim(state(2, A, 3, unchanged_within=500), T0 + 1).kind == "unchanged"
    assert key.claim(state(2, A, 4), T0 + 2).kind == "duplicate"
    assert key.claim(state(2, B, 5), T0 + 2).kind == "run"


def test_a_copy_of_an_unchanged_version_is_known_by_its_own_transport_id() -> None:
    key = Key()
    key.done(state(1, A, unchanged_within=500), T0)
    key.claim(state(2, A, 2, unchanged_within=500, by=b"id-2"), T0 + 1)
    assert key.claim(state(2, A, 3, by=b"id-2"), T0 + 2).same_id is True


def test_consecutive_unchanged_versions_do_not_extend_the_time_of_unchanged_within() -> None:
    key = Key()
    key.done(state(1, A, unchanged_within=500), T0)
    chain = [
        state(order, A, order, at=T0 + 300 * (order - 1), unchanged_within=500) for order in (2, 3)
    ]
    assert [key.claim(claim, T0 + 1).kind for claim in chain] == ["unchanged", "run"]


def test_a_version_with_an_earlier_time_than_the_applied_version_is_not_unchanged() -> None:
    key = Key()
    key.done(state(1, A, unchanged_within=500), T0)
    assert key.claim(state(2, A, 2, at=T0 - 1, unchanged_within=500), T0).kind == "run"


def test_without_unchanged_within_the_same_state_at_a_newer_order_runs() -> None:
    key = Key()
    key.done(state(1, A), T0)
    assert key.claim(state(2, A, 2), T0 + 1).kind == "run"


def test_unchanged_compares_with_the_version_applied_last_of_a_tie() -> None:
    for digest, kind in ((A, "run"), (B, "unchanged")):
        key = Key()
        key.done(state(1, A), T0)
        key.done(state(1, B, 2), T0)
        assert key.claim(state(2, digest, 3, unchanged_within=500), T0 + 1).kind == kind


def test_a_duplicate_at_a_tie_is_not_answered_with_another_versions_result() -> None:
    key = Key()
    key.done(state(1, A), T0, b"of A")
    key.done(state(1, B, 2, by=b"id-2"), T0 + 1, b"of B")
    other = key.claim(state(1, A, 3), T0 + 2)
    assert (other.kind, other.result, other.same_id) == ("duplicate", None, None)
    latest = key.claim(state(1, B, 4, by=b"id-2"), T0 + 2)
    assert (latest.kind, latest.result, latest.same_id) == ("duplicate", b"of B", True)
    assert (latest.order, other.order) == (1, 1)


@pytest.mark.parametrize(("action", "kind"), [("complete", "duplicate"), ("bury", "dead")])
def test_the_latest_sixteen_versions_of_one_order_are_known(action: Action, kind: str) -> None:
    key = Key()
    versions = [state(1, b"%d" % number, number + 1) for number in range(17)]
    for version in versions:
        assert key.settle(action, version, key.claim(version, T0), T0) == "kept"
    assert [key.claim(version, T0 + 1).kind for version in versions[1:]] == [kind] * 16
    assert key.claim(versions[0], T0 + 1).kind == "run"


def test_the_list_of_tied_versions_is_emptied_when_the_order_rises() -> None:
    key = Key()
    key.done(state(1, A), T0)
    key.done(state(1, B, 2), T0)
    key.done(state(2, C, 3), T0)
    assert key.record is not None
    assert key.record.digests == (C,)


def test_a_version_given_up_at_a_tied_order_stays_dead_while_the_other_version_runs() -> None:
    key = Key()
    bad, good = state(2, A), state(2, B, 2)
    key.settle("bury", bad, key.claim(bad, T0), T0)
    run = key.claim(good, T0 + 1)
    assert key.claim(bad, T0 + 2).kind == "dead"
    assert key.settle("complete", good, run, T0 + 3) == "kept"
    assert key.claim(bad, T0 + 4).kind == "dead"
    assert key.claim(good, T0 + 4).kind == "duplicate"


def test_a_completion_does_not_shorten_the_memory_of_a_tied_version_that_was_given_up() -> None:
    """
    A(2) ──given up, for a day
              B(2) ──done, remembered for 500 ms ──── A(2) redelivered: still dead
    """
    key = Key()
    bad, good = (state(2, digest, remember=500) for digest in (A, B))
    key.settle("bury", bad, key.claim(bad, T0), T0)
    key.done(good, T0 + 1)
    assert key.claim(bad, T0 + SECOND).kind == "dead"


def test_a_state_given_up_at_one_order_runs_at_a_newer_order() -> None:
    key = Key()
    bad = state(2, A)
    key.settle("bury", bad, key.claim(bad, T0), T0)
    newer = state(3, B, 2)
    key.settle("release", newer, key.claim(newer, T0 + 1), T0 + 1)
    assert key.claim(state(3, A, 3), T0 + 2).kind == "run"


def test_a_version_that_was_given_up_is_stale_after_a_newer_version_is_applied() -> None:
    key = Key()
    bad = state(2, A)
    key.settle("bury", bad, key.claim(bad, T0), T0)
    key.done(state(3, B, 2), T0 + 1)
    assert key.claim(bad, T0 + 2).kind == "stale"
    assert key.claim(msgspec.structs.replace(bad, redrive=True), T0 + 2).kind == "stale"


def test_a_version_that_failed_counts_its_own_attempts() -> None:
    key = Key()
    now = key.used_up(state(2, B, attempts=2), T0)
    assert key.claim(state(2, B, attempts=2), now).kind == "dead"


def test_a_completed_version_leaves_no_attempts_to_the_next_tie() -> None:
    key = Key()
    first = key.claim(state(1, A), T0)
    later = T0 + first.wait
    second = key.claim(state(1, A, 2), later)
    assert second.attempt == 2
    key.settle("complete", state(1, A, 2), second, later)
    assert key.claim(state(1, b"", 3), later).attempt == 1


def test_a_stale_copy_starts_a_sliding_window_again() -> None:
    key = Key()
    short = {"remember": 500, "sliding": True}
    key.done(state(2, B, **short), T0)
    assert key.claim(state(1, A, 2, **short), T0 + 400).kind == "stale"
    assert key.claim(state(1, A, 3, **short), T0 + 899).kind == "stale"
    assert key.claim(state(1, A, 4, **short), T0 + 1_399).kind == "run"


def test_a_stale_copy_does_not_move_a_fixed_window() -> None:
    key = Key()
    key.done(state(2, B, remember=500), T0)
    assert key.claim(state(1, A, 2, remember=500), T0 + 400).kind == "stale"
    assert key.claim(state(1, A, 3, remember=500), T0 + 500).kind == "run"


def test_a_duplicate_of_the_applied_version_is_known_while_a_newer_version_runs() -> None:
    key = Key()
    key.done(state(1, A), T0)
    key.claim(state(2, B, 2), T0 + 1)
    assert key.claim(state(1, A, 3), T0 + 2).kind == "duplicate"


def test_an_older_version_is_stale_at_once_while_a_newer_version_runs() -> None:
    key = Key()
    key.done(state(2, A), T0)
    key.claim(state(3, B, 2), T0 + 1)
    stale = key.claim(state(1, C, 3), T0 + 2)
    assert (stale.kind, stale.order) == ("stale", 2)


def test_an_expired_record_does_not_make_an_older_version_stale() -> None:
    key = Key()
    key.done(state(5, B), T0)
    run = key.claim(state(1, A, 2), T0 + REMEMBER)
    assert (run.kind, run.attempt) == ("run", 1)
    assert key.record is not None
    assert (key.record.order, key.record.digests, key.record.tried) == (None, (), 1)


def test_the_record_of_a_fact_does_not_prevent_the_run_of_a_state() -> None:
    key = Key()
    before = fact()
    key.settle("release", before, key.claim(before, T0), T0)
    assert key.claim(state(1, A, 2, unchanged_within=500), T0 + 1).kind == "run"
