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
GUARDED = "tests/integration/test_sqlite_guarded.py::test_"
LOOKED_AFTER = "tests/unit/test_looked_after.py::test_"
HARD = "tests/unit/test_hard_cases.py::test_"
MEANWHILE = "tests/unit/test_settled_meanwhile.py::test_"

ENGINES = (
    Mutant(
        "engine: a later version asks under the name of an earlier one",
        ENGINE,
        "nonce=leader.claim.nonce + 1",
        "nonce=leader.claim.nonce",
        (HARD + "a_version_does_not_get_the_grant_of_another_in_its_batch",),
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
        "consumer: a block that was interrupted counts as done",
        "src/eventonce/consumer.py",
        "        except BaseException as error:\n",
        "        except Exception as error:\n",
        (INTERRUPTED + "a_block_that_was_interrupted_is_not_done",),
    ),
)
