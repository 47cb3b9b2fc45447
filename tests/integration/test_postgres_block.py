"""Forbidden uses of a handler's transaction on PostgreSQL are refused, settled or not."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, suppress
from typing import cast

import msgspec
import psycopg
import pytest
from psycopg_pool import ConnectionPool

from eventonce import Consumer, Job, Rule
from eventonce.errors import StoreError
from eventonce.stores.postgres import PostgresStore
from eventonce.testing.cases.samples import fact, new_keys
from eventonce.types import Settlement, SettleResult
from tests.helpers import call
from tests.integration.granted import completed, opened
from tests.servers.postgres import Cluster

RULE = Rule(name="call", match="call", key=["detail.call"])


@pytest.fixture(scope="module")
def cluster(cluster: Cluster) -> Cluster:
    cluster.execute("CREATE TABLE effects (call bigint)")
    return cluster


@pytest.fixture(params=["uri", "pool"])
def store(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[PostgresStore]:
    cluster.execute("TRUNCATE effects, eventonce.records")
    if request.param == "uri":
        with opened(cluster) as store:
            yield store
    else:
        with ConnectionPool(cluster.uri(), min_size=1, max_size=3) as pool:
            yield PostgresStore(pool)


def effects(cluster: Cluster) -> list[tuple[int]]:
    with cluster.connect() as connection:
        return connection.execute("SELECT call FROM effects ORDER BY call").fetchall()


def careless(job: Job) -> None:
    """A handler that catches a database error, after which the server commits nothing."""
    job.connection.execute("INSERT INTO effects VALUES (%s)", (job.event.detail["call"],))
    if job.event.detail["call"] == 2:
        with suppress(psycopg.Error):
            job.connection.execute("SELECT 1 / 0")


def test_an_unguarded_run_that_caught_an_error_of_the_database_has_failed(
    cluster: Cluster, store: PostgresStore
) -> None:
    """An unguarded run has no completion that could be refused: only the end of its block shows
    the error."""
    shadow = msgspec.structs.replace(RULE, shadow=True)
    guarded = Consumer(store, name="shadowed", rules=RULE, handler=lambda _: None)
    assert {it.status for it in guarded.process([call(1), call(2)])} == {"done"}
    consumer = Consumer(store, name="shadowed", rules=shadow, handler=careless)
    well, ill = consumer.process([call(1), call(2)])
    assert (well.status, ill.status) == ("unguarded", "failed")
    assert "savepoint" in ill.reason
    assert effects(cluster) == [(1,)]


def end(connection: psycopg.Connection[object]) -> None:
    connection.execute("ROLLBACK")


def write_after_the_end(connection: psycopg.Connection[object]) -> None:
    connection.execute("ROLLBACK")
    connection.execute("INSERT INTO effects VALUES (1)")


def begin_anew(connection: psycopg.Connection[object]) -> None:
    connection.execute("ROLLBACK; BEGIN; INSERT INTO effects VALUES (1)")


def fail(connection: psycopg.Connection[object]) -> None:
    with suppress(psycopg.Error):
        connection.execute("SELECT 1 / 0")


def close(connection: psycopg.Connection[object]) -> None:
    connection.close()


OPEN = ExitStack()
"""Transactions that the tests leave open until their block has ended."""


def copy_in(connection: psycopg.Connection[object]) -> None:
    copy = OPEN.enter_context(connection.cursor().copy("COPY effects FROM STDIN"))
    copy.write_row((1,))


def copy_out(connection: psycopg.Connection[object]) -> None:
    query = "COPY (SELECT generate_series(1, 100000)) TO STDOUT"
    next(iter(OPEN.enter_context(connection.cursor().copy(query))))


def stream(connection: psycopg.Connection[object]) -> None:
    rows = connection.cursor().stream("SELECT generate_series(1, 100000)")
    OPEN.callback(cast("Generator[object]", rows).close)
    next(rows)


def pipeline(connection: psycopg.Connection[object]) -> None:
    sent = OPEN.enter_context(connection.pipeline())
    connection.execute("INSERT INTO effects VALUES (1)")
    sent.sync()


@pytest.fixture(autouse=True)
def close_open_transactions() -> Iterator[None]:
    yield
    with suppress(psycopg.Error):
        OPEN.close()


Did = Callable[[psycopg.Connection[object]], None]


def settle(store: PostgresStore, ended: Settlement, *, after: Did) -> SettleResult:
    with store.transaction() as transaction:
        after(transaction.connection)
        return transaction.settle(ended)


UNDER_WAY = [(left_open, "still in flight") for left_open in (copy_in, copy_out, stream, pipeline)]
WRONG = [
    (end, "ended inside its block"),
    (write_after_the_end, "ended inside its block"),
    (begin_anew, "ended inside its block"),
    (fail, "savepoint"),
    (close, r"closed inside its block|close\(\) is refused"),
    *UNDER_WAY,
]


@pytest.mark.parametrize(("wrong", "says"), WRONG)
def test_a_block_that_the_server_will_not_commit_raises_an_error(
    cluster: Cluster, store: PostgresStore, wrong: Did, says: str
) -> None:
    with pytest.raises(StoreError, match=says) as told, store.transaction() as transaction:
        wrong(transaction.connection)
    assert type(told.value) is StoreError, "no outage: waiting would not help"
    assert effects(cluster) == []


@pytest.mark.parametrize(("wrong", "says"), WRONG)
def test_nothing_is_settled_in_a_block_that_the_server_will_not_commit(
    cluster: Cluster, store: PostgresStore, wrong: Did, says: str
) -> None:
    claim = fact(*new_keys(1))
    (ended,) = completed(store, [claim])
    with pytest.raises(StoreError, match=says):
        settle(store, ended, after=wrong)
    assert (store.claim([fact(claim.key)])[0].kind, effects(cluster)) == ("busy", [])
    assert settle(store, ended, after=lambda _: None) == "kept"
    assert store.claim([fact(claim.key)])[0].kind == "duplicate"


@pytest.mark.parametrize(("left_open", "says"), UNDER_WAY)
def test_an_operation_that_a_handler_leaves_open_in_a_pool_fails_its_run(
    cluster: Cluster, left_open: Did, says: str
) -> None:
    """Connections of a pool have no time-out that would end the waiting."""
    cluster.execute("TRUNCATE effects")
    with ConnectionPool(cluster.uri(), min_size=1, max_size=3) as pool:
        consumer = Consumer(
            PostgresStore(pool),
            name="left",
            rules=RULE,
            handler=lambda job: left_open(job.connection),
        )
        for number in (1, 2):
            (outcome,) = consumer.process([call(number)])
            assert (outcome.status, says in outcome.reason) == ("failed", True)
        consumer.close()
    assert effects(cluster) == []


def test_a_handler_that_raises_with_a_copy_open_has_failed_with_its_own_error(
    store: PostgresStore,
) -> None:
    def handler(job: Job) -> None:
        copy_in(job.connection)
        raise ValueError("of its own")

    consumer = Consumer(store, name="raises", rules=RULE, handler=handler)
    (outcome,) = consumer.process([call(1)])
    assert (outcome.status, "of its own" in outcome.reason) == ("failed", True)


@pytest.mark.parametrize("refused", ["commit", "rollback"])
def test_a_handler_cannot_end_its_transaction(
    cluster: Cluster, store: PostgresStore, refused: str
) -> None:
    def handler(job: Job) -> None:
        job.connection.execute("INSERT INTO effects VALUES (1)")
        getattr(job.connection, refused)()

    consumer = Consumer(store, name="ends", rules=RULE, handler=handler)
    (outcome,) = consumer.process([call(1)])
    assert (outcome.status, effects(cluster)) == ("failed", [])
    assert refused in outcome.reason
