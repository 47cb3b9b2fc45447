"""SQLAlchemy inside a handler's transaction: a session or a connection over `job.connection`."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, partial
from typing import Any

from sqlalchemy import Connection, Engine, create_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from eventonce.errors import StoreError
from eventonce.orm.nested import NestedConnection
from eventonce.types import Job

_NEXT: ContextVar[NestedConnection | None] = ContextVar("eventonce_sqlalchemy", default=None)
"""What the engine is given when it asks for a connection."""


@contextmanager
def connection(job: Job) -> Iterator[Connection]:
    """A SQLAlchemy connection in the handler's transaction.

    Committed when the block is left, undone if it raises. `commit()` keeps and `rollback()` undoes
    what was written since the last of them; what is kept commits with the completion, or not at
    all.
    """
    nested, engine = _nested(job.connection)
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
    """A session over `connection(job)`; the options are those of `sqlalchemy.orm.Session`."""
    with connection(job) as bind, Session(bind, **options) as opened:
        yield opened
        opened.commit()


def _nested(outer: Any) -> tuple[NestedConnection, Engine]:
    if isinstance(outer, sqlite3.Connection):
        return NestedConnection(outer, outer.cursor), _engine("sqlite://")
    from psycopg.rows import tuple_row  # noqa: PLC0415  a driver that SQLite does not need

    # SQLAlchemy reads rows by position, whatever a handler prefers.
    nested = NestedConnection(outer, partial(outer.cursor, row_factory=tuple_row))
    return nested, _engine("postgresql+psycopg://")


@cache
def _engine(uri: str) -> Engine:
    """One for each driver: the first connection asks the server for its version, and all of them
    share what was compiled."""
    # HSTORE would be looked up with the driver's own connection, which this is not.
    native = {"use_native_hstore": False} if uri.startswith("postgresql") else {}
    return create_engine(uri, creator=_next, poolclass=NullPool, **native)


def _next() -> Any:
    nested = _NEXT.get()
    if nested is None:
        raise StoreError(
            "SQLAlchemy asked for another connection than the handler's: it was lost, or "
            "invalidated. Let the error end the handler; the event is delivered again."
        )
    return nested
