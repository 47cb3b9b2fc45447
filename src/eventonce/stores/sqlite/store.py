"""The SQLite store, and the transaction that it opens for a caller's own statements."""

from __future__ import annotations

import os
import random
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import get_ident
from types import TracebackType
from typing import Final, Self

from eventonce.arguments import check_keys
from eventonce.clock import wall_clock
from eventonce.core import ledger
from eventonce.core.ledger import Record
from eventonce.core.ports import Stats
from eventonce.errors import StoreError, StoreUnavailable
from eventonce.stores.sqlite import queries, scrubbing
from eventonce.stores.sqlite.admin import begin
from eventonce.stores.sqlite.connections import TRANSACTION_WAIT, Connections, Waiter
from eventonce.stores.sqlite.errors import explain, explained
from eventonce.stores.sqlite.guarded_connection import GuardedConnection, undo
from eventonce.stores.sqlite.uri import WAIT, Location, Options, Synchronous, read
from eventonce.types import Claim, Letter, Settlement, SettleResult, Verdict

SWEEP_STEP: Final = 1_000
"""Records checked in one transaction of a sweep: about a millisecond, in which others wait."""

LOOKS: Final = 3.0
"""Records checked for expiry per claim, if the last check found expired ones …"""

FEW_LOOKS: Final = 0.5
"""… and if it found none. A claim adds at most one record, so the file holds at most about three
times the live records, even if nobody sweeps it."""

LOOKS_AT_ONCE: Final = 512
"""Checks are saved up to this number: a tenth of a millisecond now and then, instead of a check in
every call; half a millisecond if all of these records have expired."""

LETTERS_A_PAGE: Final = 200
"""Dead letters read at once: each holds a whole event, and the reader may be slow."""


class SQLiteStore:
    """Records and dead letters in one file on a local disk.

    Safe in many threads and processes. A `kill -9` at any point loses no answer that was given.
    With `synchronous="normal"` a power cut or a crash of the operating system may lose the commits
    since the last checkpoint, but never damages the file: events completed in them would run
    again. `synchronous="full"` waits for the disk at every commit and loses nothing. The file does
    not shrink; space that `sweep` frees is reused.
    """

    embedded = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        clock: Callable[[], int] = wall_clock,
        synchronous: Synchronous = "normal",
        wait: float = WAIT,
    ) -> None:
        self._connections = Connections(Location.of(path, Options(synchronous, wait)))
        self._clock = clock
        self._hopeful = True
        # Random, so that a process that lives for only a few claims does its share too.
        self._swept = random.randbytes(16)
        self._looks = random.uniform(0, LOOKS_AT_ONCE)
        self._expired = True

    @classmethod
    def from_uri(cls, uri: str) -> SQLiteStore:
        """`sqlite:///relative.db` or `sqlite:////absolute.db`, with `?synchronous=full&wait=5`."""
        location = read(uri)
        options = location.options
        return cls(location.path, synchronous=options.synchronous, wait=options.wait)

    def claim(self, claims: Sequence[Claim], now: int | None = None) -> list[Verdict]:
        if not claims:
            return []

        def judge(connection: sqlite3.Connection) -> tuple[list[Verdict], bool]:
            at = self._clock() if now is None else now
            judged = queries.claim(connection, claims, at, hopeful=self._hopeful)
            self._sweep_in_passing(connection, len(claims), at)
            return judged

        try:
            verdicts, self._hopeful = self._connections.write(judge)
        except OverflowError as error:
            # Only the claim with a number that SQLite cannot hold gets the error.
            if len(claims) > 1:
                return [self.claim([claim], now)[0] for claim in claims]
            return [
                Verdict("error", error=StoreError(f"{self._connections.location.path}: {error}"))
            ]
        return verdicts

    def settle(
        self, settlements: Sequence[Settlement], now: int | None = None
    ) -> list[SettleResult]:
        if not settlements:
            return []

        def judge(connection: sqlite3.Connection) -> list[SettleResult]:
            return queries.settle(connection, settlements, self._clock() if now is None else now)

        return self._connections.write(judge)

    def transaction(self) -> SQLiteTransaction:
        """Return a transaction in which the caller's own tables and a settlement commit together.

        Threads queue for it, in order; a call of this store waits for the transaction that is open,
        but not for those in the queue. Until it ends nobody else can write, so it should be short:
        a call of this store in the same thread is refused, one in another thread or process waits
        up to its `wait` and then raises `StoreUnavailable`. Reads continue.
        """
        return SQLiteTransaction(self._connections, self._clock)

    def show(self, key: bytes) -> Record | None:
        check_keys([key])
        record = self._connections.read(lambda connection: queries.read(connection, [key])).get(key)
        return record if record is not None and ledger.lives(record, self._clock()) else None

    def put_letters(self, letters: Sequence[Letter]) -> None:
        self._connections.write(lambda connection: queries.put_letters(connection, letters))

    def letters(self, consumer: str | None = None) -> Iterator[Letter]:
        after = queries.BEFORE_ALL_LETTERS
        while True:
            page = self._connections.read(
                partial(queries.letters, consumer=consumer, after=after, limit=LETTERS_A_PAGE)
            )
            yield from page
            if len(page) < LETTERS_A_PAGE:
                return
            after = page[-1].at, page[-1].id

    def letter(self, id: str) -> Letter | None:
        return self._connections.read(lambda connection: queries.letter(connection, id))

    def drop_letters(self, ids: Sequence[str], before: int | None = None) -> int:
        return self._connections.write(lambda it: queries.drop_letters(it, ids, before))

    def sweep(self, limit: int = 10_000, now: int | None = None) -> int:
        looked = swept = 0
        while looked < limit:
            step = min(SWEEP_STEP, limit - looked)
            seen, dropped = self._connections.write(partial(self._sweep_step, limit=step, now=now))
            looked += seen
            swept += dropped
            if seen < step:
                break
        return swept

    def _sweep_in_passing(self, connection: sqlite3.Connection, claims: int, now: int) -> None:
        self._looks += claims * (LOOKS if self._expired else FEW_LOOKS)
        if self._looks >= LOOKS_AT_ONCE:
            _, dropped, self._swept = queries.sweep(connection, self._swept, int(self._looks), now)
            self._expired = dropped > 0
            self._looks = 0

    def _sweep_step(
        self, connection: sqlite3.Connection, limit: int, now: int | None
    ) -> tuple[int, int]:
        return queries.sweep_on(connection, limit, self._clock() if now is None else now)

    def forget(self, keys: Sequence[bytes]) -> int:
        check_keys(keys)
        return self._connections.write(lambda connection: queries.forget(connection, keys))

    def clear_results(self, keys: Sequence[bytes]) -> int:
        check_keys(keys)
        cleared = self._connections.write(lambda it: queries.clear_results(it, keys))
        self.empty_log()
        return cleared

    def names(self) -> list[str]:
        return self._connections.read(queries.names)

    def add_name(self, name: str) -> None:
        self._connections.write(lambda connection: queries.add_name(connection, name))

    def empty_log(self) -> None:
        """Remove deleted data from the log, unless another process reads or writes for long."""
        self._connections.read(scrubbing.empty_log)

    def scrub(self) -> str:
        """Remove every deleted byte from the file; return why it was not possible, or ''."""
        return self._connections.read(scrubbing.scrub)

    def stats(self) -> Stats:
        kept, letters = self._connections.read(queries.counts)
        size = 0
        for name in self._connections.location.names:
            with suppress(FileNotFoundError):
                size += Path(name).stat().st_size
        return Stats(records=kept, letters=letters, bytes=size)

    def close(self) -> None:
        self._connections.close()


