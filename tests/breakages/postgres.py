"""Breakages of the law and the locks as PostgreSQL has them: words of an SQL file replaced."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from eventonce.stores.postgres import PostgresStore, admin
from eventonce.testing.cases import law
from eventonce.testing.cases.steps import play
from eventonce.testing.contract import HOLES, StoreFactory
from tests.breakages.breakage import Breakage, Patch, replaced
from tests.integration import test_postgres_locks as locks
from tests.integration import test_postgres_waiting as waiting
from tests.servers.postgres import Cluster

Promise = Callable[[Cluster, PostgresStore], None]
OFTEN: Final = 10
"""Times that a deadlock is provoked: once may be too few on a busy machine."""


def the_holes(_: Cluster, store: PostgresStore) -> None:
    """Every program that the law, or another library, once got wrong."""
    for program in HOLES.values():
        play(program, store)


def the_programs(cluster: Cluster, _: PostgresStore) -> None:
    """Random programs."""
    opener = StoreFactory(partial(PostgresStore, cluster.uri()), own_clock=True)
    law.every_answer_is_the_laws(opener, shrink=False)


def no_deadlock(cluster: Cluster, store: PostgresStore) -> None:
    for _ in range(OFTEN):
        locks.test_concurrent_calls_on_the_same_keys_cause_no_deadlock(cluster)


def the_clock_after_the_lock(cluster: Cluster, store: PostgresStore) -> None:
    locks.test_the_clock_is_read_after_the_lock_was_taken(cluster, store)


def what_stays_locked(_: Cluster, store: PostgresStore) -> None:
    locks.test_a_record_that_stays_locked_is_busy_and_does_not_hold_up_other_records(store)


def what_is_swept(_: Cluster, store: PostgresStore) -> None:
    locks.test_a_sweep_does_not_delete_a_record_that_a_transaction_holds(store)


def a_key_begun_anew(cluster: Cluster, store: PostgresStore) -> None:
    waiting.be_patient(cluster)
    for later in (0, 1):
        waiting.test_a_settlement_of_a_record_that_was_forgotten_and_claimed_again_is_unknown(
            cluster, store, later
        )


def a_key_begun_twice(cluster: Cluster, store: PostgresStore) -> None:
    waiting.be_patient(cluster)
    waiting.test_of_two_claims_of_a_new_key_the_second_waits_for_the_first_and_is_busy(
        cluster, store
    )


def bent(script: str, old: str, new: str) -> Callable[[Patch], None]:
    """The schema with these words replaced in one of its files."""

    def plant(patch: Patch) -> None:
        read = admin._read
        changed = replaced(read(script), old, new)
        patch.setattr(admin, "_read", lambda name: changed if name == script else read(name))

    return plant


EARLY: Final = (
    "moment := coalesce(instant, floor(extract(epoch FROM statement_timestamp()) * 1000));"
)

WORDS: Final[tuple[tuple[str, str, str, str, Promise], ...]] = (
    (
        "an unchanged version keeps the ties before it",
        "claim.sql",
        "CASE WHEN d.law = 'unchanged' THEN ARRAY[d.digest] WHEN NOT d.blank THEN d.r_digests END",
        "CASE WHEN NOT d.blank THEN d.r_digests END",
        the_holes,
    ),
    (
        "an unchanged version shortens the memory",
        "claim.sql",
        "ELSE greatest(d.r_expires, moment + d.remember)",
        "ELSE moment + d.remember",
        the_holes,
    ),
    (
        "a stale version waits for the lease",
        "claim.sql",
        "WHEN s.\"order\" < s.r_order THEN 'stale'",
        "WHEN s.\"order\" < s.r_order AND moment >= s.r_held_until THEN 'stale'",
        the_holes,
    ),
    (
        "settlements lock their rows in any order",
        "settle.sql",
        "WHERE r.key = ANY (keys) ORDER BY r.key FOR UPDATE\n        ) AS l;\n    ELSE",
        "WHERE r.key = ANY (keys) ORDER BY random() FOR UPDATE\n        ) AS l;\n    ELSE",
        no_deadlock,
    ),
    (
        "settlements lock no rows",
        "settle.sql",
        "WHERE r.key = ANY (keys) ORDER BY r.key FOR UPDATE\n        ) AS l;\n    ELSE",
        "WHERE r.key = ANY (keys) ORDER BY r.key\n        ) AS l;\n    ELSE",
        the_clock_after_the_lock,
    ),
    (
        "a settlement reads the clock before its locks",
        "settle.sql",
        "moment := eventonce.clock_1(instant);",
        EARLY,
        the_clock_after_the_lock,
    ),
    (
        "a settlement that must not wait waits",
        "settle.sql",
        "FOR UPDATE SKIP LOCKED",
        "FOR UPDATE",
        what_stays_locked,
    ),
    (
        "a run begun anew while a settlement waited is taken for its own",
        "settle.sql",
        "WHEN patient AND NOT s.ours THEN 'unknown'",
        "WHEN false THEN 'unknown'",
        a_key_begun_anew,
    ),
    (
        "a settlement counts every row as locked",
        "settle.sql",
        "cardinality(locked) = cardinality(keys) OR e.key = ANY (locked) AS ours",
        "true AS ours",
        a_key_begun_anew,
    ),
    (
        "any token settles",
        "settle.sql",
        "WHEN s.token <> s.r_token THEN 'fenced'",
        "WHEN false THEN 'fenced'",
        the_programs,
    ),
    (
        "an expired record is settled",
        "settle.sql",
        "WHEN NOT s.lives THEN 'unknown'",
        "WHEN s.r_token IS NULL THEN 'unknown'",
        the_programs,
    ),
    (
        "a renewal takes back a released lease",
        "settle.sql",
        "WHEN s.nonce <> s.r_nonce THEN 'fenced'",
        "WHEN false THEN 'fenced'",
        the_programs,
    ),
    (
        "new keys are inserted in any order",
        "claim.sql",
        "ORDER BY a.key\n            ON CONFLICT (key) DO NOTHING",
        "ORDER BY random()\n            ON CONFLICT (key) DO NOTHING",
        no_deadlock,
    ),
    (
        "of two claims that begin a key the second overwrites the first",
        "claim.sql",
        "ON CONFLICT (key) DO NOTHING",
        "ON CONFLICT (key) DO UPDATE SET nonce = excluded.nonce",
        a_key_begun_twice,
    ),
    (
        "a claim that did not insert a key is granted the key",
        "claim.sql",
        (
            "WHERE cardinality(won) = cardinality(fresh) OR a.key = ANY (won);\n"
            "        IF cardinality(won) < cardinality(fresh) THEN"
        ),
        "WHERE true;\n        IF false THEN",
        a_key_begun_twice,
    ),
    (
        "claims lock their rows in any order",
        "claim.sql",
        "WHERE r.key = ANY (loud) ORDER BY r.key FOR UPDATE\n        ) AS l;\n    ELSIF",
        "WHERE r.key = ANY (loud) ORDER BY random() FOR UPDATE\n        ) AS l;\n    ELSIF",
        no_deadlock,
    ),
    (
        "a claim reads the clock before its locks",
        "claim.sql",
        "    moment := eventonce.clock_1(instant);",
        f"    {EARLY}",
        the_clock_after_the_lock,
    ),
    (
        "a claim writes a row that another transaction has locked",
        "claim.sql",
        "WHERE d.writes AND d.ours",
        "WHERE d.writes",
        what_stays_locked,
    ),
    (
        "a locked row is granted",
        "claim.sql",
        "coalesce(j.key = ANY (locked), false) AS ours",
        "true AS ours",
        what_stays_locked,
    ),
    (
        "a sweep waits for a locked row",
        "sweep.sql",
        "FOR UPDATE SKIP LOCKED",
        "FOR UPDATE",
        what_is_swept,
    ),
)
"""The planted behaviour, the file, the words, their replacement, and the promise that fails."""

BREAKAGES: Final = tuple(
    Breakage(f"postgres: {name}", bent(script, old, new), promise)
    for name, script, old, new, promise in WORDS
)
