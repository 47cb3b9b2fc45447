"""Completion in the caller's own transaction: her writes and the settlement commit together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.pq import PipelineStatus, TransactionStatus

from eventonce.errors import StoreError, StoreUnavailable
from eventonce.stores.postgres import codec as wire
from eventonce.stores.postgres.connections import hurried, rows
from eventonce.stores.postgres.database import Database
from eventonce.stores.postgres.errors import explain
from eventonce.types import Settlement, SettleResult


class PostgresTransaction:
    """A transaction open for the caller's writes.

    The record is not locked before it is settled: its lease can be renewed while the handler works,
    and whoever takes it over is not kept waiting. If that happens the settlement is refused, and
    the caller's writes can be rolled back.
    """

    def __init__(
        self, connection: psycopg.Connection[Any], database: Database, query: bytes
    ) -> None:
        self.connection = connection
        self._database = database
        self._query = query

    def settle(self, settlement: Settlement) -> SettleResult:
        """Settle within this transaction: it counts only if the transaction commits. From here to
        there the record is locked, so let it be the last thing."""
        self.still_open()
        database = self._database
        with database.explaining(), hurried(self.connection, database.address.timeout):
            found = rows(self.connection, self._query, wire.ended([settlement]), None, True)
        (kept,) = wire.answers([settlement], found)
        if kept is None:
            raise AssertionError("who is patient is never told that a row is locked")
        return kept

    def failed(self, error: BaseException) -> bool:
        """Whether the server or the network, and not the caller's own statements, raised this. A
        statement that took longer than the caller allows it is the caller's."""
        if self.connection.broken or isinstance(error, StoreUnavailable):
            return True
        if not isinstance(error, psycopg.Error) or isinstance(error, psycopg.errors.QueryCanceled):
            return False
        explained = explain(error, self._database.address, proven=True)
        return isinstance(explained, StoreUnavailable)

    def still_open(self) -> None:
        """Refuse to go on with what the caller has ended, or what the server will not commit."""
        place = self._database.address.shown
        if under_way(self.connection):
            raise StoreError(
                f"{place}: a statement is still under way in this transaction, which is rolled "
                f"back: a COPY, a stream() or a pipeline() that was not left, or another thread's. "
                f"Bring it to its end before the handler or the block returns: `with …`"
            )
        match self.connection.info.transaction_status:
            case TransactionStatus.INTRANS:
                return
            case TransactionStatus.INERROR:
                raise StoreError(
                    f"{place}: a statement in this transaction failed, and with it the whole "
                    f"transaction, although its error was caught. To go on after an error put the "
                    f"statement in a savepoint: `with connection.transaction(): …`"
                )
            case TransactionStatus.IDLE:
                raise StoreError(
                    f"{place}: the transaction was ended inside its block, by a COMMIT or a "
                    f"ROLLBACK. Leave that to the block's end."
                )
            case _ if not self.connection.broken:
                raise StoreError(
                    f"{place}: the connection was closed inside its block, which rolls the "
                    f"transaction back. Leave that to the store."
                )
            case _:
                raise StoreUnavailable(
                    f"{place}: the connection was lost inside the transaction; nothing of it was "
                    f"written."
                )


def under_way(connection: psycopg.Connection[Any]) -> bool:
    """Whether the connection cannot take a statement now: it would be waited for without end."""
    return (
        connection.info.transaction_status == TransactionStatus.ACTIVE
        or connection.pgconn.pipeline_status != PipelineStatus.OFF
    )


@contextmanager
def transaction(database: Database, settle: bytes) -> Iterator[PostgresTransaction]:
    """Commits on a normal exit, rolls back on an exception."""
    with database.begun() as (connection, scope):
        timeout = database.address.timeout
        opened = PostgresTransaction(connection, database, settle)
        try:
            yield opened
            opened.still_open()
        except BaseException as error:
            if under_way(connection):
                # Nothing can be sent through it, a ROLLBACK neither: the server ends it all.
                connection.close()
                raise
            with hurried(connection, timeout):
                scope.__exit__(type(error), error, error.__traceback__)
            raise
        with database.explaining(), hurried(connection, timeout):
            scope.__exit__(None, None, None)
