"""The law of facts: which claim runs, which claim is a copy, how long, and how many attempts."""

from __future__ import annotations

import msgspec
import pytest

from eventonce.core.ledger import LONGEST_LEASE, judge
from eventonce.types import MAX_ORDER, Claim, Verdict
from tests.unit.one_key import DAY, LEASE, REMEMBER, SECOND, T0, A, B, C, Key, fact, state


def test_a_fact_runs_and_its_copies_are_duplicates_with_any_transport_id() -> None:
    key = Key()
    key.done(fact(), T0)
    redelivered = key.claim(fact(2), T0 + 1)
    assert (redelivered.kind, redelivered.same_id) == ("duplicate", True)
    published_again = key.claim(fact(3, by=b"id-2"), T0 + 1)
    assert (published_again.kind, published_again.same_id) == ("duplicate", False)


def test_a_duplicate_replays_the_result() -> None:
    key = Key()
    key.done(fact(), T0, b'{"ticket": 7}')
    assert key.claim(fact(2), T0 + 1).result == b'{"ticket": 7}'


def test_verified_content_that_differs_is_a_conflict() -> None:
    key = Key()
    key.done(fact(digest=A), T0)
    assert key.claim(fact(2, digest=A), T0 + 1).kind == "duplicate"
    assert key.claim(fact(3, digest=B), T0 + 1) == Verdict("conflict", same_id=True)
    other = fact(4, digest=B, by=b"id-2")
    assert key.claim(other, T0 + 1) == Verdict("conflict", same_id=False)
    assert key.claim(fact(5, digest=b""), T0 + 1).kind == "duplicate"


def test_content_is_not_verified_against_a_completion_without_recorded_content() -> None:
    key = Key()
    key.done(fact(), T0)
    assert key.claim(fact(2, digest=B), T0 + 1).kind == "duplicate"


def test_a_fixed_window_ends_to_the_millisecond_however_many_copies_come() -> None:
    key = Key()
    key.done(fact(remember=500), T0)
    for after in (1, 250, 499):
        assert key.claim(fact(2, remember=500), T0 + after).kind == "duplicate"
    assert key.claim(fact(3, remember=500), T0 + 500).kind == "run"


def test_a_sliding_window_starts_again_with_every_copy() -> None:
    key = Key()
    short = {"remember": 500, "sliding": True}
    key.done(fact(1, **short), T0)
    for after in (499, 998, 1_497):
        assert key.claim(fact(2, **short), T0 + after).kind == "duplicate"
    assert key.claim(fact(3, **short), T0 + 1_997).kind == "run"


def test_a_sliding_window_is_never_shortened() -> None:
    key = Key()
    key.done(fact(remember=REMEMBER), T0)
    assert key.claim(fact(2, remember=500, sliding=True), T0 + 1).kind == "duplicate"
    assert key.claim(fact(3), T0 + REMEMBER - 1).kind == "duplicate"


def test_the_window_starts_with_the_completion_not_with_the_claim() -> None:
    key = Key()
    claim = fact(remember=500)
    run = key.claim(claim, T0)
    assert key.settle("complete", claim, run, T0 + 30 * SECOND) == "kept"
    assert key.claim(fact(2, remember=500), T0 + 30 * SECOND + 499).kind == "duplicate"


def test_attempts_are_counted_for_a_day_even_if_little_is_remembered() -> None:
    key = Key()
    claim = fact(remember=500)
    now = key.used_up(claim, T0)
    assert key.claim(claim, now).kind == "dead"
    assert key.claim(claim, now + DAY - 1).kind == "dead"
    afresh = key.claim(claim, now + DAY)
    assert (afresh.kind, afresh.attempt) == ("run", 1)


def test_an_attempt_is_forgotten_after_a_day_and_not_before() -> None:
    for later, attempt in ((DAY - 1, 2), (DAY, 1)):
        key = Key()
        key.claim(fact(remember=500), T0)
        assert key.claim(fact(2, remember=500), T0 + later).attempt == attempt


def test_a_run_that_crashed_is_tried_again_alone_and_a_lease_ends_to_the_millisecond() -> None:
    key = Key()
    first = key.claim(fact(), T0)
    assert (first.attempt, first.wait, first.alone) == (1, LEASE, False)
    busy = key.claim(fact(2), T0 + LEASE - 1)
    assert (busy.kind, busy.wait) == ("busy", 1)
    second = key.claim(fact(3), T0 + LEASE)
    assert (second.kind, second.attempt, second.alone) == ("run", 2, True)


