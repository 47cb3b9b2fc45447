"""The caller's own psycopg pool, lent the way `connections` lends ours."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg

from eventonce.errors import ConfigError
from eventonce.stores.postgres.connections import RETRIES, ROLLED_BACK, Scope, lost, pause

if TYPE_CHECKING:
    from psycopg_pool import ConnectionPool

T = TypeVar("T")


class GivenPool:
    """Borrows connections and gives them back as they were; the pool is the caller's to close.

    How long to wait, for a connection or an answer, is what the caller's pool and connections say.
    """

    def __init__(self, pool: ConnectionPool[Any]) -> None:
        self._pool = pool
        self._pid = os.getpid()

    def do(self, work: Callable[[psycopg.Connection[Any]], T]) -> T:
        """As `OwnConnections.do`."""
        retries, checked = 0, False
        while True:
            if retries:
                pause(retries)
            with self._own().connection() as connection:
                try:
                    return _alone(connection, work)
                except psycopg.Error as error:
                    if error.sqlstate in ROLLED_BACK and retries < RETRIES:
                        retries += 1
                        continue
                    if checked or not lost(connection, error):
                        raise
                    connection.close()
            # The pool throws out all that died with it.
            checked = True
            self._pool.check()

    @contextmanager
    def begun(self) -> Iterator[tuple[psycopg.Connection[Any], Scope]]:
        """As `OwnConnections.begun`; a dead connection is told by the pool's own `check=`."""
        with self._own().connection() as connection:
            scope = connection.transaction()
            scope.__enter__()
            yield connection, scope

    def close(self) -> None:
        """Nothing: the pool is the caller's."""

    def _own(self) -> ConnectionPool[Any]:
        if os.getpid() != self._pid:
            raise ConfigError(
                "PostgresStore: this process was forked after its psycopg pool was made, and a "
                "pool does not survive that. Make pool and store in each process, or give the "
                "store a postgresql:// URI: it then opens connections of its own after a fork."
            )
        return self._pool


def _alone(connection: psycopg.Connection[Any], work: Callable[[psycopg.Connection[Any]], T]) -> T:
    """In a transaction that is this one statement: begun, done and committed in one round trip."""
    if connection.autocommit:
        return work(connection)
    connection.autocommit = True
    try:
        return work(connection)
    finally:
        if not connection.closed:
            connection.autocommit = False
