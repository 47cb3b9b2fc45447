"""SQLAlchemy inside a handler's transaction: a session or a connection over `job.connection`, and
over `job.async_connection()`."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Connection, Engine, create_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from eventonce.errors import StoreError, refused_in_transaction
from eventonce.types import Job

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession

BEGIN: Final = "SAVEPOINT eventonce_nested"
KEEP: Final = "RELEASE SAVEPOINT eventonce_nested"
UNDO: Final = "ROLLBACK TO SAVEPOINT eventonce_nested"

_NEXT: ContextVar[NestedConnection | None] = ContextVar("eventonce_sqlalchemy", default=None)
"""The connection that the engine gets when it opens one."""


@contextmanager
def connection(job: Job) -> Iterator[Connection]:
    """Open a SQLAlchemy connection in the handler's transaction.

    Its writes are kept at the end of the block, and undone if the block raises. `commit()` keeps
    and `rollback()` undoes the writes since the last of them; writes that are kept commit with the
    completion, or not at all.
    """
    outer = job.connection
    if isinstance(outer, sqlite3.Connection):
        nested = NestedConnection(outer, outer.cursor, partial(_one_by_one, outer))
        engine = _engine("sqlite://")
    else:
        nested, engine = _over_psycopg(outer), _engine("postgresql+psycopg://")
    nested.begin()
    token = _NEXT.set(nested)
    try:
        opened = engine.connect()
    finally:
        _NEXT.reset(token)
    with opened:
        yield opened
        opened.commit()


@contextmanager
def session(job: Job, **options: Any) -> Iterator[Session]:
    """Open a session over `connection(job)`; the options are those of `sqlalchemy.orm.Session`."""
    with connection(job) as bind, Session(bind, **options) as opened:
        yield opened
        opened.commit()


@asynccontextmanager
async def async_connection(job: Job) -> AsyncIterator[AsyncConnection]:
    """Like `connection`, for an `async def` handler on PostgreSQL (`job.async_connection()`)."""
    outer = await job.async_connection()
    nested = _over_psycopg(outer)
    await nested.begin()
    opened = _async_engine().connect()
    token = _NEXT.set(nested)
    try:
        await opened.start()
    finally:
        _NEXT.reset(token)
    try:
        yield opened
        await opened.commit()
    finally:
        await opened.close()


@asynccontextmanager
async def async_session(job: Job, **options: Any) -> AsyncIterator[AsyncSession]:
    """Open a session over `async_connection(job)`; the options are those of `AsyncSession`."""
    from sqlalchemy.ext.asyncio import AsyncSession  # noqa: PLC0415  needs greenlet

    async with async_connection(job) as bind, AsyncSession(bind, **options) as opened:
        yield opened
        await opened.commit()


def _over_psycopg(outer: Any) -> NestedConnection:
    """Return the nested connection over psycopg, sync or async. SQLAlchemy reads rows by position,
    so the handler's own row factory is not used."""
    from psycopg.rows import tuple_row  # noqa: PLC0415  a driver that SQLite does not need

    cursor = partial(outer.cursor, row_factory=tuple_row)
    return NestedConnection(outer, cursor, lambda *statements: outer.execute("; ".join(statements)))


def _one_by_one(outer: sqlite3.Connection, *statements: str) -> None:
    for statement in statements:
        outer.execute(statement)


@cache
def _engine(uri: str) -> Engine:
    """Return the engine of a driver. There is one for each: its first connection asks the server
    for its version, and all connections share compiled statements."""
    # The lookup of HSTORE needs a connection of the driver itself.
    native = {"use_native_hstore": False} if uri.startswith("postgresql") else {}
    return create_engine(uri, creator=_next, poolclass=NullPool, **native)


@cache
def _async_engine() -> AsyncEngine:
    from sqlalchemy.ext.asyncio import create_async_engine  # noqa: PLC0415  needs greenlet

    async def creator() -> Any:
        return _next()

    return create_async_engine(
        "postgresql+psycopg://", async_creator=creator, poolclass=NullPool, use_native_hstore=False
    )


def _next() -> NestedConnection:
    nested = _NEXT.get()
    if nested is None:
        raise StoreError(
            "SQLAlchemy asked for a second connection: the handler's was lost, or invalidated. "
            "Let the error end the handler; the event is delivered again."
        )
    return nested


class NestedConnection:
    """A DB-API connection whose transactions are savepoints of the handler's transaction; `begin`
    must be called first.

    SQLAlchemy commits, rolls back and closes its connections. A handler's connection refuses all
    three, because its transaction ends with the completion. Here each of them acts on the writes
    since the last one. Each method returns the result of `run`: over `job.async_connection()`, an
    awaitable.
    """

    def __init__(self, outer: Any, cursor: Callable[..., Any], run: Callable[..., Any]) -> None:
        self._outer = outer
        self._run = run
        self.cursor = cursor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._outer, name)

    def begin(self) -> Any:
        return self._run(BEGIN)

    def commit(self) -> Any:
        """Keep the writes since the last commit or rollback; they commit with the completion."""
        return self._run(KEEP, BEGIN)

    def rollback(self) -> Any:
        """Undo the writes since the last commit."""
        return self._run(UNDO)

    def close(self) -> Any:
        """Undo writes that were not committed, and leave the handler's transaction open."""
        return self._run(UNDO, KEEP)

    def add_notice_handler(self, _: object) -> None:
        """Do nothing: the handler would stay on a connection that other jobs use later."""

    @property
    def autocommit(self) -> bool:
        return False

    @autocommit.setter
    def autocommit(self, on: bool) -> None:
        if on:
            raise refused_in_transaction("autocommit")

    async def set_autocommit(self, on: bool) -> None:  # noqa: FBT001  as psycopg has it
        self.autocommit = on
