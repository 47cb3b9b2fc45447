"""Breakages of the PostgreSQL store: locks left out, clocks read early, blocks left open."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

STORE = "src/eventonce/stores/postgres/"
AT_WORK = "tests/integration/test_postgres_{}.py::test_{}"
PARTS = "tests/integration/test_postgres.py::test_{}"
ORM = "tests/integration/test_orm_{}.py::test_{}"
CONTRACT = "tests/contract/test_postgres.py::TestPostgres18::test_case[{}]"

NO_DEADLOCK = (AT_WORK.format("locks", "no_deadlock_whatever_is_done_at_once"),)
CLOCK = (AT_WORK.format("locks", "the_clock_is_read_after_the_lock_was_had"),)
LOCKED = (AT_WORK.format("locks", "a_record_that_stays_locked_is_busy_and_holds_up_nobody_else"),)
BEGUN_ANEW = (AT_WORK.format("waiting", "what_was_forgotten_and_begun_anew_meanwhile_is_unknown"),)
BEGUN_TWICE = (
    AT_WORK.format("waiting", "of_two_who_begin_a_key_the_second_waits_for_the_first_and_is_busy"),
)
LAW = (CONTRACT.format("every_answer_is_the_laws"),)
HOLES = ("tests/contract/test_postgres.py::TestPostgres18::test_hole",)

EARLY = "moment := coalesce(instant, floor(extract(epoch FROM statement_timestamp()) * 1000));"

POSTGRES = (
    Mutant(
        "postgres: an unchanged version keeps the ties before it",
        STORE + "claim.sql",
        "CASE WHEN d.law = 'unchanged' THEN ARRAY[d.digest] WHEN NOT d.blank THEN d.r_digests END",
        "CASE WHEN NOT d.blank THEN d.r_digests END",
        HOLES,
    ),
    Mutant(
        "postgres: an unchanged version shortens the memory",
        STORE + "claim.sql",
        "ELSE greatest(d.r_expires, moment + d.remember)",
        "ELSE moment + d.remember",
        HOLES,
    ),
    Mutant(
        "postgres: a stale version waits for the lease",
        STORE + "claim.sql",
        """WHEN s."order" < s.r_order THEN 'stale'""",
        """WHEN s."order" < s.r_order AND moment >= s.r_held_until THEN 'stale'""",
        HOLES,
    ),
    Mutant(
        "postgres: settlements lock their rows in any order",
        STORE + "settle.sql",
        "WHERE r.key = ANY (keys) ORDER BY r.key FOR UPDATE\n        ) AS l;\n    ELSE",
        "WHERE r.key = ANY (keys) ORDER BY random() FOR UPDATE\n        ) AS l;\n    ELSE",
        NO_DEADLOCK,
    ),
    Mutant(
        "postgres: settlements lock no rows",
        STORE + "settle.sql",
        "WHERE r.key = ANY (keys) ORDER BY r.key FOR UPDATE\n        ) AS l;\n    ELSE",
        "WHERE r.key = ANY (keys) ORDER BY r.key\n        ) AS l;\n    ELSE",
        CLOCK,
    ),
    Mutant(
        "postgres: a settlement reads the clock before its locks",
        STORE + "settle.sql",
        "moment := eventonce.clock_1(instant);",
        EARLY,
        CLOCK,
    ),
    Mutant(
        "postgres: a settlement that was told it may not wait waits",
        STORE + "settle.sql",
        "FOR UPDATE SKIP LOCKED",
        "FOR UPDATE",
        LOCKED,
    ),
    Mutant(
        "postgres: what was begun anew while a settlement waited is taken for its own",
        STORE + "settle.sql",
        "WHEN patient AND NOT s.ours THEN 'unknown'",
        "WHEN false THEN 'unknown'",
        BEGUN_ANEW,
    ),
    Mutant(
        "postgres: a settlement counts every row as locked",
        STORE + "settle.sql",
        "cardinality(locked) = cardinality(keys) OR e.key = ANY (locked) AS ours",
        "true AS ours",
        BEGUN_ANEW,
    ),
    Mutant(
        "postgres: any token settles",
        STORE + "settle.sql",
        "WHEN s.token <> s.r_token THEN 'fenced'",
        "WHEN false THEN 'fenced'",
        LAW,
    ),
    Mutant(
        "postgres: what expired is settled",
        STORE + "settle.sql",
        "WHEN NOT s.lives THEN 'unknown'",
        "WHEN s.r_token IS NULL THEN 'unknown'",
        LAW,
    ),
    Mutant(
        "postgres: a renewal takes back what was released",
        STORE + "settle.sql",
        "WHEN s.nonce <> s.r_nonce THEN 'fenced'",
        "WHEN false THEN 'fenced'",
        LAW,
    ),
    Mutant(
        "postgres: new keys are inserted in any order",
        STORE + "claim.sql",
        "ORDER BY a.key\n            ON CONFLICT (key) DO NOTHING",
        "ORDER BY random()\n            ON CONFLICT (key) DO NOTHING",
        NO_DEADLOCK,
    ),
    Mutant(
        "postgres: of two who begin a key the second overwrites the first",
        STORE + "claim.sql",
        "ON CONFLICT (key) DO NOTHING",
        "ON CONFLICT (key) DO UPDATE SET nonce = excluded.nonce",
        BEGUN_TWICE,
    ),
    Mutant(
        "postgres: who did not insert a key is granted it",
        STORE + "claim.sql",
        "WHERE cardinality(won) = cardinality(fresh) OR a.key = ANY (won);\n"
        "        IF cardinality(won) < cardinality(fresh) THEN",
        "WHERE true;\n        IF false THEN",
        BEGUN_TWICE,
    ),
    Mutant(
        "postgres: claims lock their rows in any order",
        STORE + "claim.sql",
        "WHERE r.key = ANY (loud) ORDER BY r.key FOR UPDATE\n        ) AS l;\n    ELSIF",
        "WHERE r.key = ANY (loud) ORDER BY random() FOR UPDATE\n        ) AS l;\n    ELSIF",
        NO_DEADLOCK,
    ),
    Mutant(
        "postgres: a claim reads the clock before its locks",
        STORE + "claim.sql",
        "    moment := eventonce.clock_1(instant);",
        f"    {EARLY}",
        CLOCK,
    ),
    Mutant(
        "postgres: a claim writes a row that another has locked",
        STORE + "claim.sql",
        "WHERE d.writes AND d.ours",
        "WHERE d.writes",
        LOCKED,
    ),
    Mutant(
        "postgres: a locked row is granted",
        STORE + "claim.sql",
        "coalesce(j.key = ANY (locked), false) AS ours",
        "true AS ours",
        LOCKED,
    ),
    Mutant(
        "postgres: a sweep waits for what somebody works on",
        STORE + "sweep.sql",
        "FOR UPDATE SKIP LOCKED",
        "FOR UPDATE",
        (AT_WORK.format("locks", "a_sweep_leaves_alone_what_somebody_works_on"),),
    ),
    Mutant(
        "postgres: a settlement that found its row locked is kept",
        STORE + "codec.py",
        'None if answer == "locked" else answer',
        '"kept" if answer == "locked" else answer',
        LOCKED,
    ),
    Mutant(
        "postgres: a key that comes twice in a batch is written by one statement",
        STORE + "codec.py",
        "turn = times.get(key, 0)",
        "turn = 0",
        (
            "tests/integration/test_postgres.py::test_a_key_may_come_twice_in_a_batch_of_settlements",
        ),
    ),
    Mutant(
        "postgres: a block is committed though the server will not",
        STORE + "store.py",
        "            yield opened\n            opened.check()\n",
        "            yield opened\n",
        (
            AT_WORK.format(
                "block", "an_unguarded_run_that_caught_an_error_of_the_database_has_failed"
            ),
        ),
    ),
    Mutant(
        "postgres: a completion is written after its block has ended",
        STORE + "store.py",
        "        self._refuse_unusable()\n        with self._connections.ours",
        "        with self._connections.ours",
        (AT_WORK.format("block", "nothing_is_settled_in_such_a_block"),),
    ),
    Mutant(
        "postgres: a completion is written in a transaction that the handler began",
        STORE + "store.py",
        "        if not marked:\n",
        "        if False:\n",
        (AT_WORK.format("block", "nothing_is_settled_in_such_a_block"),),
    ),
    Mutant(
        "postgres: what a handler writes after a ROLLBACK is committed by itself",
        STORE + "guarded_connection.py",
        "            refuse_outside(self)\n            return super().wait(gen, *args",
        "            return super().wait(gen, *args",
        (AT_WORK.format("block", "nothing_is_settled_in_such_a_block"),),
    ),
    Mutant(
        "postgres: a handler's writes are committed though it raised",
        STORE + "connections.py",
        '"COMMIT" if error is None else "ROLLBACK"',
        '"COMMIT"',
        (AT_WORK.format("exactly_once", "a_handler_that_fails_after_writing_has_written_nothing"),),
    ),
    Mutant(
        "postgres: a handler's transaction holds a renewal against it",
        STORE + "connections.py",
        "BEGIN ISOLATION LEVEL READ COMMITTED",
        "BEGIN ISOLATION LEVEL REPEATABLE READ",
        (
            AT_WORK.format(
                "exactly_once",
                "a_lease_is_renewed_while_the_handler_has_its_transaction_open",
            ),
        ),
    ),
    Mutant(
        "postgres: a forked process goes on with its parent's connections",
        STORE + "connections.py",
        "        pid = os.getpid()\n",
        "        pid = 0\n",
        (AT_WORK.format("connections", "one_store_serves_both_sides_of_a_fork"),),
    ),
    Mutant(
        "postgres: answers in SQL_ASCII are read as bytes",
        STORE + "codec.py",
        'if connection.info.encoding == "ascii":',
        "if False:",
        (AT_WORK.format("encoding", "the_store_works_over_a_pool_of_any_encoding"),),
    ),
    Mutant(
        "postgres: a long call is one statement",
        STORE + "codec.py",
        "if len(batch) <= PART and len(set(keys)) == len(keys):",
        "if len(set(keys)) == len(keys):",
        (PARTS.format("a_call_of_any_length_is_made_in_parts"),),
    ),
    Mutant(
        "postgres: a later part that fails takes the grants before it along",
        STORE + "codec.py",
        "if failed is None or not answers:",
        "if True:",
        (PARTS.format("answers_of_earlier_parts_are_kept_if_a_later_one_fails"),),
    ),
    Mutant(
        "postgres: check asks nobody whether the functions may be called",
        STORE + "admin.py",
        "AND NOT has_function_privilege(p.oid, 'EXECUTE')",
        "AND false",
        (AT_WORK.format("schema", "check_names_what_is_missing"),),
    ),
    Mutant(
        "postgres: the schema's name is not quoted",
        STORE + "uri.py",
        """return self.schema if self.schema == SCHEMA else f'"{self.schema}"'""",
        "return self.schema",
        (AT_WORK.format("schema", "any_schema_will_do"),),
    ),
    Mutant(
        "orm: a rollback undoes nothing",
        "src/eventonce/orm/nested.py",
        '        """Undo what was written since the last commit."""\n'
        "        self._outer.execute(UNDO)\n",
        '        """Undo what was written since the last commit."""\n',
        (ORM.format("sqlalchemy", "a_session_may_commit_and_roll_back_as_it_is_used_to"),),
    ),
    Mutant(
        "orm: Django reads instants in the server's time zone",
        "src/eventonce/orm/django.py",
        "            _set_time_zone(outer, wrapper.timezone_name)\n",
        "",
        (ORM.format("django", "what_is_read_is_as_django_reads_it"),),
    ),
)
