"""The contract: what every store is held to, here and in other people's projects.

A store joins with a few lines, and pytest and Hypothesis beside it:

    from functools import partial
    from eventonce.testing.contract import Opener, StoreContract

    class TestMyStore(StoreContract):
        @pytest.fixture
        def opener(self, tmp_path):
            return Opener(partial(MyStore, tmp_path / "store"))

`Opener` says what can be asked of the store. `EVENTONCE_EXAMPLES=20000` in the environment plays
that many random programs instead of the few fixed ones, and `EVENTONCE_HISTORIES=50` records that
many rounds of concurrent calls, drawn from `EVENTONCE_SEED`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest

from eventonce.testing.cases import (
    admin,
    batches,
    clocks,
    crashes,
    histories,
    law,
    letters,
    races,
    transactions,
)
from eventonce.testing.cases.holes import HOLES
from eventonce.testing.cases.steps import play
from eventonce.testing.crew import Crew, processes, threads, threads_on_one_handle
from eventonce.testing.opener import Opener, opened

__all__ = ["CASES", "CREWS", "HOLES", "RACES", "Opener", "StoreContract"]

Case = Callable[[Opener], None]
Race = Callable[[Opener, Crew], None]

CASES: Final[tuple[Case, ...]] = (
    law.every_answer_is_the_laws,
    batches.an_empty_batch_has_no_answers,
    batches.answers_come_in_the_order_asked,
    batches.a_thousand_claims_fit_in_one_call,
    batches.any_sixteen_bytes_are_a_key,
    batches.a_result_comes_back_as_it_was_given,
    batches.one_bad_claim_does_not_spoil_its_batch,
    batches.without_an_instant_the_stores_clock_decides,
    batches.the_next_handle_finds_what_the_last_one_left,
    crashes.a_run_that_never_ends_is_taken_over_and_at_last_given_up,
    crashes.a_run_that_shared_its_process_is_not_given_up_for_the_others_crash,
    crashes.an_attempt_that_is_returned_does_not_count,
    crashes.a_lease_granted_by_a_clock_that_was_ahead_is_cut_down,
    crashes.a_run_that_lives_keeps_its_lease_though_the_clock_is_set_back,
    crashes.an_older_version_waits_three_leases_and_is_then_given_up,
    crashes.a_worker_killed_after_its_claim_is_taken_over,
    crashes.a_worker_killed_after_its_effect_is_not_followed_by_an_older_version,
    crashes.a_worker_killed_at_any_moment_leaves_nothing_half_done,
    clocks.an_events_own_time_ends_no_lease,
    clocks.a_worker_whose_clock_is_ahead_completes_no_others_run,
    clocks.a_worker_whose_clock_is_behind_completes_no_others_run,
    clocks.tokens_do_not_go_back_with_the_clock,
    histories.every_history_of_processes_is_linearizable,
    histories.every_history_of_threads_is_linearizable,
    letters.a_letter_comes_back_whole,
    letters.a_letter_put_twice_is_one_letter,
    letters.letters_are_read_oldest_first,
    letters.each_consumer_has_its_own_letters,
    letters.letters_may_be_dropped_while_they_are_read,
    letters.a_dropped_letter_is_gone,
    letters.a_letter_outlives_its_handle,
    admin.a_record_is_shown_as_the_law_has_it,
    admin.an_expired_record_is_not_shown,
    admin.a_forgotten_key_is_new_again,
    admin.a_sweep_goes_through_everything_in_small_steps,
    admin.stats_count_records_and_letters,
    transactions.a_completion_commits_with_the_callers_writes,
    transactions.neither_is_there_if_the_handler_fails,
    transactions.a_run_that_was_overtaken_is_told_in_its_transaction,
    transactions.a_worker_killed_in_its_transaction_leaves_neither,
)

RACES: Final[tuple[Race, ...]] = (
    races.each_key_is_granted_once,
    races.each_key_is_taken_over_once,
    races.no_fact_completes_twice,
    races.no_subject_goes_back,
    races.a_sweep_beside_the_work_drops_nothing_that_lives,
)

CREWS: Final[tuple[Crew, ...]] = (threads, threads_on_one_handle, processes)


def _sentence(case: object) -> str:
    return str(getattr(case, "__name__", case))


class StoreContract:
    """Subclass it under a name that begins with `Test`, with a fixture called `opener`."""

    @pytest.mark.parametrize("case", CASES, ids=_sentence)
    def test_case(self, case: Case, opener: Opener) -> None:
        """One promise of a store."""
        case(opener)

    @pytest.mark.parametrize("crew", CREWS, ids=_sentence)
    @pytest.mark.parametrize("race", RACES, ids=_sentence)
    def test_race(self, race: Race, crew: Crew, opener: Opener) -> None:
        """One promise that must hold whoever else is at work."""
        race(opener, crew)

    @pytest.mark.parametrize("hole", HOLES)
    def test_hole(self, hole: str, opener: Opener) -> None:
        """One program that the law, or another library, once got wrong."""
        with opened(opener) as store:
            play(HOLES[hole], store)