class SQLiteTransaction:
    """A transaction: writes through `connection` and settlements commit together, or not at all.

    A class, not a generator: an exception from a signal at any instant of `__enter__` or `__exit__`
    rolls back. An exception between the block and `__exit__` leaves the transaction open; then
    `__exit__` can be called again, and is called when this object is deleted.
    """

    connection: GuardedConnection
    _waiter: Waiter | None = None

    def __init__(self, connections: Connections, clock: Callable[[], int]) -> None:
        self._connections = connections
        self._clock = clock
        self._begun = 0.0

    def __enter__(self) -> Self:
        connections = self._connections
        try:
            self._waiter = waiter = Waiter()
            connections.take(waiter, TRANSACTION_WAIT, handler=True)
            with explained(connections.location):
                self.connection = guarded = connections.open_guarded()
                guarded.thread = None
                connections.transaction = waiter
                begin(guarded, connections.location)
            self._begun = time.monotonic()
            guarded.thread = get_ident()
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None
    ) -> None:
        waiter = self._waiter
        if waiter is None or waiter is not self._connections.lock.holder:
            return
        connections, lock = self._connections, self._connections.lock
        try:
            if kind is None:
                connections.still_here()
                self._still_open()
                with explained(connections.location):
                    self.connection.keep()
                connections.transaction = None
        finally:
            try:
                if connections.transaction is waiter and not connections.unusable:
                    # Twice: the first call may be interrupted.
                    try:
                        undo(self.connection)
                    finally:
                        undo(self.connection)
                    connections.guarded = connections.transaction = None
                lock.ended(time.monotonic() - self._begun)
            finally:
                lock.holder = None
            lock.wake()

    def __del__(self) -> None:
        self.__exit__(SystemExit, None, None)

    def settle(self, settlement: Settlement) -> SettleResult:
        """Settle in this transaction: it counts only if the transaction commits."""
        self._still_open()
        with explained(self._connections.location):
            (kept,) = queries.settle(self.connection, [settlement], self._clock())
        return kept

    def failed(self, error: BaseException) -> bool:
        """Return whether the file or the disk, not the caller's own statements, raised this."""
        if isinstance(error, sqlite3.Error):
            error = explain(error, self._connections.location)
        return isinstance(error, StoreUnavailable)

    def _still_open(self) -> None:
        if not self.connection.running:
            raise StoreError(
                f"{self._connections.location.path}: the transaction was ended inside its block, "
                f"by an error at which SQLite rolls back, an `OR ROLLBACK`, or a close of the "
                f"connection. Nothing of it counts; let such an error end the handler too."
            )
