"""Breakages of the Lambda entry point, and of what it asks of batches and renewals."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

HANDLER = "src/eventonce/aws/handler.py"
BATCHED = "src/eventonce/aws/sqs_batch.py"
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
        "            visibility.change(records, outcomes, clock.left())\n",
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
        "routing: an object without a type is acknowledged",
        "src/eventonce/core/routing.py",
        "    if event.type:\n        return Outcome",
        "    if event:\n        return Outcome",
        (SOURCES + "what_nobody_knows_is_never_acknowledged_in_silence",),
    ),
    Mutant(
        "aws: a group goes on behind a failure",
        BATCHED,
        "            if outcome.ack:\n                groups.settled(record)\n",
        "            groups.settled(record)\n",
        (UNIT + "of_a_fifo_group_nothing_behind_a_failure_is_tried",),
    ),
    Mutant(
        "aws: what there was no time for is forgotten",
        BATCHED,
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
        "        outcomes += clock.process(consumer, some, attempts)\n",
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
        "if outcome.status in DEAD_LETTERS:",
        "if outcome.status in DEAD_LETTERS and not told:",
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
        "deadline: what was not begun counts as quick",
        DEADLINE,
        "ran = sum(one.status in RAN and one.reason != TOO_LATE for one in outcomes)",
        "ran = sum(one.status in RAN for one in outcomes)",
        (TIME + "what_has_not_begun_when_the_time_is_up_is_handed_back",),
    ),
)
