"""The connection for a caller's own statements, which refuses to end the transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from threading import get_ident
from typing import Any, Final, NoReturn, Self

from eventonce.errors import StoreError, StoreUnavailable

ENDED: Final = (
    "the transaction of this connection has ended, or is another thread's. Ask for the "
    "connection anew in each run, and let an error that ended the transaction end the handler too."
)

INTERRUPTED: Final = (
    "a signal's exception fell on a question of SQLite's and was lost there, with the statement. "
    "Nothing was committed; let this error end the handler too, and try again."
)

KEEP: Final = "COMMIT -- the store's own"
"""In words that no caller uses: the driver keeps statements prepared by their text, and SQLite does
not ask again whether it may run one that is."""


class GuardedConnection(sqlite3.Connection):
    """Refuses what would end the store's transaction, before anything is committed: if that were
    noticed afterwards, the caller's writes would stand without their completion, and be made again.

    Savepoints are the caller's. The store keeps or undoes the whole.
    """

    _ours = True
    """Whether it is the store that asks."""

    denied = False
    """Whether it was us who refused a statement."""

    thread: int | None = None
    """The thread whose transaction is open: one that kept the connection writes into no other's."""

    def guard(self) -> None:
        """From here on others ask."""
        # SQLite asks when it prepares a statement; after this it prepares every one of them anew.
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
        """Whether the transaction is open: SQLite itself ends it at some errors (a full disk)."""
        return not self.closed and self.in_transaction

    @property
    def closed(self) -> bool:
        """Whether it was closed behind our back."""
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
        # One within another is SQLite's to refuse.
        ends = action == sqlite3.SQLITE_TRANSACTION and first != "BEGIN"
        self.denied = ends and not self._ours
        return sqlite3.SQLITE_DENY if self.denied else sqlite3.SQLITE_OK


def undo(connection: GuardedConnection) -> None:
    """Roll back and close, whatever the caller has done to it; again it does nothing.

    Closing alone rolls nothing back as long as a cursor is in the midst of its rows, and an
    authorizer that is interrupted forbids the rollback. Each step is the driver's own, in C, and is
    taken even if an exception falls on the one before.
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
    """Run a statement inside the transaction; outside of it, it would be committed at once."""
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
    """Say what to do instead."""
    raise StoreError(
        f"{what} is refused on this connection, and nothing was committed: its transaction ends "
        f"with the handler or the block, together with the completion. Write through execute and "
        f"executemany; to take back a part of it, use a SAVEPOINT."
    ) from why
