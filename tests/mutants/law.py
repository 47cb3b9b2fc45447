"""Breakages of the law: at least one for each of its lines that matters."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

LEDGER = "src/eventonce/core/ledger.py"
HOLES = "tests/unit/test_ledger.py::test_"
FACTS = "tests/unit/test_ledger_facts.py::test_"
SETTLE = "tests/unit/test_ledger_settle.py::test_"
STATES = "tests/unit/test_ledger_states.py::test_"
CONTRACT = "tests/contract/test_stores.py::TestMemory::test_case["
HELD = "    if now < record.held_until:\n        return _held(record, claim, now)\n"


def _law(name: str, old: str, new: str, *red: str) -> Mutant:
    return Mutant(name, LEDGER, old, new, red)


LAW = (
    # What lives, and for how long.
    _law(
        "a record ends with its memory, though it is held",
        "return now < record.expires or now < record.held_until",
        "return now < record.expires",
        HOLES + "a_lease_longer_than_the_memory_keeps_the_record",
    ),
    _law(
        "an expired record is still judged by",
        "if record is None or not lives(record, now):\n        answer",
        "if record is None:\n        answer",
        STATES + "an_expired_record_holds_nothing_back",
    ),
    _law(
        "an expired record is still settled",
        'if record is None or not lives(record, now):\n        return "unknown"',
        'if record is None:\n        return "unknown"',
        SETTLE + "a_settlement_of_what_is_forgotten_is_unknown",
    ),
    _law(
        "attempts are counted for an hour",
        "UNSETTLED: Final = 86_400_000",
        "UNSETTLED: Final = 3_600_000",
        FACTS + "attempts_are_counted_for_a_day_even_if_little_is_remembered",
    ),
    _law(
        "attempts are forgotten when little is remembered",
        "expires = max(record.expires, now + max(claim.remember, UNSETTLED))\n    order",
        "expires = max(record.expires, now + claim.remember)\n    order",
        FACTS + "an_attempt_of_a_day_ago_is_forgotten_and_one_of_less_is_not",
    ),
    _law(
        "a fixed window slides",
        "if not claim.sliding or record.expires",
        "if record.expires",
        FACTS + "a_fixed_window_ends_to_the_millisecond_however_many_copies_come",
        STATES + "a_stale_copy_does_not_move_a_fixed_window",
    ),
    _law(
        "a sliding window stands still",
        "if not claim.sliding or record.expires >= now + claim.remember:",
        "if now:",
        FACTS + "a_sliding_window_starts_again_with_every_copy",
    ),
    _law(
        "a sliding window is shortened",
        "if not claim.sliding or record.expires >= now + claim.remember:",
        "if not claim.sliding:",
        FACTS + "a_sliding_window_is_never_shortened",
    ),
    _law(
        "a peek writes",
        'return (Verdict("run") if verdict.kind == "run" else verdict), None',
        'return (Verdict("run") if verdict.kind == "run" else verdict), answer[1]',
        FACTS + "a_peek_says_the_same_and_writes_nothing",
    ),
    # Facts.
    _law(
        "a fact that is done runs again",
        "    if record.done:\n        if claim.digest",
        "    if record.done and record.digests:\n        if claim.digest",
        FACTS + "a_fact_runs_and_its_copies_are_duplicates_whatever_their_transport_id",
    ),
    _law(
        "contents that differ are not noticed",
        "if claim.digest and record.digests and claim.digest not in record.digests:",
        "if claim.digest and record.digests and not record.done:",
        FACTS + "verified_content_that_differs_is_a_conflict",
    ),
    _law(
        "contents are compared with none",
        "if claim.digest and record.digests and claim.digest not in record.digests:",
        "if claim.digest not in record.digests:",
        FACTS + "content_is_not_verified_against_a_completion_that_recorded_none",
        FACTS + "verified_content_that_differs_is_a_conflict",
    ),
    _law(
        "a fact that was buried runs afresh",
        "if record.dead and not claim.redrive:",
        "if record.dead and record.done:",
        SETTLE + "burying_frees_the_lease_and_bars_all_but_a_redrive",
    ),
    _law(
        "a burial is forgotten at once",
        "expires=max(record.expires, now + max(claim.remember, UNSETTLED)),\n        dead=",
        "expires=now,\n        dead=",
        HOLES + "redelivery_after_burial_does_not_run_afresh",
    ),
    _law(
        "a burial is not written down",
        "dead=(*record.dead, claim.digest)[-KEPT_DIGESTS:],",
        "dead=record.dead,",
        SETTLE + "burying_frees_the_lease_and_bars_all_but_a_redrive",
    ),
    _law(
        "a burial leaves the lease behind",
        "held_until=min(record.held_until, now),\n        expires",
        "held_until=record.held_until,\n        expires",
        SETTLE + "burying_frees_the_lease_and_bars_all_but_a_redrive",
    ),
    _law(
        "a redrive does not pass a fact that is dead",
        "if record.dead and not claim.redrive:",
        "if record.dead:",
        FACTS + "a_redrive_passes_what_is_dead_and_starts_at_attempt_one",
    ),
    _law(
        "a redrive is given up for the attempts of before",
        "    if claim.redrive:\n        return _grant(record, claim, now, 1, crashed=crashed)\n",
        "",
        FACTS + "a_redrive_passes_what_is_dead_and_starts_at_attempt_one",
    ),
    _law(
        "a redrive counts on",
        "return _grant(record, claim, now, 1, crashed=crashed)",
        "return _grant(record, claim, now, record.attempt + 1, crashed=crashed)",
        FACTS + "a_redrive_passes_what_is_dead_and_starts_at_attempt_one",
    ),
    _law(
        "a fact is never given up",
        "    if record.attempt - spared >= claim.attempts:",
        "    if record.done:",
        HOLES + "redelivery_after_burial_does_not_run_afresh",
    ),
    _law(
        "a fact is given up one attempt late",
        "    if record.attempt - spared >= claim.attempts:",
        "    if record.attempt - spared > claim.attempts:",
        HOLES + "redelivery_after_burial_does_not_run_afresh",
    ),
    _law(
        "a fact that is held runs beside its run",
        HELD + "    return _next_attempt",
        "    return _next_attempt",
        FACTS + "a_run_that_crashed_is_tried_again_alone_and_a_lease_ends_to_the_millisecond",
    ),
    _law(
        "a lease ends a millisecond late",
        HELD + "    return _next_attempt",
        HELD.replace("<", "<=") + "    return _next_attempt",
        FACTS + "a_run_that_crashed_is_tried_again_alone_and_a_lease_ends_to_the_millisecond",
    ),
    # Whose doing it was.
    _law(
        "a crash counts although others ran in the process",
        "spared = record.spared + (crashed and not record.alone)",
        "spared = record.spared",
        FACTS + "a_crash_counts_only_for_a_run_that_was_alone_in_its_process",
    ),
    _law(
        "no crash ever counts",
        "spared = record.spared + (crashed and not record.alone)",
        "spared = record.spared + crashed",
        FACTS + "a_crash_counts_only_for_a_run_that_was_alone_in_its_process",
    ),
    _law(
        "a run that crashed is tried again beside others",
        "crashed = record.nonce != 0",
        "crashed = False",
        FACTS + "a_run_that_crashed_is_tried_again_alone_and_a_lease_ends_to_the_millisecond",
    ),
    _law(
        "a run that becomes alone is not known to be",
        "alone = record.alone or (own and claim.alone)",
        "alone = record.alone",
        FACTS + "a_run_becomes_alone_when_its_own_claim_says_so",
    ),
    _law(
        "an attempt that is returned counts",
        'spared=record.spared + (settlement.action == "return"),',
        "spared=record.spared,",
        FACTS + "an_attempt_that_is_returned_does_not_count_towards_giving_up",
    ),
    _law(
        "an attempt that failed does not count",
        'spared=record.spared + (settlement.action == "return"),',
        "spared=record.spared + 1,",
        FACTS + "an_attempt_that_is_returned_does_not_count_towards_giving_up",
    ),
    _law(
        "a lease from a clock that was ahead holds as long as that clock says",
        "held_until = _cut_down(record.held_until, claim, now)",
        "held_until = record.held_until",
        FACTS + "a_lease_from_a_clock_that_was_ahead_is_cut_down_to_a_leases_length",
    ),
    _law(
        "a lease from a clock that was ahead is cut down anew by every ask",
        "    if (held_until, alone) == (record.held_until, record.alone):",
        "    if alone == record.alone:",
        FACTS + "a_lease_from_a_clock_that_was_ahead_is_cut_down_to_a_leases_length",
    ),
    _law(
        "a renewal keeps the end that a clock ahead had given",
        "renewed = max(now + claim.lease, _cut_down(record.held_until, claim, now))",
        "renewed = max(now + claim.lease, record.held_until)",
        FACTS + "a_renewal_cuts_down_a_lease_from_a_clock_that_was_ahead",
    ),
    # Leases and tokens.
    _law(
        "a worker is locked out by its own lost reply",
        "own = record.nonce == claim.nonce",
        "own = False",
        HOLES + "a_claim_repeated_because_its_reply_was_lost_gets_its_own_grant_again",
    ),
    _law(
        "everybody gets the grant of the one who holds it",
        "own = record.nonce == claim.nonce",
        "own = True",
        HOLES + "a_claim_repeated_because_its_reply_was_lost_gets_its_own_grant_again",
    ),
    _law(
        "events without a transport id are taken for one another",
        "return record.by == claim.by if record.by and claim.by else None",
        "return record.by == claim.by",
        HOLES + "two_events_without_a_transport_id_are_not_called_a_redelivery",
    ),
    _law(
        "tokens are counted, and return after a record expired",
        "token = max(record.token + 1, now * 1000)",
        "token = record.token + 1",
        HOLES + "a_token_never_returns_after_its_record_expired",
        FACTS + "a_token_is_at_least_the_clock_in_microseconds",
    ),
    _law(
        "tokens follow the clock, and go back with it",
        "token = max(record.token + 1, now * 1000)",
        "token = now * 1000",
        FACTS + "a_token_rises_even_if_the_clock_goes_back",
    ),
    # States.
    _law(
        "a tie is stale",
        "if order < record.order:",
        "if order <= record.order:",
        HOLES + "two_versions_at_the_same_order_run_once_each",
    ),
    _law(
        "an older version is not stale",
        "if order < record.order:",
        "if order + 1 < record.order:",
        STATES + "an_older_version_is_stale_and_is_told_which_one_won",
    ),
    _law(
        "a tie is a duplicate",
        "if order == record.order and claim.digest in record.digests:",
        "if order == record.order:",
        HOLES + "two_versions_at_the_same_order_run_once_each",
    ),
    _law(
        "of a tie only the last version is known",
        "digests=(*record.digests, claim.digest)[-KEPT_DIGESTS:] if tie else (claim.digest,),",
        "digests=(claim.digest,),",
        HOLES + "two_versions_at_the_same_order_run_once_each",
    ),
    _law(
        "the versions of older orders are kept",
        "digests=(*record.digests, claim.digest)[-KEPT_DIGESTS:] if tie else (claim.digest,),",
        "digests=(*record.digests, claim.digest)[-KEPT_DIGESTS:],",
        STATES + "the_versions_of_one_order_are_emptied_when_it_rises",
    ),
    _law(
        "a record grows with every tie",
        "digests=(*record.digests, claim.digest)[-KEPT_DIGESTS:] if",
        "digests=(*record.digests, claim.digest) if",
        STATES + "the_latest_sixteen_versions_of_one_order_are_known",
    ),
    _law(
        "a version that was given up runs afresh",
        "if given_up and not claim.redrive:",
        "if given_up and record.done:",
        STATES + "a_version_given_up_at_a_tied_order_stays_so_while_the_others_go_on",
    ),
    _law(
        "a state once given up is given up at every order",
        "given_up = order == record.tried and claim.digest in record.dead",
        "given_up = claim.digest in record.dead",
        STATES + "a_state_given_up_at_one_order_runs_at_a_newer_one",
    ),
    _law(
        "a redrive does not pass a version that is dead",
        "if given_up and not claim.redrive:",
        "if given_up:",
        FACTS + "a_redrive_passes_what_is_dead_and_starts_at_attempt_one",
    ),
    _law(
        "a subject that is held runs beside its run",
        HELD + "    if record.tried",
        "    if record.tried",
        HOLES + "a_state_is_not_unchanged_while_another_run_of_its_subject_is_unsettled",
    ),
    _law(
        "an older version runs after a newer one crashed",
        "if record.tried is not None and order < record.tried:",
        "if record.tried is not None and order < record.tried and record.done:",
        HOLES + "an_older_state_is_not_applied_after_a_crash_between_effect_and_settlement",
    ),
    _law(
        "a version waits for itself",
        "if record.tried is not None and order < record.tried:",
        "if record.tried is not None and order <= record.tried:",
        HOLES + "redelivery_after_burial_does_not_run_afresh",
    ),
    _law(
        "an older version waits for ever",
        "if now < until and not record.dead:",
        "if not record.dead:",
        HOLES + "an_older_state_waits_a_bounded_time_for_a_newer_one_that_never_returned",
    ),
    _law(
        "an older version does not wait",
        "until = record.held_until + NEWER_WAIT_LEASES * claim.lease",
        "until = record.held_until",
        HOLES + "an_older_state_is_not_applied_after_a_crash_between_effect_and_settlement",
    ),
    _law(
        "an older version waits for one that was given up",
        "if now < until and not record.dead:",
        "if now < until:",
        HOLES + "an_older_state_does_not_wait_for_a_newer_one_that_was_given_up",
    ),
    _law(
        "an older version waits two leases",
        "NEWER_WAIT_LEASES: Final = 3",
        "NEWER_WAIT_LEASES: Final = 2",
        HOLES + "an_older_state_waits_a_bounded_time_for_a_newer_one_that_never_returned",
        CONTRACT + "an_older_version_waits_three_leases_and_is_then_given_up]",
    ),
    _law(
        "a stale version waits for the lease of a newer one",
        "        if order < record.order:\n",
        "        if order < record.order and now >= record.held_until:\n",
        STATES + "an_older_version_is_stale_at_once_while_a_newer_one_runs",
    ),
    _law(
        "versions given up at one order are kept without end",
        "dead=(*record.dead, claim.digest)[-KEPT_DIGESTS:],",
        "dead=(*record.dead, claim.digest),",
        STATES + "the_latest_sixteen_versions_given_up_at_one_order_are_known",
    ),
    _law(
        "a state is unchanged while another run is unsettled",
        "        not record.dirty\n",
        "        True\n",
        HOLES + "a_state_is_not_unchanged_while_another_run_of_its_subject_is_unsettled",
        HOLES + "a_state_is_not_unchanged_after_another_version_failed",
    ),
    _law(
        "a grant leaves the subject clean",
        "dirty=True,",
        "dirty=False,",
        HOLES + "a_state_is_not_unchanged_while_another_run_of_its_subject_is_unsettled",
    ),
    _law(
        "a completion leaves the subject dirty",
        "dirty=False,",
        "dirty=record.dirty,",
        STATES + "an_unchanged_version_advances_the_order",
    ),
    _law(
        "unchanged is judged by arrival",
        "if _unchanged(record, claim):",
        "if _unchanged(record, msgspec.structs.replace(claim, at=now)):",
        HOLES + "unchanged_is_judged_by_the_events_own_times",
    ),
    _law(
        "the applied event's time is that of its completion",
        "at=claim.at,",
        "at=now,",
        HOLES + "unchanged_is_judged_by_the_events_own_times",
    ),
    _law(
        "an event from before the applied one is unchanged",
        "0 <= claim.at - record.at <",
        "claim.at - record.at <",
        STATES + "a_version_from_before_the_applied_one_by_its_own_time_is_not_unchanged",
    ),
    _law(
        "the time within which a state is unchanged ends late",
        "claim.at - record.at < claim.unchanged_within",
        "claim.at - record.at <= claim.unchanged_within",
        HOLES + "unchanged_is_judged_by_the_events_own_times",
    ),
    _law(
        "a state is unchanged if any version of a tie had it",
        "and claim.digest == record.digests[-1]\n",
        "and claim.digest in record.digests\n",
        STATES + "unchanged_compares_with_the_version_applied_last_of_a_tie",
    ),
    _law(
        "an unchanged version does not advance the order",
        "            order=order,\n            by=claim.by,",
        "            by=claim.by,",
        STATES + "an_unchanged_version_advances_the_order",
    ),
    _law(
        "an unchanged version is not remembered",
        "expires=max(record.expires, now + claim.remember),\n        )",
        "expires=record.expires,\n        )",
        STATES + "an_unchanged_version_is_remembered_as_long_as_one_that_ran",
    ),
    _law(
        "an unchanged version shortens the memory",
        "expires=max(record.expires, now + claim.remember),\n        )",
        "expires=now + claim.remember,\n        )",
        STATES + "an_unchanged_version_does_not_shorten_the_memory",
    ),
    _law(
        "an unchanged version keeps the ties of the order before it",
        "            by=claim.by,\n            digests=(claim.digest,),",
        "            by=claim.by,",
        STATES + "an_unchanged_version_leaves_the_ties_of_the_order_before_it_behind",
    ),
    _law(
        "an unchanged version keeps another's transport id",
        "            by=claim.by,\n            digests=(claim.digest,),",
        "            digests=(claim.digest,),",
        STATES + "a_copy_of_an_unchanged_version_is_known_by_its_own_transport_id",
    ),
    _law(
        "a new version inherits the attempts of a poisoned one",
        "this_version = order == record.tried and claim.digest == record.trying",
        "this_version = record.tried is not None",
        HOLES + "a_new_version_does_not_inherit_the_attempts_of_a_poisoned_predecessor",
    ),
    _law(
        "a tied version inherits the attempts of a poisoned one",
        "this_version = order == record.tried and claim.digest == record.trying",
        "this_version = order == record.tried",
        HOLES + "a_new_version_does_not_inherit_the_attempts_of_a_poisoned_predecessor",
    ),
    _law(
        "a newer version inherits the attempts of an older one with the same state",
        "this_version = order == record.tried and claim.digest == record.trying",
        "this_version = claim.digest == record.trying",
        HOLES + "a_new_version_does_not_inherit_the_attempts_of_a_poisoned_predecessor",
    ),
    _law(
        "a version is never given up",
        "    if this_version:\n        return _next_attempt(record, claim, now)\n",
        "",
        STATES + "a_version_that_failed_counts_its_own_attempts",
    ),
    _law(
        "a grant does not say which order it tries",
        "tried=order,",
        "tried=record.tried,",
        HOLES + "an_older_state_is_not_applied_after_a_crash_between_effect_and_settlement",
    ),
    _law(
        "a grant does not say which version it tries",
        "trying=claim.digest,",
        "trying=record.trying,",
        STATES + "a_version_that_failed_counts_its_own_attempts",
    ),
    _law(
        "a grant leaves the subject done",
        "            done=False,\n",
        "",
        HOLES + "two_versions_at_the_same_order_run_once_each",
    ),
    _law(
        "a tie brings back what was given up",
        "dead=_still_dead(record, claim) if order == record.tried else (),",
        "dead=(),",
        STATES + "a_version_given_up_at_a_tied_order_stays_so_while_the_others_go_on",
    ),
    _law(
        "a version stays dead while it is redriven",
        "dead=_still_dead(record, claim) if order == record.tried else (),",
        "dead=record.dead if order == record.tried else (),",
        FACTS + "a_redriven_version_that_crashes_is_counted_again_not_dead_at_once",
    ),
    _law(
        "a duplicate is answered with another version's result",
        "latest = claim.order is None or claim.digest == record.digests[-1]",
        "latest = True",
        STATES + "a_duplicate_at_a_tie_is_not_answered_with_another_versions_result",
    ),
    _law(
        "a redriven fact stays given up under its other content",
        "    if order is None:\n        granted = Record(",
        "    if False:\n        granted = Record(",
        FACTS + "a_redriven_fact_is_no_longer_given_up_whatever_its_content",
    ),
    _law(
        "whoever finds it busy takes a run for one that shared its process",
        "alone = record.alone or (own and claim.alone)",
        "alone = own and claim.alone",
        FACTS + "whoever_finds_a_fact_held_leaves_its_record_as_it_is",
    ),
    _law(
        "a duplicate does not say which version won",
        "        order=record.order,\n        result=record.result if latest else None,",
        "        result=record.result if latest else None,",
        STATES + "a_duplicate_at_a_tie_is_not_answered_with_another_versions_result",
    ),
    _law(
        "a busy answer is a write",
        "if (held_until, alone) == (record.held_until, record.alone):",
        "if False:",
        FACTS + "whoever_finds_a_fact_held_leaves_its_record_as_it_is",
    ),
    # Settlements.
    _law(
        "any token settles",
        "if record.token != settlement.token:",
        "if record.token < settlement.token:",
        SETTLE + "a_run_that_was_overtaken_settles_nothing",
        HOLES + "a_token_never_returns_after_its_record_expired",
    ),
    _law(
        "a completion is refused once the lease has ended",
        "if record.token != settlement.token:",
        "if record.token != settlement.token or now >= record.held_until:",
        SETTLE + "a_late_completion_that_nobody_overtook_is_kept",
        HOLES + "a_completion_repeated_because_its_reply_was_lost_is_kept",
    ),
    _law(
        "what is done is released again",
        '    if record.done:\n        return "fenced", None\n',
        "",
        SETTLE + "what_is_done_is_neither_released_nor_buried_nor_extended",
    ),
    _law(
        "a late renewal takes back what was released",
        "if record.nonce != claim.nonce:",
        "if record.nonce not in (0, claim.nonce):",
        SETTLE + "a_renewal_that_comes_late_does_not_take_back_what_was_let_go",
    ),
    _law(
        "a repeated release is refused",
        '"kept" if frees and claim.digest not in record.dead else "fenced"',
        '"fenced"',
        SETTLE + "a_release_or_burial_repeated_because_its_reply_was_lost_is_kept",
    ),
    _law(
        "a repeated release is refused for a tied version that was given up",
        '"kept" if frees and claim.digest not in record.dead else "fenced"',
        '"kept" if frees and not record.dead else "fenced"',
        SETTLE + "a_repeated_release_is_kept_though_a_tied_version_was_given_up",
    ),
    _law(
        "a burial repeated is written twice",
        "if claim.digest in record.dead:",
        "if record.done:",
        SETTLE + "a_release_or_burial_repeated_because_its_reply_was_lost_is_kept",
    ),
    _law(
        "a release leaves the lease behind",
        "            held_until=min(record.held_until, now),\n            spared",
        "            spared",
        FACTS + "a_released_fact_runs_again_at_once_and_counts_on",
    ),
    _law(
        "a renewal renews nothing",
        "renewed = max(now + claim.lease, _cut_down(record.held_until, claim, now))",
        "renewed = record.held_until",
        SETTLE + "a_renewal_prolongs_the_lease",
    ),
    _law(
        "a renewal shortens the lease",
        "renewed = max(now + claim.lease, _cut_down(record.held_until, claim, now))",
        "renewed = now + claim.lease",
        SETTLE + "a_renewal_never_shortens_the_lease",
    ),
    _law(
        "a completion repeated turns the order back",
        "    if record.done:\n        # Its own completion again.",
        "    if not record.token:\n        # Its own completion again.",
        HOLES + "a_completion_repeated_after_an_unchanged_version_does_not_turn_the_order_back",
    ),
    _law(
        "a completion shortens the memory of what was given up",
        "remember = max(claim.remember, UNSETTLED) if dead else claim.remember",
        "remember = claim.remember",
        STATES + "a_completion_does_not_shorten_the_memory_of_a_tied_version_that_was_given_up",
    ),
    _law(
        "a completed version leaves its attempts to the next",
        "        attempt=0,\n        nonce=0,",
        "        nonce=0,",
        STATES + "a_completed_version_leaves_no_attempts_to_the_next_tie",
    ),
    _law(
        "a fact's result is not kept",
        "        result=settlement.result,\n        digests=(claim.digest,) if claim.digest",
        "        digests=(claim.digest,) if claim.digest",
        FACTS + "a_duplicate_replays_the_result",
    ),
    _law(
        "a fact's content is not kept",
        "digests=(claim.digest,) if claim.digest else (),",
        "digests=(),",
        FACTS + "verified_content_that_differs_is_a_conflict",
    ),
)
