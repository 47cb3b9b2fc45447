"""`async def` handlers on PostgreSQL: `job.async_connection()`, however they end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import psycopg
import pytest
from psycopg.rows import dict_row
from psycopg_pool import ConnectionPool

from eventonce import Consumer, Job
from eventonce.errors import ConfigError, StoreError, StoreUnavailable
from eventonce.sources.files import FileSource
from eventonce.stores.postgres import PostgresStore
from eventonce.stores.postgres.store import PostgresTransaction
from eventonce.testing.cases.samples import new_keys
from eventonce.types import Outcome, Settlement, SettleResult
from eventonce.web import receiver
from eventonce.worker import Worker, WorkerSettings
from tests.docs.pages import sections
from tests.helpers import PATIENCE, call, ruled
from tests.integration.granted import alone
from tests.servers.postgres import Cluster
from tests.unit.asking import asked
from tests.unit.endpoint import OPEN

RULE = ruled()
ONCE = ruled(attempts=1)
"""One attempt: a run that the database or the caller ends does not count as this attempt."""

Handler = Callable[[Job], Awaitable[object]]


@pytest.fixture(scope="module")
def cluster(cluster: Cluster) -> Cluster:
    cluster.execute("CREATE TABLE effects (call bigint)")
    return cluster


@pytest.fixture(params=["uri", "pool"])
def store(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[PostgresStore]:
    cluster.execute("TRUNCATE effects, eventonce.records")
    if request.param == "uri":
        store = PostgresStore(cluster.uri())
        yield store
        store.close()
    else:
        with ConnectionPool(cluster.uri(), min_size=1, max_size=10) as pool:
            yield PostgresStore(pool)


def effects(cluster: Cluster) -> list[int]:
    with cluster.connect() as connection:
        rows = connection.execute("SELECT call FROM effects ORDER BY call").fetchall()
    return [call for (call,) in rows]


async def write(job: Job) -> psycopg.AsyncConnection[Any]:
    connection: psycopg.AsyncConnection[Any] = await job.async_connection()
    await connection.execute("INSERT INTO effects VALUES (%s)", (job.event.detail["call"],))
    return connection


@asynccontextmanager
async def consuming(
    store: Any, handler: Handler, rule: Any = RULE
) -> AsyncIterator[Callable[..., Awaitable[list[Outcome]]]]:
    consumer = Consumer(store, name=new_keys(1)[0].hex(), rules=rule, handler=handler)

    async def process(*numbers: int) -> list[Outcome]:
        return await consumer.process_async([call(number) for number in numbers])

    try:
        yield process
    finally:
        await asyncio.to_thread(
            consumer.close if isinstance(store, str) else consumer.runtime.close
        )


def processed(store: Any, handler: Handler, *numbers: int, rule: Any = RULE) -> list[Outcome]:
    async def run() -> list[Outcome]:
        async with consuming(store, handler, rule) as process:
            return await process(*numbers)

    return asyncio.run(run())


def test_rows_and_completion_commit_together(cluster: Cluster, store: PostgresStore) -> None:
    async def handler(job: Job) -> None:
        await write(job)
        assert effects(cluster) == [], "not before the handler has returned"
        assert await job.async_connection() is await job.async_connection()

    async def run() -> list[Outcome]:
        async with consuming(store, handler) as process:
            return [*await process(1), *await process(1)]

    assert [outcome.status for outcome in asyncio.run(run())] == ["done", "duplicate"]
    assert effects(cluster) == [1]


def test_a_handler_that_waits_for_the_database_does_not_block_the_event_loop(
    cluster: Cluster, store: PostgresStore
) -> None:
    """Its statement waits for a lock that only another coroutine of the same loop releases."""
    with cluster.connect() as other:
        other.execute("SELECT pg_advisory_lock(1)")
        waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"

        async def handler(job: Job) -> None:
            connection = await write(job)
            await connection.execute("SELECT pg_advisory_xact_lock(1)")

        async def run() -> list[Outcome]:
            async with consuming(store, handler) as process:
                running = asyncio.ensure_future(process(1))
                while other.execute(waits).fetchone() != (1,):  # noqa: ASYNC110  the server's doing
                    await asyncio.sleep(0.01)
                other.execute("SELECT pg_advisory_unlock(1)")
                return await running

        assert [outcome.status for outcome in asyncio.run(run())] == ["done"]
    assert effects(cluster) == [1]


def test_handlers_overlap_in_their_transactions(cluster: Cluster, store: PostgresStore) -> None:
    together = asyncio.Barrier(5)

    async def handler(job: Job) -> None:
        connection = await write(job)
        await together.wait()
        count = await connection.execute("SELECT count(*) FROM effects")
        assert await count.fetchone() == (1,), "each sees its own"
        # No handler commits before all have counted.
        await together.wait()

    outcomes = processed(store, handler, *range(5))
    assert [outcome.status for outcome in outcomes] == ["done"] * 5
    assert effects(cluster) == list(range(5))


def test_more_handlers_than_connections_take_turns(cluster: Cluster) -> None:
    """Handlers that wait for a connection do not keep other handlers from returning theirs."""
    cluster.execute("TRUNCATE effects")
    numbers = range(60)
    outcomes = processed(cluster.uri(options="?transactions=1"), write, *numbers)
    assert {outcome.status for outcome in outcomes} == {"done"}
    assert effects(cluster) == list(numbers)


def test_coroutines_of_one_handler_share_its_transaction(
    cluster: Cluster, store: PostgresStore
) -> None:
    async def handler(job: Job) -> None:
        first, second = await asyncio.gather(write(job), write(job))
        assert first is second

    assert [outcome.status for outcome in processed(store, handler, 1)] == ["done"]
    assert effects(cluster) == [1, 1]


def test_a_savepoint_lets_a_handler_go_on_after_an_error(
    cluster: Cluster, store: PostgresStore
) -> None:
    async def handler(job: Job) -> None:
        connection = await write(job)
        with pytest.raises(psycopg.errors.DivisionByZero):
            async with connection.transaction():
                await connection.execute("SELECT 1 / 0")

    assert [outcome.status for outcome in processed(store, handler, 1)] == ["done"]
    assert effects(cluster) == [1]


async def raises(_: psycopg.AsyncConnection[Any]) -> None:
    raise ValueError("of its own")


async def fails(connection: psycopg.AsyncConnection[Any]) -> None:
    with suppress(psycopg.Error):
        await connection.execute("SELECT 1 / 0")


async def ends(connection: psycopg.AsyncConnection[Any]) -> None:
    await connection.execute("ROLLBACK")


async def writes_after_the_end(connection: psycopg.AsyncConnection[Any]) -> None:
    await connection.execute("ROLLBACK")
    with suppress(StoreError):
        await connection.execute("INSERT INTO effects VALUES (2)")


async def begins_anew(connection: psycopg.AsyncConnection[Any]) -> None:
    await connection.execute("ROLLBACK; BEGIN; INSERT INTO effects VALUES (2)")


async def commits(connection: psycopg.AsyncConnection[Any]) -> None:
    await connection.commit()


async def rolls_back(connection: psycopg.AsyncConnection[Any]) -> None:
    await connection.rollback()


async def closes(connection: psycopg.AsyncConnection[Any]) -> None:
    await connection.close()


async def leaves(connection: psycopg.AsyncConnection[Any]) -> None:
    async with connection:
        pass


STREAMS: list[Any] = []
"""Streams that the handlers do not read to their ends."""


async def streams(connection: psycopg.AsyncConnection[Any]) -> None:
    STREAMS.append(connection.cursor().stream("SELECT generate_series(1, 100000)"))
    await anext(STREAMS[-1])


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (raises, "of its own"),
        (fails, "savepoint"),
        (ends, "ended inside its block"),
        (writes_after_the_end, "ended inside its block"),
        (begins_anew, "ended inside its block"),
        (commits, "commit() is refused"),
        (rolls_back, "rollback() is refused"),
        (closes, "close() is refused"),
        (leaves, "`async with` over the connection is refused"),
        (streams, "still in flight"),
    ],
)
def test_a_handler_that_raises_or_misuses_its_transaction_fails_and_is_rolled_back(
    cluster: Cluster, store: PostgresStore, wrong: Callable[[Any], Awaitable[None]], says: str
) -> None:
    async def handler(job: Job) -> None:
        await wrong(await write(job))

    (outcome,) = processed(store, handler, 1)
    assert (outcome.status, effects(cluster)) == ("failed", [])
    assert says in outcome.reason
    assert [outcome.status for outcome in processed(store, write, 1)] == ["done"]


def test_a_statement_that_is_not_awaited_fails_its_run_and_is_refused(
    cluster: Cluster, store: PostgresStore
) -> None:
    left: list[asyncio.Future[Any]] = []

    async def handler(job: Job) -> None:
        connection = await write(job)
        left.append(asyncio.ensure_future(connection.execute("SELECT pg_sleep(600)")))
        for _ in range(10):
            await asyncio.sleep(0)
        assert connection.info.transaction_status == psycopg.pq.TransactionStatus.ACTIVE

    async def run() -> None:
        async with consuming(store, handler) as process:
            for _ in range(3):
                (outcome,) = await process(1)
                assert outcome.status == "failed"
                assert "still in flight" in outcome.reason
                with pytest.raises(StoreError, match="has ended with its handler"):
                    await left.pop()

    asyncio.run(run())
    assert effects(cluster) == []


def test_a_connection_kept_beyond_its_handler_is_refused(
    cluster: Cluster, store: PostgresStore
) -> None:
    kept: list[psycopg.AsyncConnection[Any]] = []
    jobs: list[Job] = []

    async def handler(job: Job) -> None:
        kept.append(await write(job))
        jobs.append(job)

    async def run() -> None:
        async with consuming(store, handler) as process:
            await process(1)
            with pytest.raises(StoreError, match="has ended with its handler"):
                await kept[0].execute("INSERT INTO effects VALUES (2)")
            with pytest.raises(ConfigError, match="an `async def` handler that still runs"):
                await jobs[0].async_connection()

    asyncio.run(run())
    assert effects(cluster) == [1]


def test_a_run_that_was_overtaken_has_its_writes_undone(
    cluster: Cluster, store: PostgresStore
) -> None:
    async def slow(job: Job) -> None:
        await write(job)
        # As if this run had been paused: its lease has ended, and another run has completed.
        assert store.settle([Settlement(job.claim, job.token, "release")]) == ["kept"]
        again = msgspec.structs.replace(job.claim, nonce=7)
        (rival,) = store.claim([again])
        assert store.settle([Settlement(again, rival.token, "complete")]) == ["kept"]

    (outcome,) = processed(store, slow, 1)
    assert (outcome.status, effects(cluster)) == ("fenced", [])


def test_a_lost_connection_does_not_count_as_an_attempt(
    cluster: Cluster, store: PostgresStore
) -> None:
    cut = [True]

    async def handler(job: Job) -> None:
        connection = await write(job)
        if cut.pop():
            cluster.execute(f"SELECT pg_terminate_backend({connection.info.backend_pid}, 60000)")
            await connection.execute("SELECT 1")

    async def run() -> list[Outcome]:
        async with consuming(store, handler, ONCE) as process:
            first = await process(1)
            cut.append(False)
            return [*first, *await process(1)]

    assert [outcome.status for outcome in asyncio.run(run())] == ["failed", "done"]
    assert effects(cluster) == [1]


def test_a_connection_that_is_not_available_does_not_count_as_an_attempt(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the handler turns the error into another one of its own."""
    cluster.execute("TRUNCATE effects, eventonce.records")
    store = PostgresStore(cluster.uri(options="?transactions=1"))
    monkeypatch.setattr(store._connections.handlers, "_wait", 0.05)

    async def handler(job: Job) -> None:
        try:
            await write(job)
        except StoreUnavailable as error:
            raise ValueError("as it sees it") from error

    async def run() -> list[Outcome]:
        async with consuming(store, handler, ONCE) as process:
            with store.transaction():
                first = await process(1)
            return [*first, *await process(1)]

    assert [outcome.status for outcome in asyncio.run(run())] == ["failed", "done"]
    assert effects(cluster) == [1]
    store.close()


