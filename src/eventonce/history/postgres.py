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

STATEMENT: Final = 60.0
"""Seconds for a statement, at least: some read all decisions. A server that is silent is mostly
found sooner: each transaction begins with a statement that takes no time."""


class _Connection(psycopg.Connection[Any]):
    """A connection that gives up a server which does not answer."""

    timeout: float
    """Seconds for a statement."""

    def wait(self, gen: Generator[Any, Any, T], *args: Any, **options: Any) -> T:
        """Wait for the server; psycopg calls this for everything it does."""
        try:
            return super().wait(within(gen, self.timeout), *args, **options)
        except NoAnswer:
            # The end of a pipeline, and a rollback, would wait once more.
            self.close()
            raise


class PostgresDriver:
    """Tables in the schema that the URI names; a connection that is gone is opened anew."""

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

    def may(self, name: str, *rights: str) -> bool:
        granted = " AND ".join(["has_table_privilege(to_regclass(?)::oid, ?)"] * len(rights))
        values = [value for right in rights for value in (name, right)]
        ((allowed,),) = self.rows(f"SELECT {granted}", values)
        return bool(allowed)

    def refused(self, _error: Exception, /) -> str:
        """A right that is given counts at once; the server's own words say which is missing."""
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
        """The server's log is its own."""

    def scrub(self) -> str:
        """Autovacuum does so by itself."""
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
            # For each transaction: behind PgBouncer the next one has another server.
            connection.timeout = self._address.timeout
            cursor.execute(f"SET LOCAL search_path TO {self._address.quoted}")
            connection.timeout = max(self._address.timeout, STATEMENT)
        return cursor

    def _connected(self) -> _Connection:
        parameters = dict(self._address.parameters)
        if self._address.password is not None:
            parameters["password"] = self._address.password()
        try:
            return _Connection.connect(prepare_threshold=None, **parameters)
        except psycopg.OperationalError as error:
            raise StoreUnavailable(f"{self._address.shown}: {error}") from None
