"""The connections to PostgreSQL: round trips, threads, forks, pools and PgBouncer."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from psycopg.rows import dict_row
from psycopg_pool import ConnectionPool

from eventonce import Consumer, Rule
from eventonce.errors import ConfigError, StoreUnavailable
from eventonce.stores.postgres import PostgresStore
from eventonce.testing.cases.samples import fact, new_keys, version
from tests.helpers import PATIENCE
from tests.integration.granted import answered, completed
from tests.servers.postgres import Cluster, bouncing
from tests.servers.relay import relaying


def test_a_batch_is_one_round_trip_to_claim_and_one_to_settle(cluster: Cluster) -> None:
    with relaying(cluster.port) as relay:
        store = PostgresStore(f"postgresql://postgres@127.0.0.1:{relay.port}/postgres")
        store.stats()
        claims = [fact(key) for key in new_keys(50)] + [version(key, 1) for key in new_keys(50)]
        connected = relay.questions
        ended = completed(store, claims)
        assert relay.questions == connected + 1
        assert set(store.settle(ended)) == {"kept"}
        assert relay.questions == connected + 2
        assert {it.kind for it in store.claim(claims)} == {"duplicate"}
        assert relay.questions == connected + 3
        store.close()


def test_a_batch_is_one_round_trip_through_the_callers_pool_too(cluster: Cluster) -> None:
    with (
        relaying(cluster.port) as relay,
        ConnectionPool(
            f"postgresql://postgres@127.0.0.1:{relay.port}/postgres", min_size=1
        ) as pool,
    ):
        store = PostgresStore(pool)
        store.stats()
        connected = relay.questions
        completed(store, [fact(key) for key in new_keys(100)])
        assert relay.questions == connected + 1


def test_the_callers_pool_gets_its_connections_back_as_they_were(cluster: Cluster) -> None:
    settings = {"row_factory": dict_row}
    with ConnectionPool(cluster.uri(), min_size=1, max_size=2, kwargs=settings) as pool:
        store = PostgresStore(pool, schema="eventonce")
        assert all(finding.fine for finding in store.check())
        assert set(store.settle(completed(store, [fact(*new_keys(1))]))) == {"kept"}
        with store.transaction() as transaction:
            assert transaction.connection.execute("SELECT 1 AS n").fetchone() == {"n": 1}
        with pool.connection() as one, pool.connection() as other:
            for connection in (one, other):
                assert not connection.autocommit
                row: object = connection.execute("SELECT 1 AS n").fetchone()
                assert row == {"n": 1}
        store.close()
        assert not pool.closed


def test_a_claim_works_after_the_connections_of_the_callers_pool_were_terminated(
    cluster: Cluster,
) -> None:
    settings = {"application_name": "theirs"}
    with ConnectionPool(cluster.uri(), min_size=3, kwargs=settings) as pool:
        pool.wait()
        store = PostgresStore(pool)
        cluster.execute(
            "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity "
            "WHERE application_name = 'theirs'"
        )
        assert store.claim([fact(*new_keys(1))])[0].kind == "run"


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_a_stricter_default_isolation_changes_no_answer(cluster: Cluster, level: str) -> None:
    """A role may have a stricter default: transactions that the server rolls back are repeated."""
    cluster.execute(f"ALTER ROLE postgres SET default_transaction_isolation = '{level}'")
    try:
        keys = new_keys(30)

        def work(seed: int) -> int:
            store = PostgresStore(cluster.uri())
            order = random.Random(seed).sample(keys, len(keys))
            runs = sum(store.claim([fact(key)])[0].kind == "run" for key in order)
            store.close()
            return runs

        with ThreadPoolExecutor(6) as threads:
            assert sum(threads.map(work, range(6))) == len(keys)
    finally:
        cluster.execute("ALTER ROLE postgres RESET default_transaction_isolation")


def test_one_store_serves_many_threads_over_few_connections(cluster: Cluster) -> None:
    store = PostgresStore(cluster.uri(options="?connections=2&application_name=few"))
    most = 0

    def work(_: int) -> None:
        nonlocal most
        for _ in range(20):
            assert set(store.settle(completed(store, [fact(*new_keys(1))]))) == {"kept"}
        with cluster.connect() as connection:
            query = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'few'"
            ((count,),) = connection.execute(query).fetchall()
        most = max(most, count)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(8)))
    assert 1 <= most <= 2
    store.close()


def test_connections_that_are_all_in_use_are_reported_with_the_setting(cluster: Cluster) -> None:
    store = PostgresStore(cluster.uri(options="?connections=1&timeout=1"))
    held, free = threading.Event(), threading.Event()

    def hold(_: object) -> None:
        held.set()
        free.wait(PATIENCE)

    with ThreadPoolExecutor(1) as threads:
        holding = threads.submit(store._connections.do, hold)
        assert held.wait(PATIENCE)
        with pytest.raises(StoreUnavailable, match=r"all 1 connections .*\?connections="):
            store.stats()
        free.set()
        holding.result()
    answered(store.stats)
    store.close()


FORKS = """
import os, sys
from eventonce.stores.postgres import PostgresStore
from eventonce.testing.cases.samples import fact, new_keys

