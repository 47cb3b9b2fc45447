"""The connection for a caller's own statements; it refuses to end the transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from threading import get_ident
from typing import Any, Final, NoReturn, Self

from eventonce.errors import StoreError, StoreUnavailable

ENDED: Final = (
    "the transaction of this connection has ended, or belongs to another thread. Get the "
    "connection again in each run, and let an error that ended the transaction end the handler."
)

INTERRUPTED: Final = (
    "an exception from a signal was lost inside a callback of SQLite, and the statement failed. "
    "Nothing was committed; let this error end the handler, and try again."
)

KEEP: Final = "COMMIT -- the store's own"
"""A text that no caller uses: the driver caches prepared statements by their text, and SQLite asks
the authorizer only when it prepares a statement."""


class GuardedConnection(sqlite3.Connection):
    """Refuses statements that would end the store's transaction, before they are committed:
    afterwards the caller's writes would stand without their completion, and be made again.

    The caller may use savepoints. The store commits or rolls back the whole transaction.
    """

    _ours = True
    """Whether the store, not the caller, runs a statement."""

    denied = False
    """Whether this connection refused the last statement."""

    thread: int | None = None
    """The thread whose transaction is open; another thread that kept the connection is refused."""

    def guard(self) -> None:
        """Refuse statements that end the transaction from now on."""
        # SQLite asks when it prepares a statement; after this call it prepares all of them again.
        super().set_authorizer(self._authorize)
        self._ours = False

    def keep(self) -> None:
        """Commit."""
        self._ours = True
        try:
            super().execute(KEEP)
        finally:
            self._ours = False

    @property
    def running(self) -> bool:
        """Whether the transaction is open: SQLite itself ends it after some errors (full disk)."""
        return not self.closed and self.in_transaction

    @property
    def closed(self) -> bool:
        """Whether the caller has closed the connection."""
        try:
            return self.total_changes < 0
        except sqlite3.ProgrammingError:
            return True

    def cursor(self, factory: Any = None) -> Any:
        return super().cursor(factory or GuardedCursor)

    def execute(self, *asked: Any) -> sqlite3.Cursor:
        return super().execute(*asked) if self._ours else run(self, super().execute, asked)

    def executemany(self, *asked: Any) -> sqlite3.Cursor:
        return run(self, super().executemany, asked)

    def executescript(self, *_: object) -> NoReturn:
        refuse("executescript()")

    def commit(self) -> None:
        refuse("commit()")

    def rollback(self) -> None:
        refuse("rollback()")

    def close(self) -> None:
        refuse("close()")

    def set_authorizer(self, *_: object) -> None:
        refuse("set_authorizer()")

    def __enter__(self) -> NoReturn:
        refuse("`with connection:`")

    def __exit__(self, *_: object) -> NoReturn:
        refuse("`with connection:`")

    def _authorize(self, action: int, first: str | None, *_: object) -> int:
        # A BEGIN inside a transaction is refused by SQLite.
        ends = action == sqlite3.SQLITE_TRANSACTION and first != "BEGIN"
        self.denied = ends and not self._ours
        return sqlite3.SQLITE_DENY if self.denied else sqlite3.SQLITE_OK


def undo(connection: GuardedConnection) -> None:
    """Roll back and close, whatever the caller has done to the connection; idempotent.

    Closing alone does not roll back while a cursor still has rows, and an interrupted authorizer
    refuses the rollback. Each step is the driver's own, in C, and runs even if an exception
    interrupts the one before.
    """
    try:
        sqlite3.Connection.set_authorizer(connection, None)
    except sqlite3.Error:
        pass  # closed
    finally:
        try:
            sqlite3.Connection.rollback(connection)
        except sqlite3.Error:
            pass  # closed, or SQLite has rolled back
        finally:
            sqlite3.Connection.close(connection)


class GuardedCursor(sqlite3.Cursor):
    """A cursor whose statements stay inside the transaction."""

    def execute(self, *asked: Any) -> Self:
        run(self.connection, super().execute, asked)
        return self

    def executemany(self, *asked: Any) -> Self:
        run(self.connection, super().executemany, asked)
        return self

    def executescript(self, *_: object) -> NoReturn:
        refuse("executescript()")


def run(
    connection: Any, execute: Callable[..., sqlite3.Cursor], asked: tuple[Any, ...]
) -> sqlite3.Cursor:
    """Run a statement inside the transaction; outside of it, it would commit at once."""
    if not connection.in_transaction or connection.thread != get_ident():
        raise StoreError(ENDED)
    connection.denied = False
    try:
        return execute(*asked)
    except sqlite3.DatabaseError as error:
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_AUTH:
            if not connection.denied:
                raise StoreUnavailable(INTERRUPTED) from error
            refuse(str(asked[0]).strip(), error)
        raise


def refuse(what: str, why: Exception | None = None) -> NoReturn:
    """Raise StoreError with the remedy."""
    raise StoreError(
        f"{what} is refused on this connection, and nothing was committed: its transaction ends "
        f"with the handler or the block, together with the completion. Write through execute and "
        f"executemany; to undo a part of it, use a SAVEPOINT."
    ) from why
