"""A contract that cannot fail is worthless: here are stores with one mistake each, all caught."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from eventonce.core import ledger
from eventonce.stores.memory import MemoryStore
from eventonce.testing.cases import (
    admin,
    batches,
    crashes,
    histories,
    law,
    races,
    transactions,
)
from eventonce.testing.cases.steps import Ask, play
from eventonce.testing.contract import CASES, HOLES, RACES, Case, Race, StoreFactory
from eventonce.testing.factory import EXAMPLES, opened
from eventonce.testing.workers import Runner, processes, threads, threads_on_one_handle
from eventonce.types import Claim
from tests.contract import mistakes, overlapping
from tests.contract.bent import JUDGES, SETTLES
from tests.contract.elsewhere import TextbookStore
from tests.contract.mistakes import BentStore

Making = Callable[[Path], StoreFactory]

PROGRAMS: Final = 10 * EXAMPLES
"""The search ends with the first program that fails: here within `EXAMPLES`, but another release
of Hypothesis may draw that program later."""


def bent(*law: Any, **instead: Callable[..., Any]) -> Making:
    """The memory store, with a mistake."""

    def factory(_: Path) -> StoreFactory:
        store = BentStore(*law, **instead)
        return StoreFactory(lambda: store, processes=False, examples=PROGRAMS)

    factory.__name__ = "-".join(it.__name__ for it in instead.values()) or "law"
    return factory


def textbook(make: Callable[[Path], TextbookStore]) -> Making:
    """The textbook's store, with a mistake."""

    def factory(path: Path) -> StoreFactory:
        return StoreFactory(partial(make, path / "store.db"))

    factory.__name__ = make.__name__
    return factory


def a_store_for_every_handle(_: Path) -> StoreFactory:
    return StoreFactory(MemoryStore, processes=False)


def a_server_that_asks_the_worker_for_the_time(_: Path) -> StoreFactory:
    store = MemoryStore()
    return StoreFactory(lambda: store, processes=False, own_clock=True)


LAW: Final[Mapping[str, Making]] = {
    **{mistake: bent(judge) for mistake, judge in JUDGES.items()},
    **{mistake: bent(ledger.judge, believe) for mistake, believe in SETTLES.items()},
    "judges at the event's own time": bent(claim=mistakes.claim_in_the_events_time),
}

