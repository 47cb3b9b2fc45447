"""A history in PostgreSQL, for the processes of many machines."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

import psycopg
from psycopg.pq import TransactionStatus

from eventonce.errors import StoreUnavailable
from eventonce.history.driver import rows_of
from eventonce.stores.postgres.guarded_connection import NoAnswer, within
from eventonce.stores.postgres.uri import read

T = TypeVar("T")

STATEMENT_TIMEOUT: Final = 60.0
"""The shortest timeout of a statement, in seconds: some read all decisions. A silent server is
mostly found sooner, because each transaction begins with a quick statement that has the timeout of
the URI."""


class _Connection(psycopg.Connection[Any]):
    """A connection with a timeout for each statement."""

    timeout: float
    """The timeout of a statement, in seconds."""

    def wait(self, gen: Generator[Any, Any, T], *args: Any, **options: Any) -> T:
        """Wait for the server; psycopg calls this method for every request."""
        try:
            return super().wait(within(gen, self.timeout), *args, **options)
        except NoAnswer:
            # Otherwise the end of a pipeline, or a rollback, would wait for the server again.
            self.close()
            raise


class PostgresDriver:
    """Tables in the schema that the URI names; a lost connection is opened again."""

    number = "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY"
    row = number
    octets = "BYTEA"
    fixed = False
    missing = ""

    def __init__(self, uri: str) -> None:
        self._address = read(uri)
        self.first: Sequence[str] = (f"CREATE SCHEMA IF NOT EXISTS {self._address.quoted}",)
        self._connection: _Connection | None = None

    def begin(self) -> None:
        self.run("SELECT pg_advisory_xact_lock(hashtext('eventonce_history'))")

    def has(self, name: str) -> bool:
        ((found,),) = self.rows("SELECT to_regclass(?)", (name,))
        return found is not None

    def refused(self, _error: Exception, /) -> str:
        """Return nothing: the server's error names the missing right, and a new right takes effect
        on the open connection."""
        return ""

    def removed(self) -> bool:
        return False

    def run(self, query: str, values: Sequence[Any] = ()) -> int:
        return self._cursor().execute(query.replace("?", "%s"), values or None).rowcount

    def insert(self, table: str, columns: Sequence[str], values: Sequence[Any]) -> None:
        row = f"({', '.join('?' * len(columns))})"
        query = f"INSERT INTO {table} ({', '.join(columns)}) VALUES {row}"  # noqa: S608  ours
        self.run_many(query, list(rows_of(values, len(columns))))

    def run_many(self, query: str, rows: Sequence[Sequence[Any]]) -> None:
        self._cursor().executemany(query.replace("?", "%s"), rows)

    def rows(self, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        return self._cursor().execute(query.replace("?", "%s"), values or None).fetchall()

    def commit(self) -> None:
        if self._connection is not None:
            self._connection.commit()

    def empty_log(self) -> None:
        """Do nothing: the server owns its log."""

    def scrub(self) -> str:
        """Do nothing: autovacuum does it."""
        return ""

    def rollback(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(psycopg.Error):
                connection.rollback()
                if not connection.closed:
                    self._connection = connection

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def _cursor(self) -> psycopg.Cursor[Any]:
        connection = self._connection
        if connection is None or connection.closed:
            connection = self._connection = self._connected()
        cursor = connection.cursor()
        if connection.info.transaction_status == TransactionStatus.IDLE:
            # For each transaction: behind PgBouncer the next one may have another connection.
            connection.timeout = self._address.options.timeout
            cursor.execute(f"SET LOCAL search_path TO {self._address.quoted}")
            connection.timeout = max(self._address.options.timeout, STATEMENT_TIMEOUT)
        return cursor

    def _connected(self) -> _Connection:
        parameters = dict(self._address.parameters)
        if self._address.password is not None:
            parameters["password"] = self._address.password()
        try:
            return _Connection.connect(prepare_threshold=None, **parameters)
        except psycopg.OperationalError as error:
            raise StoreUnavailable(f"{self._address.shown}: {error}") from None
