"""A transaction of the store's file that is open for a caller's own statements."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from threading import get_ident
from types import TracebackType
from typing import Self

from eventonce.errors import StoreError, StoreUnavailable
from eventonce.stores.sqlite import records
from eventonce.stores.sqlite.file import explain, explained
from eventonce.stores.sqlite.guarded_connection import Lent, undo
from eventonce.stores.sqlite.handle import QUEUE, Handle
from eventonce.stores.sqlite.turn import Ticket
from eventonce.types import Settlement, SettleResult


class SQLiteTransaction:
    """What is written through `connection` and what is settled commit together, or not at all.

    A class, not a generator: an exception out of a signal that falls on any instant of `__enter__`
    or `__exit__` rolls back. One that falls between the block and `__exit__` leaves the transaction
    open; `__exit__` can then be called again, and is as soon as this object is dropped.
    """

    connection: Lent
    _ticket: Ticket | None = None

    def __init__(self, handle: Handle, clock: Callable[[], int]) -> None:
        self._handle = handle
        self._clock = clock
        self._begun = 0.0

    def __enter__(self) -> Self:
        handle = self._handle
        try:
            self._ticket = ticket = Ticket()
            handle.take(ticket, QUEUE, handler=True)
            with explained(handle.place):
                self.connection = guest = handle.open_guest()
                guest.lent_to = None
                handle.lending = ticket
                handle.place.begin(guest)
            self._begun = time.monotonic()
            guest.lent_to = get_ident()
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None
    ) -> None:
        ticket = self._ticket
        if ticket is None or ticket is not self._handle.turn.holder:
            return
        handle, turn = self._handle, self._handle.turn
        try:
            if kind is None:
                handle.still_here()
                self._still_open()
                with explained(handle.place):
                    self.connection.keep()
                handle.lending = None
        finally:
            try:
                if handle.lending is ticket and not handle.gone:
                    # Twice: the first may be interrupted as it is called.
                    try:
                        undo(self.connection)
                    finally:
                        undo(self.connection)
                    handle.guest = handle.lending = None
                turn.ended(time.monotonic() - self._begun)
            finally:
                if turn.holder is ticket:
                    turn.holder = None
            turn.wake()

    def __del__(self) -> None:
        self.__exit__(SystemExit, None, None)

    def settle(self, settlement: Settlement) -> SettleResult:
        """Settle within this transaction: it counts only if the transaction commits."""
        self._still_open()
        with explained(self._handle.place):
            (kept,) = records.settle(self.connection, [settlement], self._clock())
        return kept

    def failed(self, error: BaseException) -> bool:
        """Whether the file or the disk, and not the caller's own statements, raised this."""
        if isinstance(error, sqlite3.Error):
            error = explain(error, self._handle.place)
        return isinstance(error, StoreUnavailable)

    def _still_open(self) -> None:
        if not self.connection.running:
            raise StoreError(
                f"{self._handle.place.path}: the transaction was ended inside its block: by an "
                f"error at which SQLite rolls back, an `OR ROLLBACK`, or closing the connection. "
                f"Nothing of it counts; let such an error end the handler too."
            )
