"""The connection that a handler writes through: the store ends its transaction, and nobody else."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator
from typing import Any, Final, NoReturn, TypeVar, cast

import psycopg
from psycopg.adapt import AdaptersMap
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import AsyncRowFactory

from eventonce.errors import StoreError

T = TypeVar("T")

TRANSACTION_ENDED: Final = (
    "the transaction was ended inside its block, by a COMMIT or a ROLLBACK. Leave that to the "
    "block's end."
)


class NoAnswer(psycopg.OperationalError):
    """The server did not answer in time."""


class GuardedConnection(psycopg.Connection[Any]):
    """A connection of the store's own: times the store's statements, so that a server which does
    not answer is given up, and guards the transaction while a handler has it."""

    timeout: float
    """Seconds for a statement of the store's."""

    lent = False
    """Whether the statements are a handler's, which may take any time."""

    given_up = False
    """Whether its server did not answer in time, or can do no more for us."""

    def wait(self, gen: Generator[Any, Any, T], *args: Any, **options: Any) -> T:
        """Wait for the server; psycopg calls this for everything it does."""
        if self.lent:
            refuse_outside(self)
            return super().wait(gen, *args, **options)
        try:
            return super().wait(within(gen, self.timeout), *args, **options)
        except NoAnswer:
            self.given_up = True
            raise

    def commit(self) -> None:
        refuse("commit()")

    def rollback(self) -> None:
        refuse("rollback()")

    def close(self) -> None:
        if self.lent:
            refuse("close()")
        super().close()


class AsyncGuardedConnection(psycopg.AsyncConnection[Any]):
    """The same session of the server for an `async def` handler, while it has the transaction.

    Only the handler's statements go through it: the store begins and ends the transaction through
    the connection that it was made from.
    """

    def __init__(self, outer: psycopg.Connection[Any]) -> None:
        notices = outer.pgconn.notice_handler, outer.pgconn.notify_handler
        # A row factory asks its cursor for what both kinds of cursor have.
        super().__init__(outer.pgconn, cast("AsyncRowFactory[Any]", outer.row_factory))
        # Told to the connection that lasts.
        self.pgconn.notice_handler, self.pgconn.notify_handler = notices
        # The names of prepared statements are the session's.
        self._prepared = outer._prepared  # noqa: SLF001
        self._outer = outer
        self._waits = 0
        self._left: asyncio.Future[None] | None = None
        """A future of an ended transaction: done when nobody awaits a statement any more."""

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
        """Refuse all further statements; done when nobody awaits one."""
        self._left = asyncio.get_running_loop().create_future()
        if not self._waits:
            self._left.set_result(None)
        return self._left

    def _until_ended(self, gen: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
        try:
            state = next(gen)
            while True:
                # Woken several times a second, also where nothing is ready.
                ready = yield state
                self._refuse_late()
                state = gen.send(ready)
        except StopIteration as stop:
            value: T = stop.value
            return value

    def _refuse_late(self) -> None:
        if self._left is not None:
            raise StoreError(
                "the transaction of this connection has ended with its handler. Await all that "
                "writes through it before the handler returns, and ask for it anew in each run."
            )

    async def __aenter__(self) -> NoReturn:
        refuse("`async with` over the connection")

    async def commit(self) -> None:
        refuse("commit()")

    async def rollback(self) -> None:
        refuse("rollback()")

    async def close(self) -> None:
        refuse("close()")

    def __del__(self, *_: Any) -> None:
        """Nothing: the session goes on."""


def within(gen: Generator[Any, Any, T], seconds: float) -> Generator[Any, Any, T]:
    """The same question to the server; NoAnswer where it has no answer by then."""
    end = time.monotonic() + seconds
    try:
        state = next(gen)
        while True:
            # Falsy where nothing is ready: psycopg looks in several times a second.
            ready = yield state
            if not ready and time.monotonic() >= end:
                raise NoAnswer(f"no answer within {seconds:g} s")
            state = gen.send(ready)
    except StopIteration as stop:
        value: T = stop.value
        return value


def refuse(what: str) -> NoReturn:
    """Say what to do instead."""
    raise StoreError(
        f"{what} is refused inside a handler's transaction: what the handler writes commits "
        f"together with the completion. For what has to be committed apart use a connection of "
        f"your own."
    )


def refuse_outside(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    """Refuse a statement after the end of the transaction: it would be committed by itself."""
    if connection.pgconn.transaction_status == TransactionStatus.IDLE:
        raise StoreError(TRANSACTION_ENDED)


def under_way(connection: psycopg.Connection[Any]) -> bool:
    """Whether the connection cannot take a statement now: it would be waited for without end."""
    return (
        connection.pgconn.transaction_status == TransactionStatus.ACTIVE
        or connection.pgconn.pipeline_status != PipelineStatus.OFF
    )
