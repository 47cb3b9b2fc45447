"""Breakages of the worker: what loses events, runs them twice, or lets them wait for nobody."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

WORKER = "src/eventonce/worker/"
SOURCE = "src/eventonce/sources/"
PARTS = "tests/unit/test_worker_parts.py::test_"
WHOLE = "tests/unit/test_worker_whole.py::test_"
CRASHES = "tests/integration/worker/test_crashes.py::test_"
ENDING = "tests/integration/worker/test_ending.py::test_"
OUTAGES = "tests/integration/worker/test_outages.py::test_"
LINE = "tests/unit/test_worker_line.py::test_"
CAPTURE = "tests/unit/test_worker_capture.py::test_"
SQS = "tests/unit/test_sqs.py::test_"
WORK = "tests/integration/worker/test_work.py::test_"

WORKERS = (
    Mutant(
        "worker: what could not be finished keeps its lease",
        WORKER + "worker.py",
        "            self._consumer.runtime.abandon()\n",
        "            pass\n",
        (ENDING + "what_does_not_finish_in_time_is_freed_and_runs_elsewhere_at_once",),
    ),
    Mutant(
        "worker: what could not be finished stays invisible",
        WORKER + "worker.py",
        "            self._source.postpone([(one, AFTER_US) for one in unfinished])\n",
        "            pass\n",
        (ENDING + "what_does_not_finish_in_time_is_freed_and_runs_elsewhere_at_once",),
    ),
    Mutant(
        "worker: is ready while it ends",
        WORKER + "worker.py",
        "and self._store.fine and not self._draining and not stuck,",
        "and self._store.fine and not stuck,",
        (OUTAGES + "the_health_endpoint_tells_the_truth",),
    ),
    Mutant(
        "sqs: two processes share a client after a fork",
        "src/eventonce/aws/sessions.py",
        "        if self._process != os.getpid():\n",
        "        if False:\n",
        ("tests/unit/test_aws_sessions.py::test_a_fork_makes_a_client_of_its_own",),
    ),
    Mutant(
        "sqs: keeps a client whose credentials have expired",
        "src/eventonce/aws/errors.py",
        'frozenset[Kind](("expired", "no_credentials", ',
        'frozenset[Kind](("no_credentials", ',
        (OUTAGES + "expired_credentials_are_read_anew",),
    ),
    Mutant(
        "sqs: keeps a client that found no credentials",
        "src/eventonce/aws/errors.py",
        '("expired", "no_credentials", ',
        '("expired", ',
        (SQS + "a_client_that_found_no_credentials_is_made_anew_until_it_does",),
    ),
    Mutant(
        "sqs: a message is held beyond twelve hours",
        SOURCE + "sqs.py",
        "    return SQS_VISIBILITY_SECONDS - MARGIN - (now - delivery.since)",
        "    return SQS_VISIBILITY_SECONDS",
        (
            "tests/unit/test_sqs_source.py::test_a_message_is_held_no_longer_than_twelve_hours_in_all",
        ),
    ),
    Mutant(
        "sqs: half a second is no time",
        SOURCE + "sqs.py",
        "min(math.ceil(seconds), _left(one, now))",
        "min(int(seconds), _left(one, now))",
        (
            "tests/unit/test_sqs_source.py::test_a_message_is_held_no_longer_than_twelve_hours_in_all",
        ),
    ),
    Mutant(
        "lines: what failed is not read again",
        SOURCE + "files.py",
        "            return self._exhausted and not self._later\n",
        "            return self._exhausted\n",
        (CAPTURE + "what_is_postponed_is_given_again_when_its_time_has_come",),
    ),
    Mutant(
        "lines: what was read before a broken file is lost with it",
        SOURCE + "files.py",
        "            bodies.extend(islice(self._events, most))\n",
        "            bodies = list(islice(self._events, most))\n",
        (CAPTURE + "a_broken_file_costs_neither_what_stands_before_it_nor_the_files_behind_it",),
    ),
)
