"""The database as the store sees it: asked in one round trip, its errors explained as ours."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
import psycopg

from eventonce.errors import ConfigError, EventonceError, StoreError, StoreMismatch
from eventonce.stores.postgres import admin as schema
from eventonce.stores.postgres.codec import Row
from eventonce.stores.postgres.connections import OwnConnections, Scope, rows
from eventonce.stores.postgres.errors import UNKNOWN, explain
from eventonce.stores.postgres.external_pool import GivenPool
from eventonce.stores.postgres.uri import Address, named, read

if TYPE_CHECKING:
    from psycopg_pool import ConnectionPool

T = TypeVar("T")
Connection = psycopg.Connection[Any]

QUEUE: Final = 60.0
"""Seconds a handler waits for its transaction behind others': as long as the default lease, for by
then its run is another's."""


class Database:
    """Two sets of connections: what handlers hold must not keep leases from being renewed."""

    def __init__(
        self,
        database: str | ConnectionPool[Any],
        schema: str,
        password: Callable[[], str] | None = None,
    ) -> None:
        self._work: OwnConnections | GivenPool
        self._guests: OwnConnections | GivenPool
        if isinstance(database, str):
            self.address = address = _with_password(read(database), password)
            work = OwnConnections(address, address.connections, address.timeout)
            guests = OwnConnections(address, address.transactions, QUEUE)
            work.siblings = guests.siblings = (work, guests)
            self._work, self._guests = work, guests
        elif _is_pool(database):
            if password is not None:
                raise ConfigError(
                    "PostgresStore: password= goes with a postgresql:// URI; a psycopg pool "
                    "connects by itself, and takes a function as its kwargs=, or a connection_class"
                )
            self.address = Address("the pool's database", schema=named(schema))
            self._work = self._guests = GivenPool(database)
        else:
            kind = type(database)
            raise ConfigError(
                f"PostgresStore takes a postgresql:// URI or a psycopg_pool.ConnectionPool, and "
                f"this is a {kind.__module__}.{kind.__qualname__}. One connection would not do: "
                f"leases are renewed while a handler has its transaction open. Stores are "
                f"synchronous, under asyncio too."
            )
        self._proven = False
        self._closed = False

    def ask(self, query: bytes, *args: object) -> list[Row]:
        """The rows this statement answers. May be sent twice, so let it be one that bears it."""
        return self.do(lambda connection: rows(connection, query, *args))

    def do(self, work: Callable[[Connection], T]) -> T:
        """Do this with a connection, in autocommit mode; it may be done twice."""
        self._still_open()
        try:
            done = self._work.do(work)
        except psycopg.Error as error:
            raise self._explained(error) from error
        self._proven = True
        return done

    @contextmanager
    def begun(self) -> Iterator[tuple[Connection, Scope]]:
        """A connection in a new transaction, which the caller ends."""
        self._still_open()
        context = self._guests.begun()
        with self.explaining():
            lent = context.__enter__()
        self._proven = True
        try:
            yield lent
        finally:
            context.__exit__(None, None, None)

    @contextmanager
    def explaining(self) -> Iterator[None]:
        """The driver's errors as ours."""
        try:
            yield
        except psycopg.Error as error:
            raise explain(error, self.address, proven=self._proven) from error

    def close(self) -> None:
        """Let go of the connections; of none that the caller gave."""
        self._closed = True
        self._work.close()
        self._guests.close()

    def _explained(self, error: psycopg.Error) -> EventonceError:
        if error.sqlstate in UNKNOWN:
            try:
                return StoreMismatch(self._work.do(lambda it: schema.tell(it, self.address)))
            except psycopg.Error as other:
                error = other
        return explain(error, self.address, proven=self._proven)

    def _still_open(self) -> None:
        if self._closed:
            raise StoreError(f"{self.address.shown}: this store was closed; open another")


def _with_password(address: Address, password: Callable[[], str] | None) -> Address:
    if password is None:
        return address
    if address.password is not None or "password" in address.parameters:
        raise ConfigError(f"store {address.shown}: give its password once: here, or in the URI")
    return msgspec.structs.replace(address, password=password)


def _is_pool(given: object) -> bool:
    """By what is asked of it: a connection too has an attribute `connection`."""
    return all(hasattr(given, name) for name in ("connection", "check")) and not hasattr(
        given, "__aenter__"
    )
