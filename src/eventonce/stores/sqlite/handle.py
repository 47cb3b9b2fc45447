"""One process's hold on the file: its connections, over threads, interruptions and forks."""

from __future__ import annotations

import os
import sqlite3
import threading
import weakref
from collections.abc import Callable
from typing import Final, TypeVar

from eventonce.errors import StoreError, StoreUnavailable
from eventonce.stores.sqlite.file import Place, explain, explained
from eventonce.stores.sqlite.guarded_connection import Lent, undo
from eventonce.stores.sqlite.turn import Ticket, Turn

T = TypeVar("T")

QUEUE: Final = 60.0
"""Seconds a handler waits for its transaction behind other threads': as long as the default lease,
for by then its run is another's."""


class Handle:
    """The connections of one store, and the turns that threads take at them.

    SQLite lets one write at a time, so threads take turns on one connection for the store's own
    work; a caller's transaction has another, because what the caller sets on it must not reach the
    store's work; and every reading has its own, so that it waits for nobody and nobody for it.

    An exception may come out of a signal at any instant. Work is given as a function and not done
    in a `with` block, because Python may be interrupted as it enters `__exit__`; and what must
    happen at the end is done by calls of C and assignments, which are done once they are begun.
    """

    def __init__(self, place: Place) -> None:
        self.place = place
        self.turn = Turn()
        self.guest: Lent | None = None
        """The connection for callers' transactions."""
        self.lending: Ticket | None = None
        """Whose transaction is open on it."""
        self._worker: sqlite3.Connection | None = None
        self._names = place.names
        self._files: list[tuple[int, int] | None] = []
        self.gone = ""
        """Why nothing can be done with it any more."""
        with explained(place, opening=True):
            self.open()
        _handles.add(self)

    def write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Do this in a transaction of the store's own: commits if it returns, else rolls back."""
        turn, ticket = self.turn, Ticket()
        connection: sqlite3.Connection | None = None
        try:
            try:
                self.take(ticket, self.place.wait)
                connection = self.open()
                self.place.begin(connection)
                answer = work(connection)
                connection.execute("COMMIT")
            finally:
                try:
                    # SQLite has already rolled back after some errors, such as a full disk.
                    if connection is not None and connection.in_transaction:
                        connection.execute("ROLLBACK")
                finally:
                    if turn.holder is ticket:
                        turn.holder = None
        except sqlite3.Error as error:
            raise explain(error, self.place) from error
        finally:
            turn.wake()
        return answer

    def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Do this on a connection that sees what is committed."""
        self.still_here()
        with explained(self.place):
            connection = self.place.open_for_reading()
            try:
                return work(connection)
            finally:
                connection.close()

    def close(self) -> None:
        """Let go of everything; closing again does nothing."""
        if self.gone:
            return
        turn, ticket = self.turn, Ticket()
        try:
            self.take(ticket, self.place.wait)
            self.gone = "this store was closed; open another"
            self._let_go()
        finally:
            if turn.holder is ticket:
                turn.holder = None

    def take(self, ticket: Ticket, wait: float, *, handler: bool = False) -> None:
        """Take the turn at writing."""
        self.still_here()
        if self._in_transaction():
            raise StoreError(
                f"{self.place.path}: this thread has a transaction of this store open, and the "
                f"store waits for its end. Settle through the transaction, or leave it first."
            )
        if not self.turn.take(ticket, wait, handler=handler):
            raise StoreUnavailable(
                f"{self.place.path}: other threads have held the store for longer than {wait:g} s. "
                f"Try again; if it stays so, look for a handler's transaction that is held open."
            )
        self.still_here()

    def _in_transaction(self) -> bool:
        """Whether this thread is in a transaction of a caller's."""
        held = self.lending is not None and self.turn.holder is self.lending
        return held and self.guest is not None and self.guest.lent_to == threading.get_ident()

    def still_here(self) -> None:
        """Refuse to go on with what was closed."""
        if self.gone:
            raise StoreError(f"{self.place.path}: {self.gone}")

    def open(self) -> sqlite3.Connection:
        """The connection that does the work; opened again after a fork, and freed of what an
        interruption left open. The turn is the caller's."""
        if self.lending is not None:
            if self.guest is not None:
                undo(self.guest)
            self.guest = self.lending = None
        worker = self._worker
        if worker is not None and self._files != self._identities():
            # Going on would write into a file that no other process finds. All connections of this
            # process must go: the next one would share their log and its index.
            self._let_go()
            for other in list(_handles):
                other.let_go_if_idle(self.place)
            raise StoreUnavailable(
                f"{self.place.path}: the file, or the log beside it (-wal, -shm), was removed or "
                f"replaced while it was open. What it remembered is in the file that was moved; "
                f"the next call takes what is there now."
            )
        if worker is None:
            worker = self.place.open_for_writing()
            self._files = self._identities()
            self._worker = worker
        elif worker.in_transaction:
            worker.execute("ROLLBACK")
        return worker

    def open_guest(self) -> Lent:
        """The connection for a caller's transaction. The turn is the caller's."""
        self.open()
        if self.guest is None:
            self.guest = self.place.open_to_lend()
        return self.guest

    def _identities(self) -> list[tuple[int, int] | None]:
        """What tells the file, its log and the log's index from others under the same names."""
        return [_identity(name) for name in self._names]

    def _let_go(self) -> None:
        # Before they are closed: one that is closed must not be found here, whatever happens.
        guest, worker = self.guest, self._worker
        self.guest = self._worker = None
        for connection in (guest, worker):
            if connection is not None:
                # A caller's own `close` would be refused.
                sqlite3.Connection.close(connection)

    def let_go_if_idle(self, place: Place) -> None:
        """Close the connections to this file; the next call opens them again."""
        turn, ticket = self.turn, Ticket()
        try:
            if self.place.path == place.path and turn.take(ticket, 0):
                self._let_go()
        finally:
            if turn.holder is ticket:
                turn.holder = None

    def before_fork(self, ticket: Ticket) -> None:
        """Close what must not live on in two processes, if nobody is in the midst of it.

        SQLite's locks belong to a process. The child of a fork has none of them, but SQLite in it
        believes it has, even for connections that it opens anew beside those it was born with.
        """
        if not self._in_transaction() and self.turn.take(ticket, self.place.wait):
            self._let_go()

    def after_fork(self, ticket: Ticket, *, child: bool) -> None:
        """Go on, in both processes."""
        if self.turn.holder is not ticket:
            if child:
                self.gone = (
                    "this process was forked while a transaction was open, and SQLite cannot be "
                    "used in it. Fork outside of transactions, or start processes by spawn"
                )
        elif child:
            # Without the threads that were waiting in the parent.
            self.turn = Turn()
        else:
            self.turn.holder = None
            self.turn.wake()


def _identity(name: str) -> tuple[int, int] | None:
    try:
        status = os.stat(name)  # noqa: PTH116  in every transaction, and half the price of a Path's
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


_handles: weakref.WeakSet[Handle] = weakref.WeakSet()


class _Forking(threading.local):
    """The turns that this thread took to fork; others may be about to fork too."""

    def __init__(self) -> None:
        self.turns: list[tuple[Handle, Ticket]] = []


_forking = _Forking()


def _before_fork() -> None:
    for handle in list(_handles):
        ticket = Ticket()
        _forking.turns.append((handle, ticket))
        handle.before_fork(ticket)


def _after_fork(*, child: bool) -> None:
    while _forking.turns:
        handle, ticket = _forking.turns.pop()
        handle.after_fork(ticket, child=child)


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=lambda: _after_fork(child=False),
        after_in_child=lambda: _after_fork(child=True),
    )
