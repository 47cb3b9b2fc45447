"""Breakages of the engine and its runners: what loses events or runs them twice."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

ENGINE = "src/eventonce/core/engine.py"
RUNNERS = "src/eventonce/runtime/inline.py"
RENEWAL = "src/eventonce/runtime/renewal.py"
AIO = "src/eventonce/runtime/on_asyncio.py"
PORTAL = "src/eventonce/runtime/loop_thread.py"
CONSUMER = "tests/unit/test_consumer.py::test_"
EXACTLY = "tests/integration/test_exactly_once.py::test_"
INTERRUPTED = "tests/unit/test_interrupted.py::test_"
LENT = "tests/integration/test_sqlite_lent.py::test_"
LOOKED_AFTER = "tests/unit/test_looked_after.py::test_"
HARD = "tests/unit/test_hard_cases.py::test_"
MEANWHILE = "tests/unit/test_settled_meanwhile.py::test_"

ENGINES = (
    Mutant(
        "engine: a copy whose leader failed is acknowledged",
        ENGINE,
        'return _made(task, "busy", f"its copy in the same batch is {led.status}", led)',
        'return _made(task, "duplicate", f"its copy in the same batch is {led.status}", led)',
        (CONSUMER + "a_copy_of_what_failed_in_its_batch_comes_again",),
    ),
    Mutant(
        "engine: a later version asks under the name of an earlier one",
        ENGINE,
        "nonce=leader.claim.nonce + 1",
        "nonce=leader.claim.nonce",
        (HARD + "a_version_does_not_get_the_grant_of_another_in_its_batch",),
    ),
    Mutant(
        "engine: a refused completion counts as done",
        ENGINE,
        '        if kept != "kept":\n            task.outcome = _again(task, "fenced"',
        '        if False:\n            task.outcome = _again(task, "fenced"',
        ("tests/unit/test_hard_cases.py::test_a_worker_that_was_overtaken_is_told",),
    ),
    Mutant(
        "engine: what could not be stored is acknowledged",
        ENGINE,
        "            if task.outcome.ack:\n",
        "            if False:\n",
        (CONSUMER + "a_completion_that_cannot_be_stored_is_not_acknowledged",),
    ),
    Mutant(
        "engine: a letter that could not be kept is acknowledged",
        ENGINE,
        "    if lost is not None:\n        for task in lettered:",
        "    if False:\n        for task in lettered:",
        (CONSUMER + "a_letter_that_cannot_be_kept_is_not_acknowledged",),
    ),
    Mutant(
        "engine: what was refused to the renewal counts as done",
        ENGINE,
        "    if not settling:\n",
        "    settling = [task for task in settling if task.kept is None]\n    if not settling:\n",
        (MEANWHILE + "a_completion_that_was_refused_to_the_renewal_is_not_called_done",),
    ),
    Mutant(
        "engine: a run counts as finished before its error is known",
        ENGINE,
        "    task.error = error\n    if value",
        "    task.finished = True\n    task.error = error\n    if value",
        (MEANWHILE + "a_run_that_raised_is_not_completed_by_who_abandons_it_at_that_moment",),
    ),
    Mutant(
        "engine: the last attempt is released like any other",
        ENGINE,
        "    if (spent or last) and not task.unguarded:",
        "    if False:",
        (CONSUMER + "a_failed_handler_is_tried_again_and_then_kept_as_a_letter",),
    ),
    Mutant(
        "runners: a transaction commits although its completion was refused",
        RUNNERS,
        "                self.undo(_NotKept())\n",
        "                self._context.__exit__(None, None, None)\n",
        (EXACTLY + "a_run_that_was_overtaken_has_its_writes_undone",),
    ),
    Mutant(
        "runners: an interrupted batch completes nothing",
        RUNNERS,
        "    if not task.finished or task.in_transaction:\n",
        "    if True:\n",
        (CONSUMER + "an_interrupted_batch_keeps_what_was_done_and_frees_the_rest",),
    ),
    Mutant(
        "runners: a run is completed without the transaction that holds its effect",
        RUNNERS,
        "    if not task.finished or task.in_transaction:\n",
        "    if not task.finished:\n",
        (MEANWHILE + "a_run_abandoned_while_its_transaction_commits_is_not_completed_without_it",),
    ),
    Mutant(
        "renewal: every wave begins the wait anew",
        RENEWAL,
        "            task.renewed = task.renewed or now\n",
        "            task.renewed = now\n",
        (HARD + "leases_are_renewed_over_the_waves_of_a_long_batch",),
    ),
    Mutant(
        "renewal: nothing is renewed",
        RENEWAL,
        '[Settlement(_asked(task, now), task.token, "extend") for task in live]',
        "[]",
        ("tests/unit/test_renewal.py::test_a_handler_longer_than_its_lease_keeps_it",),
    ),
    Mutant(
        "engine: an older key that is busy is not asked",
        ENGINE,
        '            if verdict.kind != "run":\n                decided',
        '            if verdict.kind not in ("run", "busy"):\n                decided',
        (HARD + "what_runs_under_an_older_key_is_not_run_beside_it",),
    ),
    Mutant(
        "engine: the wait before the next attempt has no end",
        ENGINE,
        "return int(min(LONGEST_BACKOFF, 1000 * 2 ** min(attempt - 1, 20)))",
        "return int(1000 * 2 ** min(attempt - 1, 20))",
        (CONSUMER + "no_failure_waits_longer_than_a_queue_can_postpone_it",),
    ),
    Mutant(
        "engine: two consumers share the dead letter of what is no event",
        ENGINE,
        'blake2b(consumer.encode() + b"\\0" + raw,',
        "blake2b(raw,",
        (CONSUMER + "two_consumers_on_one_store_each_have_a_dead_letter_of_what_is_no_event",),
    ),
    Mutant(
        "redrive: a dead letter that another runs at that moment is dropped",
        "src/eventonce/core/redrive.py",
        '"unchanged", "unguarded")',
        '"unchanged", "unguarded", "busy")',
        (CONSUMER + "redrive_keeps_a_dead_letter_that_another_runs_at_that_moment",),
    ),
    Mutant(
        "consumer: a block that was interrupted counts as done",
        "src/eventonce/consumer.py",
        "        except BaseException as error:\n",
        "        except Exception as error:\n",
        (INTERRUPTED + "a_block_that_was_interrupted_is_not_done",),
    ),
    Mutant(
        "consumer: a block that was left is looked after for ever",
        "src/eventonce/consumer.py",
        "            self._world.renewer.leave(ticket)\n",
        "",
        (LOOKED_AFTER + "a_batch_that_has_ended_is_looked_after_no_longer",),
    ),
    Mutant(
        "runners: a batch that has ended is looked after for ever",
        RUNNERS,
        "            self._world.renewer.leave(ticket)\n",
        "            pass\n",
        (LOOKED_AFTER + "a_batch_that_has_ended_is_looked_after_no_longer",),
    ),
    Mutant(
        "runners: what another took over while it waited is run",
        RUNNERS,
        "    if task.lost:\n",
        "    if False:\n",
        (LOOKED_AFTER + "what_another_took_over_while_it_waited_is_not_run",),
    ),
    Mutant(
        "runners: a job has a connection after its handler returned",
        RUNNERS,
        "        self._job.connect = None\n        if self._context is None or",
        "        if self._context is None or",
        (LENT + "a_job_kept_after_its_handler_has_no_connection_and_opens_none",),
    ),
    Mutant(
        "runners: a job has a connection after its handler raised",
        RUNNERS,
        "        self._job.connect = None\n        context, self._context",
        "        context, self._context",
        (LENT + "a_job_kept_after_its_handler_has_no_connection_and_opens_none",),
    ),
    Mutant(
        "aio: a batch that has ended is looked after for ever",
        AIO,
        "            self._world.renewer.leave(ticket)\n",
        "            pass\n",
        (
            LOOKED_AFTER + "a_batch_that_has_ended_is_looked_after_no_longer",
            LOOKED_AFTER + "a_batch_that_was_cancelled_is_looked_after_no_longer",
        ),
    ),
    Mutant(
        "aio: a store call that is under way is not waited for",
        AIO,
        "return await asyncio.shield(call)",
        "return await call",
        (INTERRUPTED + "a_batch_that_is_cancelled_waits_for_the_store_call_under_way",),
    ),
    Mutant(
        "aio: what was granted to a batch that is cancelled stays held",
        AIO,
        "                    if verdict.token\n",
        "                    if False\n",
        (
            INTERRUPTED
            + "a_batch_cancelled_during_a_store_call_keeps_what_was_done_and_frees_the_rest",
        ),
    ),
    Mutant(
        "aio: what has returned in a batch that is cancelled runs again",
        AIO,
        "            await effects.interrupted(batch.tasks)\n",
        "",
        (
            INTERRUPTED
            + "a_batch_cancelled_during_a_store_call_keeps_what_was_done_and_frees_the_rest",
        ),
    ),
    Mutant(
        "consumer: what has returned in a batch that is interrupted runs again",
        "src/eventonce/consumer.py",
        "            salvage(batch.tasks, self._world.store)\n",
        "",
        (INTERRUPTED + "a_batch_interrupted_in_a_store_call_keeps_what_was_done",),
    ),
    Mutant(
        "runners: an interrupted batch buries what has no dead letter",
        RUNNERS,
        '    if task.outcome.status == "dead":\n        # Perhaps',
        "    if False:\n        # Perhaps",
        (INTERRUPTED + "a_batch_interrupted_in_a_store_call_keeps_what_was_done",),
    ),
    Mutant(
        "portal: a batch goes on though its caller was interrupted",
        PORTAL,
        "            loop.call_soon_threadsafe(cancel)\n            ended.get()\n",
        "",
        (
            INTERRUPTED + "a_batch_whose_caller_was_interrupted_is_ended_and_freed",
            INTERRUPTED + "a_caller_who_is_interrupted_at_any_instant_leaves_nothing_running",
        ),
    ),
    Mutant(
        "renewal: a batch is never left",
        RENEWAL,
        "            self._watched.pop(ticket, None)\n",
        "            pass\n",
        (LOOKED_AFTER + "a_batch_that_has_ended_is_looked_after_no_longer",),
    ),
    Mutant(
        "renewal: a store that fails once is not asked again",
        RENEWAL,
        'trying again: %s", len(live), error)\n            return\n',
        'trying again: %s", len(live), error)\n            raise\n',
        (LOOKED_AFTER + "a_store_that_fails_once_is_asked_again_for_the_same_lease",),
    ),
    Mutant(
        "renewal: what could not be completed once is left to the end of its batch",
        RENEWAL,
        'trying again: %s", len(fresh), error)\n                return\n',
        'trying again: %s", len(fresh), error)\n                raise\n',
        (LOOKED_AFTER + "a_store_that_fails_once_is_asked_again_to_complete_what_has_returned",),
    ),
    Mutant(
        "renewal: a lease is renewed at its last moment",
        RENEWAL,
        "SHARE: Final = 3",
        "SHARE: Final = 1",
        (LOOKED_AFTER + "a_lease_is_renewed_early_enough_for_two_renewals_to_fail",),
    ),
    Mutant(
        "renewal: a thread that ended is not replaced",
        RENEWAL,
        "                if self._thread is own:\n                    self._thread = None\n",
        "                pass\n",
        (LOOKED_AFTER + "a_thread_that_ended_is_replaced_with_the_next_batch",),
    ),
)