@pytest.mark.parametrize("claim", [fact(attempts=2), state(1, A, attempts=2)])
def test_a_crash_counts_only_for_a_run_that_was_alone_in_its_process(claim: Claim) -> None:
    """
    beside others ──✗ ──✗ ──✗      alone ──✗ ──✗      asked: dead
                    none counts             both count
    """
    key = Key()
    now = T0
    for shared in range(3):
        run = key.claim(claim, now)
        assert (run.kind, run.spared) == ("run", shared)
        now += run.wait
    alone = msgspec.structs.replace(claim, alone=True)
    for attempt in (4, 5):
        run = key.claim(alone, now)
        assert (run.kind, run.attempt, run.spared, run.alone) == ("run", attempt, 3, True)
        now += run.wait
    assert key.claim(alone, now).kind == "dead"


@pytest.mark.parametrize("redrive", [False, True])
def test_a_run_that_crashed_alone_is_tried_again_alone(redrive: bool) -> None:
    key = Key()
    crashed = key.claim(fact(alone=True), T0)
    again = key.claim(fact(2, redrive=redrive), T0 + crashed.wait)
    assert (again.kind, again.spared, again.alone) == ("run", 0, True)


def test_a_run_becomes_alone_when_its_own_claim_says_so() -> None:
    key = Key()
    crashed = key.claim(fact(attempts=1), T0)
    now = T0 + crashed.wait
    asked = fact(2, attempts=1)
    run = key.claim(asked, now)
    again = key.claim(msgspec.structs.replace(asked, alone=True), now + 1)
    assert (again.kind, again.token, again.spared) == ("run", run.token, 1)
    assert key.claim(fact(3, attempts=1), now + LEASE).kind == "dead"


def test_a_version_need_not_run_alone_after_another_version_ended_its_process() -> None:
    key = Key()
    crashed = key.claim(state(1, A), T0)
    newer = key.claim(state(2, B, 2), T0 + crashed.wait)
    assert (newer.kind, newer.alone, newer.spared) == ("run", False, 0)


@pytest.mark.parametrize("claim", [fact(attempts=1), state(1, A, attempts=1)])
def test_an_attempt_that_is_returned_does_not_count_towards_giving_up(claim: Claim) -> None:
    key = Key()
    for attempt in (1, 2, 3):
        run = key.claim(claim, T0)
        assert (run.kind, run.attempt, run.spared, run.alone) == (
            "run",
            attempt,
            attempt - 1,
            False,
        )
        assert key.settle("return", claim, run, T0) == "kept"
    run = key.claim(claim, T0)
    assert key.settle("release", claim, run, T0) == "kept"
    assert key.claim(claim, T0).kind == "dead"


def test_a_claim_shortens_a_lease_from_a_clock_that_was_ahead() -> None:
    """
    clock days ahead ──granted ──✗ crash      clock set right ──asked: busy ──── asked: runs
    """
    for lease in (LEASE, 2 * LONGEST_LEASE):
        limit = max(lease, LONGEST_LEASE)
        for claim in (fact(lease=lease), state(1, A, lease=lease)):
            key = Key()
            key.claim(claim, T0 + DAY)
            other = msgspec.structs.replace(claim, nonce=2)
            assert (key.claim(other, T0).kind, key.claim(other, T0).wait) == ("busy", limit)
            assert key.claim(other, T0 + limit - 1).kind == "busy"
            assert key.claim(other, T0 + limit).kind == "run"


def test_a_repeated_claim_shortens_a_lease_from_a_clock_that_was_ahead() -> None:
    key = Key()
    run = key.claim(fact(), T0 + DAY)
    again = key.claim(fact(), T0)
    assert (again.kind, again.token, again.wait) == ("run", run.token, LONGEST_LEASE)


def test_a_renewal_shortens_a_lease_from_a_clock_that_was_ahead() -> None:
    key = Key()
    run = key.claim(fact(), T0 + DAY)
    assert key.settle("extend", fact(), run, T0) == "kept"
    assert key.claim(fact(2), T0).wait == LONGEST_LEASE


def test_a_released_fact_runs_again_at_once_and_counts_on() -> None:
    key = Key()
    run = key.claim(fact(), T0)
    assert key.settle("release", fact(), run, T0 + 1) == "kept"
    again = key.claim(fact(2), T0 + 1)
    assert (again.kind, again.attempt) == ("run", 2)


