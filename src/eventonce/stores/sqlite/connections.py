"""The connections of one process to the file, over threads, interruptions and forks.

An exception may come out of a signal at any instant, and both classes must survive each of them.
Their state is attributes and lists that one instruction changes; work is given as a function and
not done in a `with` block, because Python may be interrupted as it enters `__exit__`; and what must
happen at the end is done by calls of C and assignments, which are done once they are begun.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Final, TypeVar

from eventonce.errors import StoreError, StoreUnavailable
from eventonce.stores.sqlite.admin import POLL, begin, open_for_reading, open_for_writing
from eventonce.stores.sqlite.errors import explain, explained
from eventonce.stores.sqlite.guarded_connection import GuardedConnection, undo
from eventonce.stores.sqlite.uri import Location

T = TypeVar("T")

TRANSACTION_WAIT: Final = 60.0
"""Seconds a handler waits for its transaction behind other threads': as long as the default lease,
for by then its run is another's."""

CHECK: Final = 0.1
"""Seconds, at most, between two looks at whose the lock is: an interrupted thread wakes nobody."""

REST: Final = 0.1
"""The file is left to other processes for this share of the time that a transaction took …"""

MAX_REST: Final = 0.004
"""… and for no more seconds than these, in which each of them looks at the lock (`admin.POLL`)."""

Waiter = SimpleQueue[None]
"""One wait for the lock; what is put into it wakes the thread that waits."""


class WriteLock:
    """The lock that threads write under: calls of the store wait for one transaction of a handler
    at the most; handlers get it in the order in which they asked, each after the calls that were
    waiting when the one before it ended. Whoever waits looks at the state again and again, so that
    a wake-up that was lost costs `CHECK`, and nothing else."""

    def __init__(self) -> None:
        self.holder: Waiter | None = None
        """Whose the lock is. The holder gives it back by assigning None: a call could be
        interrupted before it does anything."""
        self._mutex = threading.Lock()
        self._calls: list[Waiter] = []
        self._handlers: list[Waiter] = []
        self._first: list[Waiter] = []
        """Calls that have waited for a transaction, and must not wait for another one."""
        self._rests_until = 0.0

    def take(self, waiter: Waiter, wait: float, *, handler: bool = False) -> bool:
        """Wait for the lock so many seconds; whether it is this waiter's now."""
        queue = self._handlers if handler else self._calls
        deadline = 0.0
        try:
            queue.append(waiter)
            while True:
                with self._mutex:
                    if self.holder is None and self._next() is waiter:
                        self.holder = waiter
                        return True
                now = time.monotonic()
                deadline = deadline or now + wait
                if now >= deadline:
                    break
                pause = min(CHECK, deadline - now)
                if handler and now < self._rests_until:
                    pause = min(pause, self._rests_until - now)
                with suppress(Empty):
                    waiter.get(timeout=pause)
        finally:
            queue.remove(waiter)
        self.wake()
        return False

    def ended(self, took: float) -> None:
        """Say that a handler's transaction ends now, after so many seconds."""
        self._first = list(self._calls)
        self._rests_until = time.monotonic() + min(took * REST, MAX_REST)

    def wake(self) -> None:
        """Wake the thread that is next."""
        waiter = self._next() or next(iter(self._handlers), None)
        if waiter is not None:
            waiter.put(None)

    def _next(self) -> Waiter | None:
        for waiter in self._first:
            if waiter in self._calls:
                return waiter
        if self._handlers and time.monotonic() >= self._rests_until:
            return next(iter(self._handlers), None)
        return next(iter(self._calls), None)


