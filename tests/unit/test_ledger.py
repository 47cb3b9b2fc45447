"""The holes that a first version of the law had, each with its timeline."""

from __future__ import annotations

import pytest

from eventonce.types import Action, Claim
from tests.unit.one_key import DAY, LEASE, REMEMBER, SECOND, T0, A, B, C, Key, fact, state


def test_a_state_is_not_unchanged_while_another_run_of_its_subject_is_unsettled() -> None:
    """
    A(1) ──done
            B(2) ──granted, slow ─────────────────── has its effect
                       A(3) arrives: the same as the last one *completed*, but B may be there
    """
    key = Key()
    a1, b2, a3 = (
        state(order, digest, order, at=T0 + order, unchanged_within=500)
        for order, digest in ((1, A), (2, B), (3, A))
    )
    key.done(a1, T0)
    slow = key.claim(b2, T0 + 1)
    assert key.claim(a3, T0 + 2).kind == "busy"
    assert key.claim(a3, T0 + 1 + slow.wait).kind == "run"


@pytest.mark.parametrize("action", ["release", "bury"])
def test_a_state_is_not_unchanged_after_another_version_failed(action: Action) -> None:
    """
    A(1) ──done
            B(2) ──half its effect, fails, is released or buried
                                                      A(3) must put it right
    """
    key = Key()
    key.done(state(1, A, unchanged_within=500), T0)
    b2 = state(2, B, 2, unchanged_within=500)
    assert key.settle(action, b2, key.claim(b2, T0 + 1), T0 + 2) == "kept"
    assert key.claim(state(3, A, 3, unchanged_within=500), T0 + 3).kind == "run"


def test_a_token_never_returns_after_its_record_expired() -> None:
    """
    one ──granted ─── paused ────────────────────────────────── releases
                              record expires
                                              two ──granted ─── still at work
    """
    key = Key()
    one, two, three = fact(1), fact(2), fact(3)
    paused = key.claim(one, T0)
    late = T0 + REMEMBER
    run = key.claim(two, late)
    assert run.token > paused.token
    assert key.settle("release", one, paused, late + 1) == "fenced"
    assert key.settle("complete", one, paused, late + 1) == "fenced"
    assert key.claim(three, late + 2).kind == "busy"


def test_a_lease_longer_than_the_memory_keeps_the_record() -> None:
    """
    granted ──── remembered for 500 ms ───────── a day ──────── lease of two days
                                         copy: busy    copy: busy    completes: kept
                                                                     a millisecond later: unknown
    """
    key = Key()
    long = {"remember": 500, "lease": 2 * DAY}
    run = key.claim(fact(1, **long), T0)
    assert key.claim(fact(2, **long), T0 + 501).kind == "busy"
    assert key.claim(fact(2, **long), T0 + 2 * DAY - 1).kind == "busy"
    assert key.settle("complete", fact(1, **long), run, T0 + 2 * DAY) == "unknown"
    assert key.settle("complete", fact(1, **long), run, T0 + 2 * DAY - 1) == "kept"


def test_a_claim_repeated_because_its_reply_was_lost_gets_its_own_grant_again() -> None:
    """
    asks ──granted ──✂── no reply ──asks again with the same nonce: the same grant
                                             another asks: busy
    """
    key = Key()
    run = key.claim(fact(7), T0)
    again = key.claim(fact(7), T0 + 5 * SECOND)
    assert (again.kind, again.token, again.attempt) == ("run", run.token, run.attempt)
    assert key.claim(fact(8), T0 + 5 * SECOND).kind == "busy"
    assert key.settle("complete", fact(7), run, T0 + 6 * SECOND) == "kept"


def test_a_completion_repeated_because_its_reply_was_lost_is_kept() -> None:
    """
    completes ──kept ──✂── no reply ──completes again: kept
    """
    for claim in (fact(), state(1, A)):
        key = Key()
        run = key.claim(claim, T0)
        for again in range(3):
            assert key.settle("complete", claim, run, T0 + again, b"ok") == "kept"
        assert key.claim(claim, T0 + 3).result == b"ok"


def test_a_completion_repeated_after_an_unchanged_version_does_not_turn_the_order_back() -> None:
    """
    A(1) ──completes ──✂── no reply ────────────── completes again: kept
                             A(2): unchanged                        B(1)? stale
    """
    key = Key()
    a1 = state(1, A, unchanged_within=500)
    run = key.done(a1, T0)
    assert key.claim(state(2, A, 2, unchanged_within=500), T0 + 1).kind == "unchanged"
    assert key.settle("complete", a1, run, T0 + 2) == "kept"
    assert key.claim(state(1, B, 3), T0 + 3).kind == "stale"


