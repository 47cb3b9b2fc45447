"""The connection that a handler writes through: only the store can end its transaction."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator
from typing import Any, Final, NoReturn, TypeVar, cast

import psycopg
from psycopg.adapt import AdaptersMap
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import AsyncRowFactory

from eventonce.errors import StoreError, refused_in_transaction

T = TypeVar("T")

TRANSACTION_ENDED: Final = (
    "the transaction was ended inside its block, by a COMMIT or a ROLLBACK. The end of the block "
    "does that."
)


class NoAnswer(psycopg.OperationalError):
    """The server did not answer in time."""


class GuardedConnection(psycopg.Connection[Any]):
    """A connection of the store's own pool: it gives up a server that does not answer the store's
    statements in time, and guards the transaction while a handler uses it."""

    timeout: float
    """Seconds for a statement of the store."""

    in_handler = False
    """Whether a handler uses the connection; its statements may take any time."""

    given_up = False
    """Whether the server did not answer in time, or has ended the session."""

    def wait(self, gen: Generator[Any, Any, T], *args: Any, **options: Any) -> T:
        """Wait for the server; psycopg calls this for everything it does."""
        if self.in_handler:
            refuse_outside(self)
            return super().wait(gen, *args, **options)
        try:
            return super().wait(within(gen, self.timeout), *args, **options)
        except NoAnswer:
            self.given_up = True
            raise

    def commit(self) -> None:
        raise refused_in_transaction("commit()")

    def rollback(self) -> None:
        raise refused_in_transaction("rollback()")

    def close(self) -> None:
        if self.in_handler:
            raise refused_in_transaction("close()")
        super().close()


class AsyncGuardedConnection(psycopg.AsyncConnection[Any]):
    """The session of a connection for an `async def` handler, while its transaction is open.

    Only the handler's statements use it: the store begins and ends the transaction through the
    `outer` connection.
    """

    def __init__(self, outer: psycopg.Connection[Any]) -> None:
        notices = outer.pgconn.notice_handler, outer.pgconn.notify_handler
        # Both kinds of cursor have what a row factory uses.
        super().__init__(outer.pgconn, cast("AsyncRowFactory[Any]", outer.row_factory))
        # Notices go to the outer connection, which outlives this one.
        self.pgconn.notice_handler, self.pgconn.notify_handler = notices
        # The names of prepared statements belong to the session.
        self._prepared = outer._prepared  # noqa: SLF001
        self._outer = outer
        self._waits = 0
        self._left: asyncio.Future[None] | None = None
        """A future, set at the end of the transaction: done when no statement is awaited."""

    @property
    def adapters(self) -> AdaptersMap:
        return self._outer.adapters

    async def wait(self, gen: Generator[Any, Any, T], *args: Any, **options: Any) -> T:
        """Wait for the server; psycopg calls this for everything it does."""
        self._refuse_late()
        refuse_outside(self)
        self._waits += 1
        try:
            return await super().wait(self._until_ended(gen), *args, **options)
        finally:
            self._waits -= 1
            if self._left is not None and not self._waits:
                self._left.set_result(None)

    def end(self) -> asyncio.Future[None]:
        """Refuse further statements; the future is done when no statement is awaited."""
        self._left = asyncio.get_running_loop().create_future()
        if not self._waits:
            self._left.set_result(None)
        return self._left

    def _until_ended(self, gen: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
        try:
            state = next(gen)
            while True:
                # psycopg continues several times a second, even if nothing is ready.
                ready = yield state
                self._refuse_late()
                state = gen.send(ready)
        except StopIteration as stop:
            value: T = stop.value
            return value

    def _refuse_late(self) -> None:
        if self._left is not None:
            raise StoreError(
                "the transaction of this connection has ended with its handler. Await all "
                "statements before the handler returns, and get the connection again in each run."
            )

    async def __aenter__(self) -> NoReturn:
        raise refused_in_transaction("`async with` over the connection")

    async def commit(self) -> None:
        raise refused_in_transaction("commit()")

    async def rollback(self) -> None:
        raise refused_in_transaction("rollback()")

    async def close(self) -> None:
        raise refused_in_transaction("close()")

    def __del__(self, *_: Any) -> None:
        """Do nothing: the session stays open."""


def within(gen: Generator[Any, Any, T], seconds: float) -> Generator[Any, Any, T]:
    """Wait for the same answer; raise NoAnswer if there is none within so many seconds."""
    end = time.monotonic() + seconds
    try:
        state = next(gen)
        while True:
            # Falsy if nothing is ready: psycopg continues several times a second.
            ready = yield state
            if not ready and time.monotonic() >= end:
                raise NoAnswer(f"no answer within {seconds:g} s")
            state = gen.send(ready)
    except StopIteration as stop:
        value: T = stop.value
        return value


def refuse_outside(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    """Refuse a statement after the end of the transaction: it would commit by itself."""
    if connection.pgconn.transaction_status == TransactionStatus.IDLE:
        raise StoreError(TRANSACTION_ENDED)


def under_way(connection: psycopg.Connection[Any]) -> bool:
    """Return whether a statement is in flight: then the connection cannot take another one."""
    return (
        connection.pgconn.transaction_status == TransactionStatus.ACTIVE
        or connection.pgconn.pipeline_status != PipelineStatus.OFF
    )