class Connections:
    """The connections of one store.

    SQLite lets one write at a time, so threads share one connection for the store's own work; a
    caller's transaction has another, because what the caller sets on it must not reach the store's
    work; and every reading has its own, so that it waits for nobody and nobody for it.
    """

    def __init__(self, location: Location) -> None:
        self.location = location
        self.lock = WriteLock()
        self.guarded: GuardedConnection | None = None
        """The connection for callers' transactions."""
        self.transaction: Waiter | None = None
        """Whose transaction is open on it."""
        self.forking: Waiter | None = None
        """Whose fork is to come; until it is done no reading begins."""
        self._ready: Waiter | None = None
        """Whose fork finds nothing open."""
        self._readings: set[object] = set()
        self._writer: sqlite3.Connection | None = None
        self._names = location.names
        self._files: list[tuple[int, int] | None] = []
        self.unusable = ""
        """Why nothing can be done with it any more."""
        # Another thread may be about to fork.
        self.lock.holder = Waiter()
        _all.add(self)
        try:
            with explained(location, opening=True):
                self.open()
        finally:
            self.lock.holder = None
            self.lock.wake()

    def write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Do this in a transaction of the store's own: commits if it returns, else rolls back."""
        lock, waiter = self.lock, Waiter()
        connection: sqlite3.Connection | None = None
        try:
            try:
                self.take(waiter, self.location.options.wait)
                connection = self.open()
                begin(connection, self.location)
                answer = work(connection)
                connection.execute("COMMIT")
            finally:
                try:
                    # SQLite has already rolled back after some errors, such as a full disk.
                    if connection is not None and connection.in_transaction:
                        connection.execute("ROLLBACK")
                finally:
                    if lock.holder is waiter:
                        lock.holder = None
        except sqlite3.Error as error:
            raise explain(error, self.location) from error
        finally:
            lock.wake()
        return answer

    def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Do this on a connection that sees what is committed."""
        self.still_here()
        reading = object()
        try:
            self._readings.add(reading)
            # Looked at after that: whoever forks looks at the readings after this.
            while self.forking is not None:
                self._readings.discard(reading)
                time.sleep(POLL)
                self._readings.add(reading)
            with explained(self.location):
                connection = open_for_reading(self.location)
                try:
                    return work(connection)
                finally:
                    connection.close()
        finally:
            self._readings.discard(reading)

    def close(self) -> None:
        """Let go of everything; closing again does nothing."""
        if self.unusable:
            return
        lock, waiter = self.lock, Waiter()
        try:
            self.take(waiter, self.location.options.wait)
            self.unusable = "this store was closed; open another"
            self._close()
        finally:
            if lock.holder is waiter:
                lock.holder = None

    def take(self, waiter: Waiter, wait: float, *, handler: bool = False) -> None:
        """Take the lock for writing."""
        self.still_here()
        if self._holds_transaction():
            raise StoreError(
                f"{self.location.path}: this thread has a transaction of this store open, and the "
                f"store waits for its end. Settle through the transaction, or leave it first."
            )
        if not self.lock.take(waiter, wait, handler=handler):
            raise StoreUnavailable(
                f"{self.location.path}: other threads have held the store for longer than "
                f"{wait:g} s. Try again; if it stays so, look for a handler's transaction that is "
                f"held open."
            )
        self.still_here()

    def _holds_transaction(self) -> bool:
        """Whether this thread is in a transaction of a caller's."""
        held = self.transaction is not None and self.lock.holder is self.transaction
        return held and self.guarded is not None and self.guarded.thread == threading.get_ident()

    def still_here(self) -> None:
        """Refuse to go on with what was closed."""
        if self.unusable:
            raise StoreError(f"{self.location.path}: {self.unusable}")

    def open(self) -> sqlite3.Connection:
        """The connection that does the work; opened again after a fork, and freed of what an
        interruption left open. The lock is the caller's."""
        if self.transaction is not None:
            if self.guarded is not None:
                undo(self.guarded)
            self.guarded = self.transaction = None
        writer = self._writer
        if writer is not None and self._files != self._identities():
            # Going on would write into a file that no other process finds. All connections of this
            # process must go: the next one would share their log and its index.
            self._close()
            for other in list(_all):
                other.close_if_idle(self.location)
            raise StoreUnavailable(
                f"{self.location.path}: the file, or the log beside it (-wal, -shm), was removed "
                f"or replaced while it was open. What it remembered is in the file that was moved; "
                f"the next call takes what is there now."
            )
        if writer is None:
            writer = open_for_writing(self.location, sqlite3.Connection)
            # Before a statement of many rows changes a page, SQLite saves the page, to undo the
            # statement alone: in a temporary file, unless it is told otherwise. A statement has
            # 256 rows at most, so this is about a megabyte.
            writer.execute("PRAGMA temp_store = MEMORY")
            self._files = self._identities()
            self._writer = writer
        elif writer.in_transaction:
            writer.execute("ROLLBACK")
        return writer

    def open_guarded(self) -> GuardedConnection:
        """The connection for a caller's transaction. The lock is the caller's."""
        self.open()
        if self.guarded is None:
            connection = open_for_writing(self.location, GuardedConnection)
            connection.guard()
            self.guarded = connection
        return self.guarded

    def _identities(self) -> list[tuple[int, int] | None]:
        """What tells the file, its log and the log's index from others under the same names."""
        return [identity(name) for name in self._names]

    def _close(self) -> None:
        # Before they are closed: one that is closed must not be found here, whatever happens.
        guarded, writer = self.guarded, self._writer
        self.guarded = self._writer = None
        for connection in (guarded, writer):
            if connection is not None:
                # A caller's own `close` would be refused.
                sqlite3.Connection.close(connection)

    def close_if_idle(self, location: Location) -> None:
        """Close the connections to this file; the next call opens them again."""
        lock, waiter = self.lock, Waiter()
        try:
            if self.location.path == location.path and lock.take(waiter, 0):
                self._close()
        finally:
            if lock.holder is waiter:
                lock.holder = None

    def before_fork(self, waiter: Waiter) -> None:
        """Close what must not live on in two processes, if nobody is in the midst of it.

        SQLite's locks belong to a process. The child of a fork has none of them, but SQLite in it
        believes it has, even for connections that it opens anew beside those it was born with.
        """
        if not self._holds_transaction() and self.lock.take(waiter, self.location.options.wait):
            self._close()
            self.forking = waiter
            deadline = time.monotonic() + self.location.options.wait
            while self._readings:
                if time.monotonic() >= deadline:
                    return
                time.sleep(POLL)
            self._ready = waiter

    def after_fork(self, waiter: Waiter, *, child: bool) -> None:
        """Go on, in both processes."""
        if child and self._ready is not waiter:
            self.unusable = (
                "this process was forked while a transaction was open or the file was read, and "
                "SQLite cannot be used in it. Fork outside of transactions, or start processes by "
                "spawn"
            )
            if self.guarded is not None:
                self.guarded.thread = None
            _never_close(self.guarded)
            _never_close(self._writer)
        elif child:
            # Without the threads that were waiting in the parent.
            self.lock = WriteLock()
            self.forking = None
            self._readings = set()
        elif self.lock.holder is waiter:
            self.forking = None
            self.lock.holder = None
            self.lock.wake()


def _never_close(connection: sqlite3.Connection | None) -> None:
    """Let not even the end of this process drop it: SQLite would roll back what the other process
    has written to the log, and that one would go on to commit what is no longer there."""
    import ctypes  # noqa: PLC0415  almost nobody needs it

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


def identity(name: str) -> tuple[int, int] | None:
    """What tells a file from another under the same name; None where there is none."""
    try:
        status = os.stat(name)  # noqa: PTH116  in every transaction, and half the price of a Path's
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


_all: weakref.WeakSet[Connections] = weakref.WeakSet()


class _Forking(threading.local):
    """The locks that this thread took to fork; other threads may be about to fork too."""

    def __init__(self) -> None:
        self.held: list[tuple[Connections, Waiter]] = []


_forking = _Forking()


def _before_fork() -> None:
    for connections in list(_all):
        waiter = Waiter()
        _forking.held.append((connections, waiter))
        connections.before_fork(waiter)


def _after_fork(*, child: bool) -> None:
    while _forking.held:
        connections, waiter = _forking.held.pop()
        connections.after_fork(waiter, child=child)


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=lambda: _after_fork(child=False),
        after_in_child=lambda: _after_fork(child=True),
    )
