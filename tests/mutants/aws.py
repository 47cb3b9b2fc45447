"""Breakages of the Lambda entry point, and of what it asks of batches and renewals."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

HANDLER = "src/eventonce/aws/__init__.py"
DEADLINE = "src/eventonce/aws/deadline.py"
BATCH = "src/eventonce/core/plan.py"
RENEWAL = "src/eventonce/runtime/renewal.py"
UNIT = "tests/unit/test_aws.py::test_"
TIME = "tests/unit/test_aws_deadline.py::test_"
RUNTIME = "tests/integration/test_lambda_runtime.py::test_"

SOURCES = "tests/unit/test_aws_sources.py::test_"
HELD = "tests/integration/test_lambda_visibility.py::test_"
UNHANDLED = "tests/unit/test_unhandled.py::test_"

AWS = (
    Mutant(
        "aws: a handler's Retry(after=…) is forgotten",
        HANDLER,
        "            visibility.change(records, outcomes, _group, clock.left())\n",
        "",
        (HELD + "what_stands_behind_it_in_its_group_waits_as_long",),
    ),
    Mutant(
        "deadline: why copies are copies is told to nobody",
        DEADLINE,
        'f" (copies: {said})" if said else ""',
        '""',
        (UNIT + "an_invocation_is_a_line_with_what_became_of_its_events_and_why_copies_are",),
    ),
    Mutant(
        "aws: a source whose records are not read is acknowledged",
        HANDLER,
        "            raise UnsupportedSource(source)\n",
        "            pass\n",
        (SOURCES + "a_call_for_an_answer_of_its_own_form_raises_where_nobody_takes_it",),
    ),
    Mutant(
        "carriers: records that are not read are events",
        "src/eventonce/envelope/carriers.py",
        "    if source:\n",
        "    if False:\n",
        (SOURCES + "the_same_in_a_message_or_a_request_is_kept_and_named",),
    ),
    Mutant(
        "aws: Firehose is told that what was given up is fine",
        HANDLER,
        'result = "ProcessingFailed" if lost else "Ok"',
        'result = "Ok"',
        (SOURCES + "firehose_gets_every_record_back_with_what_became_of_it",),
    ),
    Mutant(
        "routing: nobody is told of a type that no handler takes",
        "src/eventonce/core/routing.py",
        "        self._warn(event, outcome)\n",
        "",
        (UNHANDLED + "the_first_event_of_each_type_nobody_takes_is_a_warning",),
    ),
    Mutant(
        "routing: an object without a type is acknowledged",
        "src/eventonce/core/routing.py",
        "    if event.type:\n        return Outcome",
        "    if event:\n        return Outcome",
        (SOURCES + "what_nobody_knows_is_never_acknowledged_in_silence",),
    ),
    Mutant(
        "batch: an event that was read before has no limit",
        BATCH,
        "elif len(incoming.raw) <= max_bytes:",
        "elif True:",
        ("tests/unit/test_limits.py::test_an_event_that_was_read_before_is_held_to_the_limit",),
    ),
    Mutant(
        "aws: a group goes on behind a failure",
        HANDLER,
        "            if outcome.ack:\n                groups.settled(record)\n",
        "            groups.settled(record)\n",
        (UNIT + "of_a_fifo_group_nothing_behind_a_failure_is_tried",),
    ),
    Mutant(
        "aws: what there was no time for is forgotten",
        HANDLER,
        "outcomes = {id(record): NO_TIME for record in records}",
        'outcomes = {id(record): Outcome(None, "done") for record in records}',
        (TIME + "it_stops_taking_records_in_time_to_settle_what_it_has",),
    ),
    Mutant(
        "aws: a list that is not settled is a success",
        HANDLER,
        "if not all(outcome.ack for outcome in outcomes):",
        "if not outcomes:",
        (UNIT + "what_must_come_again_is_raised_and_a_copy_never_is",),
    ),
    Mutant(
        "aws: an event is tried more often than Lambda brings it",
        HANDLER,
        "        outcomes += clock.process(consumer, some, tries)\n",
        "        outcomes += clock.process(consumer, some)\n",
        (UNIT + "what_lambda_itself_brings_is_a_letter_before_lambda_drops_it",),
    ),
    Mutant(
        "aws: what a queue brings is given up as early as what Lambda brings",
        HANDLER,
        "fires = not partial and records is event",
        "fires = True",
        (UNIT + "what_a_queue_or_a_sender_brings_is_tried_as_often_as_its_rule_says",),
    ),
    Mutant(
        "deadline: what is given up is told to nobody",
        DEADLINE,
        "if outcome.status in LETTERED:",
        "if outcome.status in LETTERED and not told:",
        (UNIT + "what_is_given_up_is_in_the_log_whoever_observes",),
    ),
    Mutant(
        "deadline: an invocation with little time tries nothing",
        DEADLINE,
        "least = 0 if self._begun else 1",
        "least = 0",
        (TIME + "a_handler_too_slow_for_its_function_is_tried_all_the_same",),
    ),
    Mutant(
        "deadline: a short invocation keeps back all its time",
        DEADLINE,
        "margin = min(margin, left / 1000 / MARGIN_SHARE)",
        "margin = min(margin, left / 1000)",
        (TIME + "a_short_invocation_keeps_back_only_a_part_of_its_time",),
    ),
    Mutant(
        "runners: a handler begins although its process is about to end",
        "src/eventonce/runtime/inline.py",
        "    if task.last_call < inf and time.monotonic() > task.last_call:\n",
        "    if False:\n",
        (TIME + "what_has_not_begun_when_the_time_is_up_is_handed_back",),
    ),
    Mutant(
        "engine: what did not come to its turn is given up",
        "src/eventonce/core/engine.py",
        "    if task.job is None and not last:\n",
        "    if False:\n",
        (TIME + "what_has_not_begun_when_the_time_is_up_is_handed_back",),
    ),
    Mutant(
        "deadline: what was not begun counts as quick",
        DEADLINE,
        "ran = sum(one.status in RAN and one.reason != TOO_LATE for one in outcomes)",
        "ran = sum(one.status in RAN for one in outcomes)",
        (TIME + "what_has_not_begun_when_the_time_is_up_is_handed_back",),
    ),
    Mutant(
        "batch: a lease outlasts the process",
        BATCH,
        "if task.claim.order is None and task.covered:",
        "if task.claim.order == 0 and task.covered:",
        (TIME + "what_was_killed_is_free_when_its_process_had_to_end",),
    ),
    Mutant(
        "batch: a state's patience depends on who asks",
        BATCH,
        "if task.claim.order is None and task.covered:",
        "if task.covered:",
        (TIME + "a_state_keeps_its_rules_lease_for_older_versions_wait_for_some_of_them",),
    ),
    Mutant(
        "renewal: a lease is renewed beyond the end of its process",
        RENEWAL,
        "if now + claim.lease / 1000 <= task.ends:",
        "if claim.lease / 1000 <= task.ends:",
        (TIME + "a_shorter_lease_is_renewed_but_not_beyond_the_end",),
    ),
    Mutant(
        "renewal: what has returned waits for the handler behind it",
        RENEWAL,
        "            self._complete(looked)\n",
        "",
        (RUNTIME + "of_a_batch_the_process_did_not_survive_the_settled_ones_are_copies",),
    ),
)