CAUGHT: Final[tuple[tuple[Making, Case], ...]] = (
    (bent(claim=mistakes.claim_of_some), batches.an_empty_batch_has_no_answers),
    (bent(claim=mistakes.sorted_claim), batches.answers_come_in_the_order_asked),
    (bent(settle=mistakes.sorted_settle), batches.answers_come_in_the_order_asked),
    (bent(claim=mistakes.claim_of_999), batches.a_thousand_claims_fit_in_one_call),
    (bent(claim=mistakes.claim_by_text), batches.any_sixteen_bytes_are_a_key),
    (LAW["answers an empty result with none"], batches.a_result_comes_back_as_it_was_given),
    (LAW["cuts a result at a zero byte"], batches.a_result_comes_back_as_it_was_given),
    (bent(claim=mistakes.claim_of_all_or_none), batches.one_bad_claim_does_not_spoil_its_batch),
    (bent(claim=mistakes.claim_in_seconds), batches.without_an_instant_the_stores_clock_decides),
    (bent(claim=mistakes.claim_in_own_time), batches.the_next_handle_finds_what_the_last_one_left),
    (a_store_for_every_handle, batches.the_next_handle_finds_what_the_last_one_left),
    (
        textbook(mistakes.committing_too_late),
        crashes.a_worker_killed_after_its_claim_is_taken_over,
    ),
    (
        textbook(mistakes.committing_too_late),
        crashes.a_worker_killed_after_its_effect_is_not_followed_by_an_older_version,
    ),
    (
        textbook(mistakes.committing_too_late),
        crashes.a_worker_killed_at_any_moment_leaves_nothing_half_done,
    ),
    (
        a_server_that_asks_the_worker_for_the_time,
        crashes.a_worker_whose_clock_is_ahead_completes_no_others_run,
    ),
    (LAW["checks no token"], crashes.a_worker_whose_clock_is_ahead_completes_no_others_run),
    (
        LAW["trusts no lease from the future"],
        crashes.a_worker_whose_clock_is_behind_completes_no_others_run,
    ),
    (bent(put_letters=mistakes.put_as_text), admin.a_letter_comes_back_whole),
    (bent(put_letters=mistakes.put_over), admin.a_letter_put_twice_is_one_letter),
    (bent(letters=mistakes.letters_as_they_came), admin.letters_are_read_oldest_first),
    (bent(letters=mistakes.first_letters), admin.letters_are_read_oldest_first),
    (bent(letters=mistakes.letters_by_prefix), admin.each_consumer_has_its_own_letters),
    (bent(letters=mistakes.letters_by_page), admin.letters_may_be_dropped_while_they_are_read),
    (bent(drop_letters=mistakes.drop_and_guess), admin.a_dropped_letter_is_gone),
    *(
        (bent(drop_letters=drop), admin.a_letter_that_was_kept_anew_is_not_dropped_for_its_age)
        for drop in (mistakes.drop_whatever_its_age, mistakes.drop_up_to)
    ),
    *(
        (bent(clear_results=clear), admin.a_result_is_cleared_and_its_record_stays)
        for clear in (mistakes.clear_and_guess, mistakes.clear_the_record, mistakes.clear_the_done)
    ),
    (a_store_for_every_handle, admin.a_letter_outlives_its_handle),
    (bent(show=mistakes.show_no_result), admin.a_record_is_shown_as_the_law_has_it),
    (bent(show=mistakes.show_the_expired), admin.an_expired_record_is_not_shown),
    (bent(forget=mistakes.forget_the_done), admin.a_forgotten_key_is_new_again),
    (bent(forget=mistakes.forget_and_guess), admin.a_forgotten_key_is_new_again),
    (bent(sweep=mistakes.sweep_of_the_first), admin.a_sweep_goes_through_everything_in_small_steps),
    (bent(sweep=mistakes.sweep_of_all), admin.a_sweep_goes_through_everything_in_small_steps),
    (bent(sweep=mistakes.sweep_of_the_held), law.every_answer_is_the_laws),
    (bent(stats=mistakes.no_stats), admin.stats_count_records_and_letters),
    *(
        (bent(names=mistakes.names, **mistake), admin.names_are_kept_once_beside_the_records)
        for mistake in (
            {"add_name": mistakes.add_name_again},
            {"add_name": mistakes.add_name_as_a_record},
            {"add_name": mistakes.torn_add_name, "sweep": mistakes.sweep_of_names},
        )
    ),
    (
        bent(names=mistakes.names, add_name=mistakes.torn_add_name),
        admin.names_that_are_added_at_the_same_moment_are_all_kept,
    ),
    (
        textbook(mistakes.settling_nothing),
        transactions.a_completion_commits_with_the_callers_writes,
    ),
    (
        textbook(mistakes.committing_whatever_happens),
        transactions.neither_is_there_if_the_handler_fails,
    ),
    (
        textbook(mistakes.accepting_every_settlement),
        transactions.a_run_that_was_overtaken_is_told_in_its_transaction,
    ),
    (
        textbook(mistakes.without_transactions),
        transactions.a_worker_killed_in_its_transaction_leaves_neither,
    ),
)
"""A mistake, and the case that finds it."""

CAUGHT_IN_A_HISTORY: Final[tuple[tuple[Making, Case, str], ...]] = (
    (
        LAW["gives a token with the verdict busy"],
        histories.every_history_of_threads_is_linearizable,
        "got busy with a token",
    ),
    (
        textbook(overlapping.answering_busy_without_the_lock),
        histories.every_history_of_processes_is_linearizable,
        "got busy with a token",
    ),
    (
        LAW["takes the clock for the token"],
        histories.every_history_of_threads_is_linearizable,
        "one token was given to two runs",
    ),
    (
        bent(claim=overlapping.read_in_company()),
        histories.every_history_of_threads_is_linearizable,
        "one token was given to two runs",
    ),
    (
        textbook(overlapping.reading_before_locking),
        histories.every_history_of_processes_is_linearizable,
        "one token was given to two runs",
    ),
    (
        LAW["lets anyone complete"],
        histories.every_history_of_threads_is_linearizable,
        "more than one run completed this fact",
    ),
    (
        textbook(overlapping.forgetting_when_killed),
        histories.every_history_of_processes_is_linearizable,
        "more than one run completed this fact",
    ),
)
"""A mistake, the case that finds it, and the reason that the case gives."""

