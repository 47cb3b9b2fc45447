"""SQLAlchemy over `job.async_connection()`: async sessions, whatever they commit or roll back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from eventonce import Consumer, Job
from eventonce.orm import sqlalchemy as orm
from eventonce.testing.cases.samples import new_keys
from eventonce.types import Outcome
from tests.helpers import call as event
from tests.helpers import ruled
from tests.integration.test_orm_sqlalchemy import Base, Call, call, kept
from tests.servers.postgres import Cluster


@pytest.fixture
def engine(cluster: Cluster) -> Iterator[sa.Engine]:
    """Another engine, which sees only committed rows."""
    engine = sa.create_engine(cluster.uri().replace("postgresql:", "postgresql+psycopg:"))
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)
    yield engine
    engine.dispose()


def processed(uri: str, handler: Callable[[Job], Awaitable[None]], *numbers: int) -> list[Outcome]:
    name = new_keys(1)[0].hex()
    with Consumer(uri, name=name, rules=ruled(), handler=handler) as consumer:
        return asyncio.run(consumer.process_async([event(number) for number in numbers]))


def test_the_writes_of_async_sessions_commit_with_the_completion(
    cluster: Cluster, engine: sa.Engine
) -> None:
    """The sessions overlap, each in the transaction of its own handler."""
    together = asyncio.Barrier(3)

    async def handler(job: Job) -> None:
        number = job.event.detail["call"]
        async with orm.async_session(job) as session:
            session.add(call(number))
            await session.flush()
            await together.wait()
            assert (await session.scalars(sa.select(Call.id))).all() == [number]
            assert kept(engine) == []
        await together.wait()
        if number == 2:
            raise ValueError("after its block")

    outcomes = processed(cluster.uri(), handler, 1, 2, 3)
    assert [outcome.status for outcome in outcomes] == ["done", "failed", "done"]
    assert kept(engine) == [1, 3]


def test_an_async_session_may_commit_and_roll_back_inside_the_transaction(
    cluster: Cluster, engine: sa.Engine
) -> None:
    async def handler(job: Job) -> None:
        async with orm.async_session(job, expire_on_commit=False) as session:
            session.add(call(1))
            await session.commit()
            session.add(call(2))
            await session.flush()
            await session.rollback()
            session.add(call(1, "the same again"))
            with pytest.raises(sa.exc.IntegrityError):
                await session.commit()
            await session.rollback()
            with pytest.raises(sa.exc.IntegrityError):
                async with session.begin_nested():
                    await session.execute(sa.insert(Call).values(id=1, name="", parts={}))
            session.add(call(3))

    assert [outcome.status for outcome in processed(cluster.uri(), handler, 1)] == ["done"]
    assert kept(engine) == [1, 3]


def test_a_block_that_raises_is_undone_although_the_handler_continues(
    cluster: Cluster, engine: sa.Engine
) -> None:
    async def raise_inside(job: Job) -> None:
        async with orm.async_session(job) as session:
            session.add(call(1))
            await session.flush()
            raise ZeroDivisionError

    async def handler(job: Job) -> None:
        with pytest.raises(ZeroDivisionError):
            await raise_inside(job)
        async with orm.async_connection(job) as connection:
            await connection.execute(sa.insert(Call).values(id=2, name="", parts={}))
            await connection.commit()
            await connection.execute(sa.insert(Call).values(id=3, name="", parts={}))
            await connection.rollback()

    assert [outcome.status for outcome in processed(cluster.uri(), handler, 1)] == ["done"]
    assert kept(engine) == [2]


def test_autocommit_is_refused(cluster: Cluster, engine: sa.Engine) -> None:
    async def handler(job: Job) -> None:
        async with orm.async_connection(job) as connection:
            await connection.execution_options(isolation_level="AUTOCOMMIT")

    (outcome,) = processed(cluster.uri(), handler, 1)
    assert (outcome.status, kept(engine)) == ("failed", [])
    assert "autocommit is refused" in outcome.reason


def test_sqlite_has_no_async_session(tmp_path: Path) -> None:
    async def handler(job: Job) -> None:
        async with orm.async_session(job):
            raise AssertionError("there is none")

    (outcome,) = processed(f"sqlite:///{tmp_path / 'events.db'}", handler, 1)
    assert "On SQLite write a plain `def` handler" in outcome.reason