def cancelled_at(
    store: Any, handler: Handler, reached: asyncio.Event, cancel: Callable[[], None] = lambda: None
) -> list[Outcome]:
    """Cancel the caller once `reached` is set, and return the outcomes of the next run."""

    async def run() -> list[Outcome]:
        async with consuming(store, handler, ONCE) as process:
            running = asyncio.ensure_future(process(1))
            await reached.wait()
            running.cancel()
            await asyncio.sleep(0)
            running.cancel()
            cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            return await process(1)

    return asyncio.run(run())


@pytest.mark.parametrize("at", ["a statement", "something else"])
def test_a_handler_that_is_cancelled_is_rolled_back_and_freed(
    cluster: Cluster, store: PostgresStore, at: str
) -> None:
    reached, again = asyncio.Event(), [False, True]

    async def handler(job: Job) -> None:
        connection = await write(job)
        if again.pop():
            statement = connection.execute("SELECT pg_sleep(600)")
            waiting = asyncio.ensure_future(
                statement if at == "a statement" else asyncio.Event().wait()
            )
            await asyncio.sleep(0.05)
            reached.set()
            if at != "a statement":
                statement.close()
            await waiting

    outcomes = cancelled_at(store, handler, reached)
    assert [outcome.status for outcome in outcomes] == ["done"]
    assert effects(cluster) == [1]


