"""On PostgreSQL a handler's writes and its completion commit together, whenever it is killed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection

import msgspec
import pytest

from eventonce import Consumer, Job, Rule
from eventonce.errors import StoreError, StoreUnavailable
from eventonce.stores.postgres import PostgresStore
from eventonce.testing.cases.samples import HOUR, fact, new_keys
from eventonce.testing.factory import StoreFactory, admin_of
from eventonce.testing.workers import Worker, spawn
from eventonce.types import Settlement
from tests.helpers import call, until
from tests.integration.granted import alone, opened
from tests.servers.postgres import Cluster
from tests.servers.relay import relaying

RULE = Rule(name="call", match="call", key=["detail.call"])
BRIEF = msgspec.structs.replace(RULE, lease="1s")
"""For runs that are killed, and that other runs take over soon."""
RENEWED = msgspec.structs.replace(RULE, lease="9s")
"""For runs that are renewed, after a third of the lease: on a busy machine a renewal may be late by
seconds."""

MOST_PIECES = 60
"""More than any path through the work needs: two connections, and five queries."""


def write(job: Job) -> None:
    job.connection.execute("INSERT INTO effects VALUES (%s)", (job.event.detail["call"],))


async def write_async(job: Job) -> None:
    connection = await job.async_connection()
    await connection.execute("INSERT INTO effects VALUES (%s)", (job.event.detail["call"],))


HANDLERS = {"plain": write, "async": write_async}


def work(pipe: Connection, factory: StoreFactory, number: int, kind: str) -> None:
    """The killed process: one event, one effect."""
    store = factory.open()
    with Consumer(store, name=kind, rules=BRIEF, handler=HANDLERS[kind]) as consumer:
        (outcome,) = consumer.process([call(number)])
    admin_of(store).close()
    pipe.send([outcome.status])


@pytest.fixture(scope="module")
def cluster(cluster: Cluster) -> Cluster:
    cluster.execute("CREATE TABLE effects (call bigint)")
    return cluster


@pytest.fixture
def store(cluster: Cluster) -> Iterator[PostgresStore]:
    cluster.execute("TRUNCATE effects")
    with opened(cluster) as store:
        yield store


def effects(cluster: Cluster) -> dict[int, int]:
    with cluster.connect() as connection:
        rows = connection.execute("SELECT call, count(*) FROM effects GROUP BY call").fetchall()
    return dict(rows)


def killed_at(cluster: Cluster, piece: int, kind: str) -> bool:
    """Run the event of this number, and kill its process when so many pieces have passed between it
    and the server. Return whether the process was killed."""
    victim: Future[Worker] = Future()

    def passes(number: int) -> bool:
        if number == piece:
            victim.result().kill()
        return number < piece

    with relaying(cluster.port, passes) as relay:
        uri = f"postgresql://postgres@127.0.0.1:{relay.port}/postgres"
        worker = spawn(StoreFactory(partial(PostgresStore, uri)), work, piece, kind)
        victim.set_result(worker)
        with suppress(EOFError):
            assert worker.hear() == ["done"]
            return False
    return True


@pytest.mark.parametrize("kind", HANDLERS)
def test_a_process_killed_at_any_step_leaves_each_effect_exactly_once(
    cluster: Cluster, store: PostgresStore, kind: str
) -> None:
    kills = 0
    while killed_at(cluster, kills, kind):
        kills += 1
        assert kills < MOST_PIECES
    alone(cluster)
    time.sleep(1.1)  # the lease of the last run that was killed
    there = set(effects(cluster)) - {kills}
    assert 0 < len(there) < kills
    consumer = Consumer(store, name=kind, rules=RULE, handler=HANDLERS[kind])
    events = [call(number) for number in range(kills)]
    # The completion was stored if and only if the effect was.
    for number, outcome in enumerate(consumer.process(events)):
        assert outcome.status == ("duplicate" if number in there else "done"), outcome
    assert effects(cluster) == dict.fromkeys(range(kills + 1), 1)
    assert {outcome.status for outcome in consumer.process(events)} == {"duplicate"}
    assert effects(cluster) == dict.fromkeys(range(kills + 1), 1)


def outlive(job: Job, other: PostgresStore) -> None:
    """Write, and wait until the lease is renewed; another claim is busy then."""
    write(job)
    begun = other.show(job.key)
    assert begun is not None

    def renewed() -> bool:
        record = other.show(job.key)
        assert record is not None
        return record.held_until > begun.held_until

    until(renewed)
    (verdict,) = other.claim([msgspec.structs.replace(job.claim, nonce=7)])
    assert verdict.kind == "busy"
    assert verdict.wait > 0


def test_a_lease_is_renewed_while_the_handler_has_its_transaction_open(
    cluster: Cluster, store: PostgresStore
) -> None:
    consumer = Consumer(
        store, name="renewed", rules=RENEWED, handler=lambda job: outlive(job, store)
    )
    (outcome,) = consumer.process([call(1)])
    assert (outcome.status, effects(cluster)) == ("done", {1: 1})


def test_a_caught_error_of_the_database_does_not_complete_the_run(
    cluster: Cluster, store: PostgresStore
) -> None:
    """The server has rolled the handler's writes back: a completion would lose the event."""

    def careless(job: Job) -> None:
        write(job)
        try:
            job.connection.execute("SELECT 1 / 0")
        except Exception:  # noqa: BLE001  that is what this handler does wrong
            return

    consumer = Consumer(store, name="careless", rules=RULE, handler=careless)
    (outcome,) = consumer.process([call(1)])
    assert (outcome.status, effects(cluster)) == ("failed", {})
    assert "savepoint" in outcome.reason