def test_an_older_state_is_not_applied_after_a_crash_between_effect_and_settlement() -> None:
    """
    B(2) ──granted ──has its effect ──✗ crash
                                         lease ends   A(1) arrives: must not run
                                                                       B(2) comes again: runs
    """
    key = Key()
    crashed = key.claim(state(2, B), T0)
    waiting = key.claim(state(1, A, 2), T0 + crashed.wait)
    assert (waiting.kind, waiting.order) == ("busy", 2)
    assert key.claim(state(2, B, 3), T0 + crashed.wait).kind == "run"


def test_an_older_state_waits_a_bounded_time_for_a_newer_state_that_never_returned() -> None:
    """
    B(2) ──granted ──✗ crash, and its transport has lost it
              lease ends ─── A(1): busy ─── three leases later ─── A(1): a letter
    """
    key = Key()
    gone = T0 + key.claim(state(2, B), T0).wait
    waiting = key.claim(state(1, A, 2), gone)
    assert waiting.wait == 3 * LEASE
    patience = gone + waiting.wait
    assert key.claim(state(1, A, 3), patience - 1).kind == "busy"
    letter = key.claim(state(1, A, 4), patience)
    assert (letter.kind, letter.order) == ("dead", 2)
    assert key.claim(state(2, B, 5), patience).kind == "run"


def test_an_older_state_does_not_wait_for_a_newer_state_that_was_given_up() -> None:
    key = Key()
    poisoned = state(2, B)
    assert key.settle("bury", poisoned, key.claim(poisoned, T0), T0 + 1) == "kept"
    letter = key.claim(state(1, A, 2), T0 + 2)
    assert (letter.kind, letter.order) == ("dead", 2)


def test_a_new_version_does_not_inherit_the_attempts_of_a_poisoned_predecessor() -> None:
    """
    B(2) ──✗ ──✗ ──✗ attempts used up
                        C(3) arrives: runs, attempt 1        a tied C(2), B again as B(3)? likewise
    """
    for newcomer in (state(3, C, 9), state(2, C, 9), state(3, B, 9)):
        key = Key()
        now = key.used_up(state(2, B), T0)
        run = key.claim(newcomer, now)
        assert (run.kind, run.attempt) == ("run", 1)


@pytest.mark.parametrize("claim", [fact(), state(2, B)])
def test_redelivery_after_burial_does_not_run_afresh(claim: Claim) -> None:
    """
    ✗ ──✗ ──✗ attempts used up ──asked: dead ──redelivered, for as long as it is remembered: dead
    """
    key = Key()
    now = key.used_up(claim, T0)
    buried = key.claim(claim, now)
    assert (buried.kind, buried.attempt) == ("dead", 3)
    for later in (now, now + DAY, now + REMEMBER - 1):
        assert key.claim(claim, later).kind == "dead"


def test_two_versions_at_the_same_order_run_once_each() -> None:
    """
    A(1) ──done      A(1) again: duplicate      A(1) again: duplicate
             B(1) ──done         B(1) again: duplicate
    """
    key = Key()
    key.done(state(1, A), T0)
    assert key.claim(state(1, A, 2), T0 + 1).kind == "duplicate"
    key.done(state(1, B, 3), T0 + 2)
    assert key.claim(state(1, B, 4), T0 + 3).kind == "duplicate"
    assert key.claim(state(1, A, 5), T0 + 4).kind == "duplicate"


def test_two_events_without_a_transport_id_are_not_reported_to_have_the_same_id() -> None:
    """
    done, no id ──copy, no id or one: a duplicate, of an unknown kind
    done, an id ──copy, no id:        likewise
    """
    key = Key()
    key.done(fact(by=b""), T0)
    assert key.claim(fact(2, by=b""), T0 + 1).same_id is None
    assert key.claim(fact(3, by=b"id-1"), T0 + 1).same_id is None
    key = Key()
    key.done(fact(by=b"id-1"), T0)
    assert key.claim(fact(4, by=b""), T0 + 1).same_id is None


def test_unchanged_is_judged_by_the_events_own_times() -> None:
    """
    own times   A(1) 12:00:00.000    A(2) 12:00:00.300    A(3) 12:00:00.500
    arrival     a minute later       two days later       at the same moment as A(2)
                done                 unchanged            runs: 500 ms are not within 500 ms
    """
    key = Key()
    key.done(state(1, A, unchanged_within=500), T0 + 60 * SECOND)
    late = T0 + 2 * DAY
    soon, on_the_dot = (
        state(order, A, order, at=T0 + after, unchanged_within=500)
        for order, after in ((2, 300), (3, 500))
    )
    assert key.claim(soon, late).kind == "unchanged"
    assert key.claim(on_the_dot, late).kind == "run"
