"""Breakages of the engine and its runners: what loses events or runs them twice."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

ENGINE = "src/eventonce/engine.py"
RUNNERS = "src/eventonce/runners.py"
RENEWAL = "src/eventonce/renewal.py"
CONSUMER = "tests/unit/test_consumer.py::test_"
EXACTLY = "tests/integration/test_exactly_once.py::test_"
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
        "        if task.finished and not task.in_transaction\n",
        "        if False\n",
        (CONSUMER + "an_interrupted_batch_keeps_what_was_done_and_frees_the_rest",),
    ),
    Mutant(
        "runners: a run is completed without the transaction that holds its effect",
        RUNNERS,
        "        if task.finished and not task.in_transaction\n",
        "        if task.finished\n",
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
)
