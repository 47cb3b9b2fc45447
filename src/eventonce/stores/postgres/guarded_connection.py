"""The connection that a handler writes through: the store ends its transaction, and nobody else."""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any, Final, NoReturn, TypeVar

import psycopg
from psycopg.pq import PipelineStatus, TransactionStatus

from eventonce.errors import StoreError

T = TypeVar("T")

ENDED: Final = (
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
    """Whether the statements are a handler's: they take as long as they take."""

    given_up = False
    """Whether its server did not answer in time, or can do no more for us."""

    def wait(self, gen: Generator[Any, Any, T], *args: Any, **options: Any) -> T:
        """Wait for the server; psycopg calls this for everything it does."""
        if self.lent:
            refuse_outside(self)
            return super().wait(gen, *args, **options)
        try:
            return super().wait(_within(gen, self.timeout), *args, **options)
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


def _within(gen: Generator[Any, Any, T], seconds: float) -> Generator[Any, Any, T]:
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
        raise StoreError(ENDED)


def under_way(connection: psycopg.Connection[Any]) -> bool:
    """Whether the connection cannot take a statement now: it would be waited for without end."""
    return (
        connection.pgconn.transaction_status == TransactionStatus.ACTIVE
        or connection.pgconn.pipeline_status != PipelineStatus.OFF
    )