@pytest.mark.parametrize("alone", [False, True])
def test_a_claim_on_a_leased_fact_does_not_change_its_record(alone: bool) -> None:
    key = Key()
    key.claim(fact(alone=alone), T0)
    for claim, kind in ((fact(1), "run"), (fact(2), "busy"), (fact(3, alone=True), "busy")):
        verdict, written = judge(key.record, claim, T0 + 1)
        assert (verdict.kind, written) == (kind, None)


def test_a_fact_is_no_longer_dead_after_a_redrive_with_other_content() -> None:
    key = Key()
    bad, other = fact(digest=b"A"), fact(2, digest=b"B", redrive=True)
    key.settle("bury", bad, key.claim(bad, T0), T0)
    key.settle("release", other, key.claim(other, T0 + 1), T0 + 1)
    assert key.claim(bad, T0 + 2).kind == "run"


def test_a_peek_gives_the_same_verdict_and_writes_nothing() -> None:
    key = Key()
    peek = fact(peek=True)
    assert key.claim(peek, T0) == Verdict("run")
    assert key.record is None
    key.done(fact(2, remember=500), T0)
    before = key.record
    verdict = key.claim(fact(3, remember=500, sliding=True, peek=True), T0 + 1)
    assert verdict.kind == "duplicate"
    assert key.record is before


def test_a_token_is_at_least_the_clock_in_microseconds() -> None:
    assert Key().claim(fact(), T0).token == T0 * 1000


def test_a_token_rises_even_if_the_clock_goes_back() -> None:
    for one, two in ((fact(1), fact(2)), (state(1, A), state(2, B, 2))):
        key = Key()
        run = key.claim(one, T0)
        key.settle("release", one, run, T0 - 5 * SECOND)
        assert key.claim(two, T0 - 5 * SECOND).token == run.token + 1


def test_a_token_is_exact_as_a_double() -> None:
    year_2200 = 7_258_118_400_000
    token = Key().claim(fact(), year_2200).token
    assert token <= MAX_ORDER
    assert int(float(token)) == token


@pytest.mark.parametrize("claim", [fact(), state(2, B)])
def test_a_redrive_of_a_dead_key_runs_and_starts_at_attempt_1(claim: Claim) -> None:
    key = Key()
    now = key.used_up(claim, T0)
    assert key.claim(claim, now).kind == "dead"
    again = msgspec.structs.replace(claim, nonce=9, redrive=True)
    run = key.claim(again, now)
    assert (run.kind, run.attempt) == ("run", 1)
    assert key.claim(claim, now).kind == "busy"
    assert key.settle("complete", again, run, now + 1) == "kept"
    assert key.claim(claim, now + 2).kind == "duplicate"


def test_a_redrive_of_a_duplicate_conflicting_stale_or_busy_event_does_not_run() -> None:
    key = Key()
    key.done(fact(digest=A), T0)
    assert key.claim(fact(2, digest=A, redrive=True), T0 + 1).kind == "duplicate"
    assert key.claim(fact(2, digest=B, redrive=True), T0 + 1).kind == "conflict"
    key = Key()
    key.done(state(2, B), T0)
    assert key.claim(state(1, A, 2, redrive=True), T0 + 1).kind == "stale"
    assert key.claim(state(2, B, 2, redrive=True), T0 + 1).kind == "duplicate"
    key.claim(state(3, C, 3), T0 + 1)
    assert key.claim(state(3, C, 4, redrive=True), T0 + 2).kind == "busy"


def test_a_redrive_does_not_apply_an_older_state_over_a_newer_state_that_was_tried() -> None:
    key = Key()
    now = T0 + key.claim(state(2, B), T0).wait
    assert key.claim(state(1, A, 2, redrive=True), now).kind == "busy"
    assert key.claim(state(1, A, 2, redrive=True), now + 3 * LEASE).kind == "dead"


def test_a_redriven_version_that_crashes_is_counted_again_not_dead_at_once() -> None:
    key = Key()
    now = key.used_up(state(2, B), T0)
    key.claim(state(2, B), now)
    crashed = key.claim(state(2, B, 5, redrive=True), now)
    again = key.claim(state(2, B, 6), now + crashed.wait)
    assert (again.kind, again.attempt) == ("run", 2)