store = PostgresStore(sys.argv[1])
keys = new_keys(40)
HOUR = 3_600_000
with store.transaction() as transaction:
    assert transaction.connection.execute("SELECT 1").fetchone() == (1,)
assert store.claim([fact(keys[0], lease=HOUR)])[0].kind == "run"
children = []
for _ in range(3):
    child = os.fork()
    if child == 0:
        runs = sum(store.claim([fact(key, lease=HOUR)])[0].kind == "run" for key in keys)
        with store.transaction() as transaction:
            transaction.connection.execute("SELECT 1")
        store.close()
        os._exit(runs)
    children.append(child)
runs = sum(store.claim([fact(key, lease=HOUR)])[0].kind == "run" for key in keys)
runs += sum(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)
# The children's end has not touched the parent's connections.
pids = [store._connections.do(lambda it: it.info.backend_pid) for _ in range(3)]
assert store.claim([fact(keys[0])])[0].kind == "busy"
store.close()
assert runs == len(keys) - 1, runs
"""


def test_one_store_serves_both_sides_of_a_fork(cluster: Cluster) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", FORKS, cluster.uri()],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr


FORKED_POOL = """
import os, sys
from psycopg_pool import ConnectionPool
from eventonce.errors import ConfigError
from eventonce.stores.postgres import PostgresStore

pool = ConnectionPool(sys.argv[1], min_size=1, open=False)
store = PostgresStore(pool)
child = os.fork()
if child == 0:
    try:
        store.stats()
    except ConfigError as error:
        os._exit(42 if "postgresql:// URI" in str(error) else 43)
    os._exit(44)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42
"""


def test_a_pool_that_was_forked_is_refused(cluster: Cluster) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKED_POOL, cluster.uri()],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_behind_pgbouncer_a_handler_has_its_transaction(cluster: Cluster) -> None:
    rule = Rule(name="call", match="*", key=["detail.call"])
    events = [{"id": "", "detail-type": "call", "detail": {"call": number}} for number in range(20)]
    cluster.execute("CREATE TABLE bounced (call integer)")
    with (
        bouncing(cluster) as uri,
        Consumer(
            uri,
            name="bounced",
            rules=rule,
            handler=lambda job: (
                job.connection.execute(
                    "INSERT INTO bounced VALUES (%s)", (job.event.detail["call"],)
                )
                and None
            ),
        ) as consumer,
    ):
        for expected in ("done", "duplicate"):
            assert {outcome.status for outcome in consumer.process(events)} == {expected}
    with cluster.connect() as connection:
        assert connection.execute("SELECT count(*) FROM bounced").fetchone() == (20,)


def test_a_shared_store_needs_a_name(cluster: Cluster) -> None:
    with pytest.raises(ConfigError, match="needs a name"):
        Consumer(cluster.uri())