CAUGHT_IN_A_RACE: Final[tuple[tuple[Making, Race, Runner], ...]] = (
    (bent(claim=mistakes.torn_claim), races.each_key_is_granted_once, threads),
    (bent(claim=mistakes.torn_claim), races.each_key_is_granted_once, threads_on_one_handle),
    (textbook(mistakes.deferred), races.each_key_is_granted_once, processes),
    (textbook(mistakes.without_transactions), races.each_key_is_granted_once, processes),
    (bent(claim=mistakes.torn_claim), races.each_key_is_taken_over_once, threads),
    (LAW["lets anyone release"], races.each_key_is_taken_over_once, threads),
    (bent(settle=mistakes.torn_settle), races.no_fact_completes_twice, threads),
    (LAW["lets anyone complete"], races.no_fact_completes_twice, threads),
    (LAW["applies an older version after a crash"], races.no_subject_goes_back, threads),
    (
        bent(sweep=mistakes.torn_sweep),
        races.a_sweep_beside_the_work_drops_nothing_that_lives,
        threads,
    ),
)


RACES_ENOUGH: Final = 10
"""Races: on a busy machine, a store with a mistake passes one race by luck, but not so many."""
ROUNDS_ENOUGH: Final = 60
"""Rounds of a history, likewise. Every tenth round has the scene with the long transactions."""


def _play_all(factory: StoreFactory) -> None:
    with opened(factory) as store:
        for program in HOLES.values():
            play(program, store)


def _run_often(race: Race, factory: StoreFactory, runner: Runner) -> None:
    for _ in range(RACES_ENOUGH):
        race(factory, runner)


TOO_RARE: Final = {
    "keeps every tie",
    "keeps every burial",
    "shortens the memory at an unchanged version",
    "keeps the ties before an unchanged version",
}
"""A mistake that shows only after seventeen ties of one subject, or after an unchanged version and
a long wait, is left to the holes: the property test would have to play thousands of programs."""


def test_every_promise_of_the_contract_is_seen_to_fail() -> None:
    caught = {case for _, case in CAUGHT} | {case for _, case, _ in CAUGHT_IN_A_HISTORY}
    assert caught == {*CASES}
    assert {race for _, race, _ in CAUGHT_IN_A_RACE} == {*RACES}


@pytest.mark.parametrize(("make", "case"), CAUGHT)
def test_a_mistake_is_found(make: Making, case: Case, tmp_path: Path) -> None:
    found = partial(case, shrink=False) if case is law.every_answer_is_the_laws else case
    with pytest.raises(Exception):  # noqa: B017, PT011  a broken store may break in any way
        found(make(tmp_path))


@pytest.mark.parametrize(("make", "case", "reason"), CAUGHT_IN_A_HISTORY)
def test_a_history_shows_the_mistake_of_a_store(
    make: Making, case: Case, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVENTONCE_HISTORIES", str(ROUNDS_ENOUGH))
    with pytest.raises(AssertionError, match=reason):
        case(make(tmp_path))


@pytest.mark.parametrize(("make", "race", "runner"), CAUGHT_IN_A_RACE)
def test_a_race_shows_the_mistake_of_a_store(
    make: Making, race: Race, runner: Runner, tmp_path: Path
) -> None:
    with pytest.raises(AssertionError):
        _run_often(race, make(tmp_path), runner)


@pytest.mark.parametrize("mistake", LAW)
def test_a_hole_opens_for_a_store_that(mistake: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="as the law does"):
        _play_all(LAW[mistake](tmp_path))


@pytest.mark.parametrize("mistake", sorted(LAW.keys() - TOO_RARE))
def test_the_property_test_finds_a_store_that(mistake: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="as the law does"):
        law.every_answer_is_the_laws(LAW[mistake](tmp_path), shrink=False)


def test_a_failing_program_reads_as_code() -> None:
    """The story has the claims, the calls with their instants, then the answers that differ."""
    factory = LAW["takes the unknown for kept"](Path())
    with pytest.raises(AssertionError) as caught:
        law.every_answer_is_the_laws(factory)
    story = str(caught.value).splitlines()
    assert story[1].startswith("c1 = Claim(key=b'")
    assert story[2].startswith("store.claim([c1], now=EPOCH")
    assert story[-2:] == ["    # law:   ['unknown']", "    # store: ['kept']"]
    assert len(story) <= 12


def test_the_error_of_a_store_names_the_call_that_raised() -> None:
    factory = bent(claim=mistakes.claim_of_all_or_none)(Path())
    with opened(factory) as store, pytest.raises(OverflowError) as caught:
        play([Ask((Claim(b"s1", 0, 1, 1, 1, order=2**63),))], store)
    (note,) = caught.value.__notes__
    assert note.endswith("store.claim([c1], now=EPOCH + 0)")
