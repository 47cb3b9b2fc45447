"""SQLAlchemy over `job.connection`: sessions and connections, whatever they commit or roll back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from psycopg.rows import dict_row
from psycopg_pool import ConnectionPool
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from eventonce import Consumer, Job, Rule
from eventonce.errors import StoreError
from eventonce.orm import sqlalchemy as orm
from eventonce.stores.postgres import PostgresStore
from eventonce.testing.cases.samples import new_keys
from eventonce.types import Outcome
from tests.servers.postgres import Cluster

RULE = Rule(name="call", match="*", key=["detail.call"])


class Base(DeclarativeBase):
    pass


class Call(Base):
    __tablename__ = "calls"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]
    parts: Mapped[dict[str, Any]] = mapped_column(sa.JSON)


def call(number: int, name: str = "Müller") -> Call:
    return Call(id=number, name=name, parts={"of": [number]})


@pytest.fixture(params=["postgresql", "sqlite"])
def uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'events.db'}"
    cluster: Cluster = request.getfixturevalue("cluster")
    return cluster.uri()


@pytest.fixture
def engine(uri: str) -> Iterator[sa.Engine]:
    """Another engine, which sees only committed rows."""
    engine = sa.create_engine(uri.replace("postgresql:", "postgresql+psycopg:"))
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)
    yield engine
    engine.dispose()


Handler = Callable[[Job], object]


def processed(store: Any, handler: Handler, *numbers: int) -> list[Outcome]:
    events = [{"id": "", "detail-type": "call", "detail": {"call": it}} for it in numbers]
    name = new_keys(1)[0].hex()
    with Consumer(store, name=name, rules=RULE, handler=handler) as consumer:
        return consumer.process(events)


def kept(engine: sa.Engine) -> list[int]:
    with Session(engine) as session:
        return list(session.scalars(sa.select(Call.id).order_by(Call.id)))


def test_the_writes_of_a_session_commit_with_the_completion(uri: str, engine: sa.Engine) -> None:
    def handler(job: Job) -> None:
        number = job.event.detail["call"]
        with orm.session(job) as session:
            session.add(call(number))
            session.flush()
            assert kept(engine) == []
        if number == 2:
            raise ValueError("after its block")

    first, failing = processed(uri, handler, 1), processed(uri, handler, 2)
    assert [it.status for it in (*first, *failing)] == ["done", "failed"]
    assert kept(engine) == [1]
    with Session(engine) as session:
        (row,) = session.scalars(sa.select(Call))
        assert (row.name, row.parts) == ("Müller", {"of": [1]})


def test_a_session_may_commit_and_roll_back_inside_the_transaction(
    uri: str, engine: sa.Engine
) -> None:
    def handler(job: Job) -> None:
        with orm.session(job) as session:
            session.add(call(1))
            session.commit()
            session.add(call(2))
            session.flush()
            session.rollback()
            session.add(call(1, "the same again"))
            with pytest.raises(sa.exc.IntegrityError):
                session.commit()
            session.rollback()
            with pytest.raises(sa.exc.IntegrityError), session.begin_nested():
                session.execute(sa.insert(Call).values(id=1, name="and again", parts={}))
            session.add(call(3))

    assert [it.status for it in processed(uri, handler, 1)] == ["done"]
    assert kept(engine) == [1, 3]


def test_a_commit_of_a_session_is_undone_when_the_handler_raises(
    uri: str, engine: sa.Engine
) -> None:
    def handler(job: Job) -> None:
        with orm.session(job) as session:
            session.add(call(1))
            session.commit()
        raise ValueError("later")

    assert [it.status for it in processed(uri, handler, 1)] == ["failed"]
    assert kept(engine) == []


def test_a_block_that_raises_is_undone_although_the_handler_continues(
    uri: str, engine: sa.Engine
) -> None:
    def raise_inside(job: Job) -> None:
        with orm.session(job) as session:
            session.add(call(1))
            session.flush()
            raise ZeroDivisionError

    def handler(job: Job) -> None:
        with pytest.raises(ZeroDivisionError):
            raise_inside(job)
        with orm.connection(job) as connection:
            connection.execute(sa.insert(Call).values(id=2, name="", parts={}))

    assert [it.status for it in processed(uri, handler, 1)] == ["done"]
    assert kept(engine) == [2]


def test_a_connection_commits_and_rolls_back_too(uri: str, engine: sa.Engine) -> None:
    rows = sa.insert(Call)

    def handler(job: Job) -> None:
        with orm.connection(job) as connection:
            connection.execute(rows, [{"id": it, "name": "", "parts": {}} for it in (1, 2)])
            connection.commit()
            connection.execute(rows.values(id=3, name="", parts={}))
            connection.rollback()
            with connection.begin():
                connection.execute(rows.values(id=4, name="", parts={}))
            assert connection.scalars(sa.select(Call.id)).all() == [1, 2, 4]

    assert [it.status for it in processed(uri, handler, 1)] == ["done"]
    assert kept(engine) == [1, 2, 4]


def test_autocommit_is_refused(cluster: Cluster) -> None:
    def handler(job: Job) -> None:
        with orm.connection(job) as connection:
            connection.execution_options(isolation_level="AUTOCOMMIT")

    (outcome,) = processed(cluster.uri(), handler, 1)
    assert outcome.status == "failed"
    assert "autocommit is refused" in outcome.reason


def test_a_session_kept_beyond_its_block_cannot_write(uri: str, engine: sa.Engine) -> None:
    left: list[Session] = []

    def handler(job: Job) -> None:
        with orm.session(job) as session:
            left.append(session)

    assert [it.status for it in processed(uri, handler, 1)] == ["done"]
    left[0].add(call(1))
    with pytest.raises((StoreError, sa.exc.SQLAlchemyError)):
        left[0].flush()
    left[0].close()
    assert kept(engine) == []


def test_a_pool_with_dict_rows_works_too(cluster: Cluster) -> None:
    found: list[object] = []

    def handler(job: Job) -> None:
        with orm.connection(job) as connection:
            found.append(connection.execute(sa.text("SELECT 1 AS a, 2 AS b")).one())

    with ConnectionPool(cluster.uri(), min_size=1, kwargs={"row_factory": dict_row}) as pool:
        assert [it.status for it in processed(PostgresStore(pool), handler, 1)] == ["done"]
    assert found == [(1, 2)]
