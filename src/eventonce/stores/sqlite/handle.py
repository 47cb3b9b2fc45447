"""One process's hold on the file: whose turn it is, over threads, transactions and forks."""

from __future__ import annotations

import os
import sqlite3
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from eventonce.errors import StoreError, StoreUnavailable
from eventonce.stores.sqlite.file import Place, explained
from eventonce.stores.sqlite.lent import Lent

QUEUE: Final = 60.0
"""Seconds a handler waits for its transaction behind other threads': as long as the default lease,
for by then its run is another's."""


class Handle:
    """The connections of one store, and the turns that threads take at them.

    SQLite lets one write at a time, so threads take turns on one connection for the store's own
    work; a caller's transaction has another, because what the caller sets on it must not reach the
    store's work; and every reading has its own, so that it waits for nobody and nobody for it.
    """

    def __init__(self, place: Place) -> None:
        self.place = place
        self._turn = threading.Lock()
        self._holder: int | None = None
        self._worker: sqlite3.Connection | None = None
        self._guest: Lent | None = None
        self._file: tuple[int, int] | None = None
        self._gone = ""
        with explained(place, opening=True):
            self._open()
        _handles.add(self)

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction of the store's own: commits on a normal exit, else rolls back."""
        with self._holding(self.place.wait), explained(self.place):
            connection = self._open()
            with self.place.writing(connection):
                yield connection

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A connection that sees what is committed."""
        self._still_here()
        with explained(self.place):
            connection = self.place.open_for_reading()
            try:
                yield connection
            finally:
                connection.close()

    @contextmanager
    def lending(self) -> Iterator[Lent]:
        """A transaction for the caller's own statements, whose errors stay as they are."""
        with self._holding(QUEUE):
            with explained(self.place):
                self._open()
                if self._guest is None:
                    self._guest = self.place.open_to_lend()
                connection = self._guest
                self.place.begin(connection)
            self._holder = connection.lent_to = threading.get_ident()
            try:
                yield connection
                self._still_here()
                self.still_lent(connection)
                with explained(self.place):
                    connection.keep()
            except BaseException:
                if not self._gone:
                    with suppress(sqlite3.Error):
                        if connection.running:
                            connection.undo()
                        # The next one shall not suffer from what this one may have set.
                        sqlite3.Connection.close(connection)
                    self._guest = None
                raise
            finally:
                self._holder = connection.lent_to = None

    def still_lent(self, connection: Lent) -> None:
        """Refuse to go on if the transaction has ended."""
        if not connection.running:
            raise StoreError(
                f"{self.place.path}: the transaction was ended inside its block: by an error at "
                f"which SQLite rolls back, an `OR ROLLBACK`, or closing the connection. Nothing of "
                f"it counts; let such an error end the handler too."
            )

    def close(self) -> None:
        """Let go of everything; closing again does nothing."""
        if not self._gone:
            with self._holding(self.place.wait):
                self._gone = "this store was closed; open another"
                self._let_go()

    @contextmanager
    def _holding(self, wait: float) -> Iterator[None]:
        """This thread's turn at writing."""
        self._still_here()
        if self._holder == threading.get_ident():
            raise StoreError(
                f"{self.place.path}: this thread has a transaction of this store open, and the "
                f"store waits for its end. Settle through the transaction, or leave it first."
            )
        if not self._turn.acquire(timeout=wait):
            raise StoreUnavailable(
                f"{self.place.path}: other threads have held the store for longer than {wait:g} s. "
                f"Try again; if it stays so, look for a handler's transaction that is held open."
            )
        try:
            self._still_here()
            yield
        finally:
            self._turn.release()

    def _still_here(self) -> None:
        if self._gone:
            raise StoreError(f"{self.place.path}: {self._gone}")

    def _open(self) -> sqlite3.Connection:
        """The connection that does the work, opened again after a fork."""
        if self._worker is not None and self._file != self._identity():
            # Going on would write into a file that no other process finds.
            self._let_go()
            raise StoreUnavailable(
                f"{self.place.path}: the file was removed or replaced while it was open. What it "
                f"remembered is in the file that was moved; the next call takes what is there now."
            )
        if self._worker is None:
            self._worker = self.place.open_for_writing()
            self._file = self._identity()
        return self._worker

    def _identity(self) -> tuple[int, int] | None:
        try:
            status = self.place.path.stat()
        except FileNotFoundError:
            return None
        return status.st_dev, status.st_ino

    def _let_go(self) -> None:
        for connection in (self._guest, self._worker):
            if connection is not None:
                # A caller's own `close` would be refused.
                sqlite3.Connection.close(connection)
        self._guest = self._worker = None

    def before_fork(self) -> bool:
        """Close what must not live on in two processes; whether that could be done.

        SQLite's locks belong to a process. The child of a fork has none of them, but SQLite in it
        believes it has, even for connections that it opens anew beside those it was born with.
        """
        if self._holder == threading.get_ident() or not self._turn.acquire(timeout=self.place.wait):
            return False
        self._let_go()
        return True

    def after_fork(self, *, closed: bool, child: bool) -> None:
        """Go on, in both processes."""
        if closed:
            self._turn.release()
        elif child:
            self._gone = (
                "this process was forked while a transaction was open, and SQLite cannot be used "
                "in it. Fork outside of transactions, or start processes by spawn"
            )


_handles: weakref.WeakSet[Handle] = weakref.WeakSet()
_forking: list[tuple[Handle, bool]] = []


def _before_fork() -> None:
    _forking[:] = [(handle, handle.before_fork()) for handle in list(_handles)]


def _after_fork(*, child: bool) -> None:
    while _forking:
        handle, closed = _forking.pop()
        handle.after_fork(closed=closed, child=child)


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=lambda: _after_fork(child=False),
        after_in_child=lambda: _after_fork(child=True),
    )
