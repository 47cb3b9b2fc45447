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
        "worker: what is in work is not held",
        WORKER + "upkeep.py",
        "        kept = desk.kept_since(now - share)\n",
        "        kept: list[Delivery] = []\n",
        (WHOLE + "what_is_in_work_is_held_until_it_is_settled",),
    ),
    Mutant(
        "worker: what failed is acknowledged",
        WORKER + "hands.py",
        "                if outcome.ack:\n",
        "                if True:\n",
        (WORK + "what_fails_comes_again_later_and_ends_as_a_letter",),
    ),
    Mutant(
        "worker: a busy copy comes again at once",
        WORKER + "hands.py",
        "    return _pause(after, spread)",
        "    return _pause(0, spread)",
        (CRASHES + "a_busy_copy_is_pushed_back_to_the_end_of_the_lease",),
    ),
    Mutant(
        "worker: what stands behind a failed record of its group comes again before it",
        WORKER + "hands.py",
        "                    groups.settled(one)\n                else:\n",
        "                groups.settled(one)\n                if not outcome.ack:\n",
        (WORK + "a_fifo_queue_keeps_the_order_of_a_group_with_a_failing_record",),
    ),
    Mutant(
        "worker: what was not begun is not given back",
        WORKER + "worker.py",
        "        unbegun = self._desk.close()\n",
        "        unbegun = self._desk.close()[:0]\n",
        (WHOLE + "an_ending_worker_gives_back_what_it_had_not_begun",),
    ),
    Mutant(
        "worker: requests under way are not waited for",
        WORKER + "desk.py",
        "            while (self._at_hand or self._promised) and",
        "            while self._at_hand and",
        (WHOLE + "an_ending_worker_gives_back_what_still_comes_in",),
    ),
    Mutant(
        "worker: what could not be finished keeps its lease",
        WORKER + "worker.py",
        "            self._consumer.abandon()\n",
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
        "worker: goes on receiving while the store is away",
        WORKER + "receiving.py",
        "        if self._store.away:\n",
        "        if False:\n",
        (OUTAGES + "while_the_store_is_away_nothing_is_received_and_then_the_work_goes_on",),
    ),
    Mutant(
        "worker: gives up settling as soon as others do",
        WORKER + "worker.py",
        "        self._consumer.settle_with(PATIENCE)\n",
        "",
        (OUTAGES + "a_store_that_is_away_when_a_handler_returns_costs_no_second_run",),
    ),
    Mutant(
        "worker: an acknowledgement that failed is forgotten",
        WORKER + "leaving.py",
        "                    self._settled += settled\n                    self._later += later\n",
        "                    self._desk.gone(settled)\n",
        (OUTAGES + "what_ran_while_the_queue_was_away_is_acknowledged_when_it_is_back",),
    ),
    Mutant(
        "worker: receives more than it can work on",
        WORKER + "desk.py",
        "            promised = min(most, self._free())\n",
        "            promised = most\n",
        (WORK + "handlers_run_side_by_side_within_the_bound_and_no_more_is_received",),
    ),
    Mutant(
        "worker: async handlers have no bound",
        WORKER + "pace.py",
        "        free = self._concurrency - in_work if self._side_by_side else MOST\n",
        "        free = MOST\n",
        (PARTS + "async_handlers_run_side_by_side_so_their_number_is_the_bound",),
    ),
    Mutant(
        "worker: few quick events wait for a slow one",
        WORKER + "desk.py",
        "        called = self._work.wait(QUICK)\n",
        "        called = self._work.wait()\n",
        (WORK + "quick_events_do_not_wait_for_a_slow_one",),
    ),
    Mutant(
        "worker: what a hand leaves waits until somebody comes back",
        WORKER + "desk.py",
        "            self._wake()\n            return taken\n",
        "            return taken\n",
        (WHOLE + "what_comes_again_does_not_wait_for_a_slow_one_that_came_again_too",),
    ),
    Mutant(
        "worker: one event that the store cannot hold makes it away",
        WORKER + "hands.py",
        "AWAY: Final = (StoreUnavailable, StoreMismatch)\n",
        "AWAY: Final = StoreError\n",
        (WHOLE + "an_event_that_the_store_cannot_hold_does_not_make_the_store_away",),
    ),
    Mutant(
        "worker: ends when a queue that let us in refuses for a while",
        WORKER + "receiving.py",
        "        except EventonceError as error:\n            if not",
        "        except SourceUnavailable as error:\n            if not",
        (WHOLE + "a_queue_that_never_let_us_in_ends_the_worker_and_one_that_did_does_not",),
    ),
    Mutant(
        "worker: what killed a worker is taken with others",
        WORKER + "desk.py",
        "            if taken[0].times == 1:\n",
        "            if True:\n",
        (PARTS + "what_comes_again_is_taken_alone",),
    ),
    Mutant(
        "worker: limps on when a thread has died",
        WORKER + "crew.py",
        "                self._news.put(Died(name, error))\n",
        "                pass\n",
        (WHOLE + "a_worker_whose_side_task_dies_stops_with_its_error",),
    ),
    Mutant(
        "worker: is ready while it ends",
        WORKER + "worker.py",
        "and self._store.fine and not self._draining,",
        "and self._store.fine,",
        (OUTAGES + "the_health_endpoint_tells_the_truth",),
    ),
    Mutant(
        "worker: is ready before the queue has answered",
        WORKER + "worker.py",
        "        answers = queue.fine or (queue.known and not queue.away and self._desk.full)\n",
        "        answers = not queue.away\n",
        (OUTAGES + "expired_credentials_are_read_anew",),
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
    Mutant(
        "worker: nobody helps where one handler keeps the others waiting",
        WORKER + "desk.py",
        "                    self._calls.append(line)\n",
        "",
        (LINE + "quick_events_taken_with_a_slow_one_run_beside_it",),
    ),
    Mutant(
        "worker: what is helped with is left before it has ended",
        WORKER + "line.py",
        "            self._left.wait_for(lambda: not self._helpers)\n",
        "",
        (LINE + "a_line_is_closed_only_when_nobody_is_at_it",),
    ),
    Mutant(
        "worker: a failure waits for all that were taken with it",
        WORKER + "line.py",
        "            if not self._helpers and time.monotonic() > until:\n                return\n",
        "",
        (LINE + "what_has_returned_after_a_while_is_settled_unless_somebody_helps",),
    ),
)