def test_a_savepoint_lets_a_handler_go_on_after_an_error(
    cluster: Cluster, store: PostgresStore
) -> None:
    def careful(job: Job) -> None:
        try:
            with job.connection.transaction():
                job.connection.execute("SELECT 1 / 0")
        except Exception:  # noqa: BLE001  any error will do
            write(job)

    (outcome,) = Consumer(store, name="careful", rules=RULE, handler=careful).process([call(1)])
    assert (outcome.status, effects(cluster)) == ("done", {1: 1})


def test_a_transaction_that_its_block_has_ended_is_not_settled(store: PostgresStore) -> None:
    claim = fact(*new_keys(1), lease=HOUR)
    (run,) = store.claim([claim])
    with pytest.raises(StoreError, match="ended inside its block"):  # noqa: PT012, SIM117
        with store.transaction() as transaction:
            transaction.connection.execute("COMMIT")
            transaction.settle(Settlement(claim, run.token, "complete"))
    assert store.claim([fact(claim.key)])[0].kind == "busy"


def test_a_commit_that_the_server_refuses_completes_nothing(
    cluster: Cluster, store: PostgresStore
) -> None:
    cluster.execute(
        "CREATE TABLE IF NOT EXISTS once (n integer UNIQUE DEFERRABLE INITIALLY DEFERRED)"
    )

    def twice(job: Job) -> None:
        job.connection.execute("INSERT INTO once VALUES (1), (1)")

    consumer = Consumer(store, name="refused", rules=RULE, handler=twice)
    (outcome,) = consumer.process([call(1)])
    assert outcome.status == "failed"
    assert "once_n_key" in outcome.reason
    assert consumer.process([call(1)])[0].status in {"failed", "busy"}


def test_a_connection_that_dies_in_the_transaction_completes_nothing(
    cluster: Cluster, store: PostgresStore
) -> None:
    def cut(job: Job) -> None:
        write(job)
        pid = job.connection.info.backend_pid
        cluster.execute(f"SELECT pg_terminate_backend({pid}, 60000)")

    consumer = Consumer(store, name="cut", rules=RULE, handler=cut)
    (outcome,) = consumer.process([call(1)])
    assert (outcome.status, effects(cluster)) == ("failed", {})
    assert isinstance(outcome.error, StoreUnavailable)


def test_handlers_in_transactions_do_not_keep_leases_from_being_renewed(cluster: Cluster) -> None:
    """More handlers than connections: they queue, and renewals use other connections."""
    cluster.execute("TRUNCATE effects")
    other = PostgresStore(cluster.uri())
    uri = cluster.uri(options="?transactions=2&connections=1")
    with Consumer(
        uri, name="many", rules=RENEWED, handler=lambda job: outlive(job, other)
    ) as consumer:
        outcomes = asyncio.run(consumer.process_async([call(number) for number in range(4)]))
    other.close()
    assert [outcome.status for outcome in outcomes] == ["done"] * 4
    assert effects(cluster) == dict.fromkeys(range(4), 1)
