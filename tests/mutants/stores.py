"""Breakages of the stores: the mistakes that have been made with locks and transactions."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

MEMORY = "src/eventonce/stores/memory.py"
SQLITE = "src/eventonce/stores/sqlite/"
UNDER_LOCK = "tests/unit/test_memory.py::test_"
CONTRACT = "tests/contract/test_stores.py::Test{}::test_case[{}]"
HOLE = "tests/contract/test_stores.py::TestSQLite::test_hole[{}]"
AT_WORK = "tests/integration/test_sqlite.py::test_"
FILE = "tests/integration/test_sqlite_file.py::test_"
MEMORY_INTERRUPTED = "tests/unit/test_memory_interrupted.py::test_"
INTERRUPTED = "tests/integration/test_sqlite_interrupted.py::test_"
GUARDED = "tests/integration/test_sqlite_guarded.py::test_"

STORES = (
    Mutant(
        "memory: claims are judged without the lock",
        MEMORY,
        "        with self._lock:\n"
        "            now = self._clock() if now is None else now\n"
        "            for claim in claims:",
        "        if True:\n"
        "            now = self._clock() if now is None else now\n"
        "            for claim in claims:",
        (UNDER_LOCK + "two_claims_at_once_are_one_run",),
    ),
    Mutant(
        "memory: settlements are judged without the lock",
        MEMORY,
        "        with self._lock:\n"
        "            now = self._clock() if now is None else now\n"
        "            for settlement in settlements:",
        "        if True:\n"
        "            now = self._clock() if now is None else now\n"
        "            for settlement in settlements:",
        (UNDER_LOCK + "a_renewal_at_the_same_moment_does_not_undo_a_completion",),
    ),
    Mutant(
        "memory: a settlement is not written",
        MEMORY,
        "                    changed[key] = record\n                answers",
        "                    pass\n                answers",
        (CONTRACT.format("Memory", "every_answer_is_the_laws"),),
    ),
    Mutant(
        "memory: a sweep drops what lives",
        MEMORY,
        "if record is not None and (now < record.expires or now < record.held_until):",
        "if False:",
        (CONTRACT.format("Memory", "a_sweep_goes_through_everything_in_small_steps"),),
    ),
    Mutant(
        "memory: what expired is shown",
        MEMORY,
        "return record if record is not None and ledger.lives(record, self._clock()) else None",
        "return record",
        (CONTRACT.format("Memory", "an_expired_record_is_not_shown"),),
    ),
    Mutant(
        "memory: a letter put again replaces the first",
        MEMORY,
        "self._letters.setdefault(letter.id, letter)",
        "self._letters[letter.id] = letter",
        (CONTRACT.format("Memory", "a_letter_put_twice_is_one_letter"),),
    ),
    Mutant(
        "sqlite: a transaction takes its lock at its first write",
        SQLITE + "admin.py",
        'lambda: execute(connection, "BEGIN IMMEDIATE")',
        'lambda: execute(connection, "BEGIN")',
        (AT_WORK + "a_call_holds_the_file_from_before_it_reads_until_it_commits",),
    ),
    Mutant(
        "sqlite: the commit is forgotten",
        SQLITE + "connections.py",
        'connection.execute("COMMIT")',
        'connection.execute("ROLLBACK")',
        (AT_WORK + "completing_what_is_unknown_leaves_nothing_behind",),
    ),
    Mutant(
        "sqlite: a call that is interrupted leaves its transaction open",
        SQLITE + "connections.py",
        "if connection is not None and connection.in_transaction:",
        "if False:",
        (INTERRUPTED + "an_interruption_at_any_instant_leaves_nothing_open[settled]",),
    ),
    Mutant(
        "sqlite: any token completes a fact",
        SQLITE + "queries.py",
        '" WHERE token = -excluded.token AND until > ?1"',
        '" WHERE until > ?1"',
        (AT_WORK + "no_token_but_the_latest_completes",),
    ),
    Mutant(
        "sqlite: a fact that expired is completed",
        SQLITE + "queries.py",
        '" WHERE token = -excluded.token AND until > ?1"',
        '" WHERE token = -excluded.token AND ?1 = ?1"',
        (AT_WORK + "a_record_that_expired_before_it_was_swept_is_unknown",),
    ),
    Mutant(
        "sqlite: a completion makes a record that was not there",
        SQLITE + "queries.py",
        '"DELETE FROM eventonce_records INDEXED BY eventonce_strays WHERE token < 0"',
        '"DELETE FROM eventonce_records INDEXED BY eventonce_strays WHERE token < 0 AND 0"',
        (AT_WORK + "completing_what_is_unknown_leaves_nothing_behind",),
    ),
    Mutant(
        "sqlite: a first claim overwrites whoever was there",
        SQLITE + "queries.py",
        '" ON CONFLICT (key) DO NOTHING"',
        '" ON CONFLICT (key) DO UPDATE SET token = excluded.token"',
        (AT_WORK + "a_key_twice_in_a_batch_is_judged_in_the_order_asked",),
    ),
    Mutant(
        "sqlite: a verdict is not written",
        SQLITE + "queries.py",
        "    write(connection, changed)\n    return verdicts",
        "    return verdicts",
        (CONTRACT.format("SQLite", "every_answer_is_the_laws"),),
    ),
    Mutant(
        "sqlite: a settlement is not written",
        SQLITE + "queries.py",
        "    write(connection, changed)\n    return answers",
        "    return answers",
        (HOLE.format("a renewal holds off the takeover"),),
    ),
    Mutant(
        "sqlite: a record ends with its memory, though it is held",
        SQLITE + "codec.py",
        "return max(record.expires, record.held_until)",
        "return record.expires",
        (HOLE.format("a lease may be longer than the memory"),),
    ),
    Mutant(
        "sqlite: the caller's writes are committed though the block raised",
        SQLITE + "guarded_connection.py",
        "sqlite3.Connection.rollback(connection)",
        "sqlite3.Connection.commit(connection)",
        (AT_WORK + "a_run_that_was_overtaken_takes_its_writes_back",),
    ),
    Mutant(
        "sqlite: the caller may commit",
        SQLITE + "guarded_connection.py",
        "return sqlite3.SQLITE_DENY if self.denied",
        "return sqlite3.SQLITE_OK if self.denied",
        (GUARDED + "a_handler_that_ends_the_transaction_leaves_no_effect_behind",),
    ),
    Mutant(
        "sqlite: a statement after the transaction's end is committed alone",
        SQLITE + "guarded_connection.py",
        "    if not connection.in_transaction or connection.thread != get_ident():\n",
        "    if False:\n",
        (GUARDED + "a_connection_that_was_kept_runs_nothing_outside_of_a_transaction",),
    ),
    Mutant(
        "sqlite: a connection that was kept writes into another's transaction",
        SQLITE + "guarded_connection.py",
        " or connection.thread != get_ident():\n",
        ":\n",
        (GUARDED + "a_connection_that_was_kept_writes_into_nobody_elses_transaction",),
    ),
    Mutant(
        "sqlite: a connection that was closed is lent again",
        SQLITE + "store.py",
        "                    connections.guarded = connections.transaction = None\n",
        "                    connections.transaction = None\n",
        (GUARDED + "a_connection_closed_behind_our_back_costs_its_own_run_alone",),
    ),
    Mutant(
        "sqlite: threads do not take turns",
        SQLITE + "connections.py",
        "if self.holder is None and self._next() is waiter:",
        "if self._next() is waiter:",
        (AT_WORK + "a_renewal_that_waits_too_long_may_be_tried_again",),
    ),
    Mutant(
        "sqlite: a call of the store waits for all handlers that queue",
        SQLITE + "connections.py",
        "        self._first = list(self._calls)\n",
        "        self._first = []\n",
        (AT_WORK + "a_call_waits_for_one_transaction_and_handlers_take_theirs_in_order",),
    ),
    Mutant(
        "sqlite: handlers wait for as long as calls of the store come",
        SQLITE + "connections.py",
        "        for waiter in self._first:\n            if waiter in self._calls:\n",
        "        for waiter in self._calls:\n            if waiter in self._calls:\n",
        (AT_WORK + "calls_that_keep_coming_do_not_keep_a_handler_from_its_turn",),
    ),
    Mutant(
        "sqlite: a thread that was interrupted keeps its turn",
        SQLITE + "connections.py",
        "                    if lock.holder is waiter:\n"
        "                        lock.holder = None\n",
        "                    pass\n            lock.holder = None\n",
        (INTERRUPTED + "an_interruption_at_any_instant_leaves_nothing_open[settled]",),
    ),
    Mutant(
        "sqlite: a transaction that was interrupted as it began stays open",
        SQLITE + "store.py",
        "            self.__exit__(type(error), error, None)\n            raise",
        "            raise",
        (INTERRUPTED + "a_block_that_was_interrupted_as_it_was_entered_is_not_open",),
    ),
    Mutant(
        "sqlite: a transaction that ended inside its block counts",
        SQLITE + "store.py",
        "        if not self.connection.running:\n",
        "        if False:\n",
        (GUARDED + "a_transaction_that_ended_inside_its_block_is_noticed",),
    ),
    Mutant(
        "sqlite: what expired is dropped by sweeping alone",
        SQLITE + "store.py",
        "if self._looks >= LOOKS_AT_ONCE:",
        "if False:",
        (AT_WORK + "what_expired_is_dropped_by_the_claims_that_follow",),
    ),
    Mutant(
        "sqlite: a sweep drops what lives",
        SQLITE + "queries.py",
        '"DELETE FROM eventonce_records WHERE until <= ?3 AND key',
        '"DELETE FROM eventonce_records WHERE 0 < ?3 AND key',
        (
            AT_WORK + "what_lives_is_not_dropped_by_claims",
            AT_WORK + "a_sweep_goes_on_where_another_handle_stopped_and_begins_again",
        ),
    ),
    Mutant(
        "sqlite: a removed log goes unnoticed",
        SQLITE + "uri.py",
        'return str(self.path), f"{self.path}-wal", f"{self.path}-shm"',
        "return str(self.path), str(self.path), str(self.path)",
        (FILE + "a_log_that_was_removed_is_told_once_and_then_shared_again",),
    ),
    Mutant(
        "sqlite: a new file is for everybody to read",
        SQLITE + "admin.py",
        "os.mknod(path, 0o600)",
        "os.mknod(path, 0o644)",
        (FILE + "a_new_file_is_its_owners_alone",),
    ),
    Mutant(
        "memory: what expired is dropped by sweeping alone",
        MEMORY,
        "            self._sweep(LOOKS * len(claims), now)\n",
        "",
        (UNDER_LOCK + "what_expired_is_dropped_by_the_claims_that_follow",),
    ),
    Mutant(
        "memory: a batch that is interrupted is written in part",
        MEMORY,
        "                    changed[key] = record\n                    if known",
        "                    records[key] = record\n                    if known",
        (MEMORY_INTERRUPTED + "a_batch_that_is_interrupted_is_claimed_whole_or_not_at_all",),
    ),
)