def test_a_handler_that_is_cancelled_while_it_waits_for_a_connection_is_freed(
    cluster: Cluster,
) -> None:
    """A connection that becomes free after the cancellation is returned."""
    cluster.execute("TRUNCATE effects, eventonce.records")
    store = PostgresStore(cluster.uri(options="?transactions=1"))
    reached, again = asyncio.Event(), [False, True]
    held = store.transaction()
    held.__enter__()

    async def handler(job: Job) -> None:
        if again.pop():
            asyncio.get_running_loop().call_later(0.05, reached.set)
        await write(job)

    def free() -> None:
        held.__exit__(None, None, None)

    assert [outcome.status for outcome in cancelled_at(store, handler, reached, free)] == ["done"]
    assert effects(cluster) == [1]
    store.close()


@pytest.mark.parametrize("at", ["before", "after", "failing"])
def test_a_handler_that_is_cancelled_while_it_completes_ends_with_its_completion(
    cluster: Cluster, store: PostgresStore, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """The cancellation waits for the completion, and does not change its result."""
    settle, reached, go = PostgresTransaction.settle, asyncio.Event(), threading.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    def slowly(self: PostgresTransaction, settlement: Settlement) -> SettleResult:
        kept = settle(self, settlement) if at == "after" else None
        loops[0].call_soon_threadsafe(reached.set)
        first = not go.is_set()
        assert go.wait(PATIENCE)
        if first and at == "failing":
            raise StoreUnavailable
        return kept or settle(self, settlement)

    async def handler(job: Job) -> None:
        loops.append(asyncio.get_running_loop())
        await write(job)

    async def run() -> list[Outcome]:
        async with consuming(store, handler, ONCE) as process:
            running = asyncio.ensure_future(process(1))
            await reached.wait()
            running.cancel()
            ended, _ = await asyncio.wait([running], timeout=0.2)
            assert not ended, "its transaction is open"
            go.set()
            with pytest.raises(asyncio.CancelledError):
                await running
            return await process(1)

    monkeypatch.setattr(PostgresTransaction, "settle", slowly)
    expected = "done" if at == "failing" else "duplicate"
    assert [outcome.status for outcome in asyncio.run(run())] == [expected]
    assert effects(cluster) == [1]


def test_a_handler_that_takes_longer_than_its_rule_allows_is_rolled_back(
    cluster: Cluster, store: PostgresStore
) -> None:
    again = [False, True]

    async def handler(job: Job) -> None:
        connection = await write(job)
        if again.pop():
            await connection.execute("SELECT pg_sleep(600)")

    async def run() -> list[Outcome]:
        async with consuming(store, handler, ruled(timeout="1s")) as process:
            return [*await process(1), *await process(1)]

    late, done = asyncio.run(run())
    assert (late.status, done.status, effects(cluster)) == ("failed", "done", [1])
    assert "longer than its rule's timeout" in late.reason


def test_all_connections_are_given_back(cluster: Cluster) -> None:
    """However the runs end, the two connections are enough for all of them."""
    cluster.execute("TRUNCATE effects, eventonce.records")
    kinds = [raises, fails, ends, begins_anew, commits, closes]

    async def handler(job: Job) -> None:
        connection = await write(job)
        number = job.event.detail["call"]
        if number < 60:
            await kinds[number % len(kinds)](connection)

    uri = cluster.uri(options="?transactions=2&application_name=counted")
    outcomes = processed(uri, handler, *range(80))
    assert [outcome.status for outcome in outcomes] == ["failed"] * 60 + ["done"] * 20
    assert effects(cluster) == list(range(60, 80))


def test_the_row_factory_of_the_callers_pool_is_used(cluster: Cluster) -> None:
    found: list[object] = []

    async def handler(job: Job) -> None:
        connection = await job.async_connection()
        for _ in range(2):
            cursor = await connection.execute("SELECT 1 AS n", prepare=True)
            found.append(await cursor.fetchone())

    settings = {"row_factory": dict_row}
    with ConnectionPool(cluster.uri(), min_size=1, max_size=2, kwargs=settings) as pool:
        outcomes = processed(PostgresStore(pool), handler, 1, 2, 3)
    assert [outcome.status for outcome in outcomes] == ["done"] * 3
    assert found == [{"n": 1}] * 6


async def in_a_worker(consumer: Consumer) -> None:
    def work() -> None:
        with TemporaryDirectory() as folder:
            file = Path(folder, "capture.jsonl")
            file.write_bytes(call(1) + b"\n")
            Worker(consumer, FileSource([file]), WorkerSettings(concurrency=1, receivers=1)).run()

    await asyncio.to_thread(work)


async def over_http(consumer: Consumer) -> None:
    assert (await asked(receiver(consumer, OPEN), call(1))).statuses == ["done"]


async def inline(consumer: Consumer) -> None:
    (outcome,) = await asyncio.to_thread(consumer.process, [call(1)])
    assert outcome.status == "done"


async def guarded(consumer: Consumer) -> None:
    assert (await consumer.once(write)(call(1))).status == "done"


@pytest.mark.parametrize("way_in", [in_a_worker, over_http, inline, guarded])
def test_the_async_connection_is_available_at_every_way_in(
    cluster: Cluster, way_in: Callable[[Consumer], Awaitable[None]]
) -> None:
    cluster.execute("TRUNCATE effects, eventonce.records")

    async def run() -> None:
        await way_in(consumer)

    uri = cluster.uri(options="?application_name=ways-in")
    with Consumer(uri, name="calls", rules=RULE, handler=write) as consumer:
        asyncio.run(run())
        (copy,) = consumer.process([call(1)])
    assert (copy.status, effects(cluster)) == ("duplicate", [1])
    alone(cluster, "ways-in")


def test_a_connection_of_the_wrong_kind_is_refused_with_advice(
    cluster: Cluster, tmp_path: Path
) -> None:
    for uri in ("memory:", f"sqlite:///{tmp_path / 'events.db'}"):
        (outcome,) = processed(uri, write, 1)
        assert outcome.status == "failed"
        assert "On SQLite write a plain `def` handler" in outcome.reason

    async def plainly(job: Job) -> None:
        job.connection.execute("SELECT 1")

    (outcome,) = processed(cluster.uri(), plainly, 1)
    assert "`await job.async_connection()`" in outcome.reason

    def plain(job: Job) -> None:
        asyncio.run(write(job))

    with Consumer(cluster.uri(), name="plain", rules=RULE, handler=plain) as consumer:
        (outcome,) = consumer.process([call(1)])
    assert "an `async def` handler that still runs" in outcome.reason


def test_the_example_of_the_page_works(cluster: Cluster) -> None:
    (example,) = sections("stores/postgres.md")["In an async def handler"].blocks("python")
    cluster.execute("CREATE TABLE calls (conversation text, ended timestamptz)")
    body = {"conversationId": "c-1"}
    event = {
        "id": "1",
        "detail-type": "v2.detail.events.conversation.{id}.user.end",
        "detail": {"eventBody": body},
    }
    rule = ruled(match="*", key=["detail.eventBody.conversationId"])
    with Consumer(cluster.uri(), name="page", rules=rule) as consumer:
        exec(example, {"consumer": consumer})
        (outcome,) = asyncio.run(consumer.process_async([event]))
    assert outcome.status == "done", outcome
    with cluster.connect() as connection:
        assert connection.execute("SELECT conversation FROM calls").fetchall() == [("c-1",)]
