"""The connections of one process to the file, over threads, interruptions and forks.

A signal can raise an exception at any instant, and both classes must survive it. Their state is
attributes and lists, each changed by one instruction. Work is passed as a function and not done in
a `with` block, because Python may be interrupted before `__exit__` begins. The steps at the end are
calls of C and assignments, which cannot be interrupted midway.
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
"""Seconds that a handler waits for its transaction behind other threads: as long as the default
lease, because after it another run may have the event."""

CHECK: Final = 0.1
"""The most seconds between two checks of the lock: an interrupted thread may wake nobody."""

REST: Final = 0.1
"""The share of a transaction's time for which the file is then left to other processes …"""

MAX_REST: Final = 0.004
"""… and the most seconds of it; in this time each of them tries the lock (`admin.POLL`)."""

Waiter = SimpleQueue[None]
"""One wait for the lock; an item in the queue wakes the thread that waits."""


class WriteLock:
    """The lock of the threads that write. A call of the store waits for at most one transaction of
    a handler. Handlers get the lock in the order of their requests, each after the calls that were
    waiting when the last transaction ended. A waiting thread checks the state regularly, so that a
    lost wake-up costs `CHECK` seconds, and nothing else."""

    def __init__(self) -> None:
        self.holder: Waiter | None = None
        """The waiter that has the lock. It is released by assigning None, because a call could be
        interrupted before it does anything."""
        self._mutex = threading.Lock()
        self._calls: list[Waiter] = []
        self._handlers: list[Waiter] = []
        self._first: list[Waiter] = []
        """Calls that have waited for one transaction, and must not wait for another one."""
        self._rests_until = 0.0

    def take(self, waiter: Waiter, wait: float, *, handler: bool = False) -> bool:
        """Wait up to `wait` seconds for the lock; return whether this waiter has it."""
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
        """Note that a handler's transaction ends now, after `took` seconds."""
        self._first = list(self._calls)
        self._rests_until = time.monotonic() + min(took * REST, MAX_REST)

    def wake(self) -> None:
        """Wake the next thread."""
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

    SQLite allows one writer at a time, so threads share one connection for the store's own work. A
    caller's transaction has another one, because the caller's settings must not affect the store's
    work. Every read has its own connection, so that it neither waits nor makes others wait.
    """

    def __init__(self, location: Location) -> None:
        self.location = location
        self.lock = WriteLock()
        self.guarded: GuardedConnection | None = None
        """The connection for callers' transactions."""
        self.transaction: Waiter | None = None
        """The waiter whose transaction is open on it."""
        self.forking: Waiter | None = None
        """The waiter of a fork that is about to happen; until it is done no read begins."""
        self._ready: Waiter | None = None
        """The waiter of a fork at which nothing is open."""
        self._readings: set[object] = set()
        self._writer: sqlite3.Connection | None = None
        self._names = location.names
        self._files: list[tuple[int, int] | None] = []
        self.unusable = ""
        """Why the store cannot be used any more; empty if it can."""
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
        """Call `work` in a transaction of the store: commit if it returns, else roll back."""
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
        """Call `work` with a connection that sees committed data."""
        self.still_here()
        reading = object()
        try:
            self._readings.add(reading)
            # In this order, because `before_fork` sets `forking` before it checks the readings.
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
        """Close all connections; idempotent."""
        if self.unusable:
            return
        lock, waiter = self.lock, Waiter()
        try:
            self.take(waiter, self.location.options.wait)
            self.unusable = "this store is closed; open another"
            self._close()
        finally:
            if lock.holder is waiter:
                lock.holder = None

    def take(self, waiter: Waiter, wait: float, *, handler: bool = False) -> None:
        """Take the lock for writing; StoreUnavailable after `wait` seconds."""
        self.still_here()
        if self._holds_transaction():
            raise StoreError(
                f"{self.location.path}: this thread has a transaction of this store open, and the "
                f"store waits for its end. Settle through the transaction, or end it first."
            )
        if not self.lock.take(waiter, wait, handler=handler):
            raise StoreUnavailable(
                f"{self.location.path}: other threads have held the store for longer than "
                f"{wait:g} s. Try again; if it stays so, look for a handler that holds its "
                f"transaction open."
            )
        self.still_here()

    def _holds_transaction(self) -> bool:
        """Return whether this thread has a caller's transaction open."""
        held = self.transaction is not None and self.lock.holder is self.transaction
        return held and self.guarded is not None and self.guarded.thread == threading.get_ident()

    def still_here(self) -> None:
        """Raise StoreError if the store is closed or unusable."""
        if self.unusable:
            raise StoreError(f"{self.location.path}: {self.unusable}")

    def open(self) -> sqlite3.Connection:
        """Return the connection that does the work; opened again after a fork, with an interrupted
        transaction rolled back. The caller must hold the lock."""
        if self.transaction is not None:
            if self.guarded is not None:
                undo(self.guarded)
            self.guarded = self.transaction = None
        writer = self._writer
        if writer is not None and self._files != self._identities():
            # Further writes would go to a file that no other process finds. All connections of this
            # process must be closed: a new one would share their log and its index.
            self._close()
            for other in list(_all):
                other.close_if_idle(self.location)
            raise StoreUnavailable(
                f"{self.location.path}: the file, or the log beside it (-wal, -shm), was removed "
                f"or replaced while it was open. Its records are in the file that was moved; the "
                f"next call uses the file that is there now."
            )
        if writer is None:
            writer = open_for_writing(self.location, sqlite3.Connection)
            # Before a statement of many rows changes a page, SQLite saves the page, to be able to
            # undo only the statement: by default in a temporary file. A statement has at most 256
            # rows, so this takes about a megabyte.
            writer.execute("PRAGMA temp_store = MEMORY")
            self._files = self._identities()
            self._writer = writer
        elif writer.in_transaction:
            writer.execute("ROLLBACK")
        return writer

    def open_guarded(self) -> GuardedConnection:
        """Return the connection for a caller's transaction. The caller must hold the lock."""
        self.open()
        if self.guarded is None:
            connection = open_for_writing(self.location, GuardedConnection)
            connection.guard()
            self.guarded = connection
        return self.guarded

    def _identities(self) -> list[tuple[int, int] | None]:
        """Return the identities of the file, its log and the log's index."""
        return [identity(name) for name in self._names]

    def _close(self) -> None:
        # First the attributes: a closed connection must not be found there after an interruption.
        guarded, writer = self.guarded, self._writer
        self.guarded = self._writer = None
        for connection in (guarded, writer):
            if connection is not None:
                # The `close` of a guarded connection is refused.
                sqlite3.Connection.close(connection)

    def close_if_idle(self, location: Location) -> None:
        """Close the connections to this file if nobody uses them; the next call opens them."""
        lock, waiter = self.lock, Waiter()
        try:
            if self.location.path == location.path and lock.take(waiter, 0):
                self._close()
        finally:
            if lock.holder is waiter:
                lock.holder = None

    def before_fork(self, waiter: Waiter) -> None:
        """Close connections that must not exist in two processes, if nobody uses them.

        SQLite's locks belong to a process. The child of a fork has none of them, but its SQLite
        assumes that it has, also for new connections beside those that it inherited.
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
        """Continue, in both processes."""
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
            # A new lock, because the threads that waited exist only in the parent.
            self.lock = WriteLock()
            self.forking = None
            self._readings = set()
        elif self.lock.holder is waiter:
            self.forking = None
            self.lock.holder = None
            self.lock.wake()


def _never_close(connection: sqlite3.Connection | None) -> None:
    """Keep this connection from being closed, even at the end of this process: SQLite would roll
    back what the parent has written to the log, and the parent would commit what is gone."""
    import ctypes  # noqa: PLC0415  seldom needed

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


def identity(name: str) -> tuple[int, int] | None:
    """Return device and inode of a file; None if it does not exist."""
    try:
        status = os.stat(name)  # noqa: PTH116  called in every transaction; half the cost of Path's
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


_all: weakref.WeakSet[Connections] = weakref.WeakSet()


class _Forking(threading.local):
    """The locks that this thread took for its fork; other threads may fork too."""

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
