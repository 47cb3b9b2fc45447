"""The breakages of engine, gate and worker, and the promise that each of them breaks."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from eventonce.core import engine
from eventonce.errors import EventonceError, StoreUnavailable
from eventonce.runtime import lane as lanes
from eventonce.runtime.gate import Gate
from eventonce.runtime.lane import Lane
from eventonce.runtime.running_batch import RunningBatch
from eventonce.runtime.stages import Stages
from eventonce.types import Outcome
from eventonce.worker import inflight
from eventonce.worker.ack_buffer import AckBuffer
from eventonce.worker.worker import Worker
from tests.breakages import promises
from tests.breakages.breakage import Breakage, Patch, attribute
from tests.unit import test_gate, test_lane


def lane_made_with(**changed: Any) -> Callable[[Patch], None]:
    def plant(patch: Patch) -> None:
        made = Lane.__init__

        def init(self: Any, call: Any, key: Any, abandon: Any = None) -> None:
            named = {"call": call, "key": key, "abandon": abandon}
            made(self, **{k: changed[k](v) if k in changed else v for k, v in named.items()})

        patch.setattr(Lane, "__init__", init)

    return plant


def always_away(call: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def calls(items: Any) -> Any:
        try:
            return call(items)
        except EventonceError as error:
            raise StoreUnavailable(str(error)) from error

    return calls


def keeps_the_lead(patch: Patch) -> None:
    passes = Lane._pass_on
    patch.setattr(lanes, "LONGEST_CALL", 1.0)

    def pass_on(self: Any, me: int) -> None:
        if sys.exc_info()[0] is None:
            passes(self, me)

    patch.setattr(Lane, "_pass_on", pass_on)


def wakes_no_waiter(patch: Patch) -> None:
    lets_go = Gate.let_go

    def let_go(self: Gate, *given: Any) -> None:
        self._waiters.clear()
        lets_go(self, *given)

    patch.setattr(Gate, "let_go", let_go)


def refused_is_kept(patch: Patch) -> None:
    settles = Gate.settle

    def settle(self: Gate, *given: Any) -> Any:
        return ["kept" for _ in settles(self, *given)]

    patch.setattr(Gate, "settle", settle)


def unsettled_is_kept(patch: Patch) -> None:
    settles = Gate.settle

    def settle(self: Gate, settlements: Sequence[Any], *given: Any) -> Any:
        try:
            return settles(self, settlements, *given)
        except EventonceError:
            return ["kept"] * len(settlements)

    patch.setattr(Gate, "settle", settle)


def letter_counts_as_kept(patch: Patch) -> None:
    keeps = engine._keep

    def kept(letters: Any) -> Any:
        yield from keeps(letters)

    patch.setattr(engine, "_keep", kept)


def failure_is_done(patch: Patch) -> None:
    def raised(run: Any, *_: object) -> Outcome:
        return Outcome(run.plan.event, "done", "", run.plan.rule.name, run.claim.key)

    patch.setattr(engine, "raised", raised)


def loses_refused_acknowledgements(patch: Patch) -> None:
    sends = AckBuffer.send

    def send(self: AckBuffer) -> float:
        settled = list(self._settled)
        seconds = sends(self)
        if self._settled:
            self._settled.clear()
            self._inflight.gone(settled)
        return seconds

    patch.setattr(AckBuffer, "send", send)


def nothing(*_: object, **__: object) -> None:
    """Do nothing where something must be done."""


def cancels_only(self: Any, batch: Any) -> None:
    batch.cancelled = True


BREAKAGES: tuple[Breakage, ...] = (
    Breakage(
        "lane: a call has a key twice",
        lane_made_with(key=lambda _: lambda _: os.urandom(8)),
        test_lane.test_a_call_has_each_key_once,
    ),
    Breakage(
        "lane: no caller joins a call",
        attribute(Lane, "_join", nothing),
        test_lane.test_callers_that_ask_during_a_call_join_the_next_call,
    ),
    Breakage(
        "lane: a refused item is refused with all others",
        lane_made_with(call=always_away),
        test_lane.test_a_refused_item_does_not_affect_the_other_callers,
    ),
    Breakage(
        "lane: the grant of an interrupted caller is dropped",
        lane_made_with(abandon=lambda _: None),
        lambda: test_lane.test_the_answers_of_an_interrupted_caller_are_given_to_the_callback(
            "after the call", told=True
        ),
    ),
    Breakage(
        "lane: a leader that is interrupted keeps the lead",
        keeps_the_lead,
        test_lane.test_followers_get_their_answers_when_their_leader_is_interrupted,
    ),
    Breakage(
        "gate: the timer never renews",
        attribute(Gate, "_start_or_wake", nothing),
        test_gate.test_a_lease_is_renewed_and_a_run_settled_in_one_call,
        ("patch",),
    ),
    Breakage(
        "gate: the end of a run wakes no waiter",
        wakes_no_waiter,
        promises.a_waiter_for_a_run_is_woken_by_the_end_of_the_run,
    ),
    Breakage(
        "gate: a run that was not seen before its end is not asked for again",
        attribute(Gate, "was_busy_here", lambda *_: False),
        test_gate.test_a_copy_that_was_answered_just_before_the_run_of_its_process_ended_asks_again,
    ),
    Breakage(
        "gate: a refused completion counts as done",
        refused_is_kept,
        promises.a_completion_that_was_refused_is_not_acknowledged,
    ),
    Breakage(
        "gate: a completion that was not stored counts as done",
        unsettled_is_kept,
        promises.a_completion_that_was_not_stored_is_not_acknowledged,
    ),
    Breakage(
        "gate: an interrupted caller frees nothing",
        attribute(Gate, "salvage", nothing),
        promises.an_interrupted_caller_frees_the_events_that_did_not_run,
    ),
    Breakage(
        "running batch: the leases of an interrupted caller are kept for ever",
        attribute(RunningBatch, "leave", nothing),
        promises.an_interrupted_caller_frees_the_events_that_did_not_run,
    ),
    Breakage(
        "running batch: a copy waits for no run",
        attribute(RunningBatch, "wait", lambda *_: 0.0),
        test_gate.test_a_copy_waits_for_the_run_of_its_process_and_is_then_a_duplicate,
        (test_gate.through_process, "patch"),
    ),
    Breakage(
        "stages: a cancelled batch waits on",
        attribute(Stages, "give_up", cancels_only),
        test_gate.test_a_cancelled_batch_does_not_wait_for_another_run,
        ("patch",),
    ),
    Breakage(
        "engine: a dead letter that could not be kept is acknowledged",
        letter_counts_as_kept,
        promises.a_given_up_event_is_acknowledged_only_after_its_dead_letter_is_kept,
    ),
    Breakage(
        "engine: a failed event is acknowledged",
        failure_is_done,
        promises.a_failed_event_is_not_acknowledged_and_runs_again,
    ),
    Breakage(
        "engine: an event runs though the store could not be asked",
        attribute(engine, "_runs_anyway", lambda *_: True),
        promises.an_event_does_not_run_while_the_store_cannot_be_asked,
    ),
    Breakage(
        "engine: a copy in the same batch runs, too",
        attribute(engine, "followed", lambda run, leader: leader.outcome),
        promises.copies_of_one_batch_run_once,
    ),
    Breakage(
        "worker: a failed event is acknowledged",
        attribute(Worker, "_delay", lambda *_: 0.0),
        promises.a_worker_acknowledges_done_events_and_postpones_failed_events,
    ),
    Breakage(
        "worker: an acknowledgement is lost while the source is away",
        loses_refused_acknowledgements,
        promises.an_acknowledgement_that_the_source_could_not_take_is_sent_again,
    ),
    Breakage(
        "worker: the events of one group begin together",
        attribute(inflight, "_group", lambda _: ""),
        promises.the_events_of_a_group_begin_one_at_a_time_and_none_overtakes_a_postponed_event,
    ),
    Breakage(
        "worker: the events behind a postponed event overtake it",
        attribute(inflight.Inflight, "_behind", lambda *_: []),
        promises.the_events_of_a_group_begin_one_at_a_time_and_none_overtakes_a_postponed_event,
    ),
)
