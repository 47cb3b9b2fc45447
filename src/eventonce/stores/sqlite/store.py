"""The SQLite store: what is asked of it, each in a transaction over the tables' own modules."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

from eventonce import ledger
from eventonce.clock import wall_clock
from eventonce.errors import StoreError, StoreUnavailable
from eventonce.ledger import Record
from eventonce.ports import Stats
from eventonce.stores.sqlite import letters as shelf
from eventonce.stores.sqlite import records
from eventonce.stores.sqlite.address import WAIT, absolute, read
from eventonce.stores.sqlite.file import Place, Synchronous, explain, explained
from eventonce.stores.sqlite.handle import Handle
from eventonce.stores.sqlite.lent import Lent
from eventonce.types import Claim, Kept, Letter, Settlement, Verdict

SWEEP_STEP: Final = 1_000
"""Records looked at in one transaction of a sweep: about a millisecond for which others wait."""

PAGE: Final = 200
"""Letters read at once: each holds a whole event, and reading on may take its reader a while."""


class SQLiteTransaction:
    """A transaction open for the caller's writes."""

    def __init__(self, connection: Lent, handle: Handle, clock: Callable[[], int]) -> None:
        self.connection = connection
        self._handle = handle
        self._clock = clock

    def settle(self, settlement: Settlement) -> Kept:
        """Settle within this transaction: it counts only if the transaction commits."""
        self._handle.still_lent(self.connection)
        with explained(self._handle.place):
            (kept,) = records.settle(self.connection, [settlement], self._clock())
        return kept

    def failed(self, error: BaseException) -> bool:
        """Whether the file or the disk, and not the caller's own statements, raised this."""
        if isinstance(error, sqlite3.Error):
            error = explain(error, self._handle.place)
        return isinstance(error, StoreUnavailable)


class SQLiteStore:
    """Records and letters in one file on a local disk.

    Safe in many threads and processes. A `kill -9` at any point loses no answer that was given.
    With `synchronous="normal"` a power cut or a crash of the operating system may lose the last
    commits, those since the log was last brought home, though never damage the file: what was
    completed in them would run again. `synchronous="full"` waits for the disk at every commit and
    loses nothing. The file does not shrink; what `sweep` frees is used again.
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
        self._handle = Handle(Place(absolute(path), wait, synchronous))
        self._clock = clock
        self._hopeful = True

    @classmethod
    def from_uri(cls, uri: str) -> SQLiteStore:
        """`sqlite:///relative.db` or `sqlite:////absolute.db`, with `?synchronous=full&wait=5`."""
        path, synchronous, wait = read(uri)
        return cls(path, synchronous=synchronous, wait=wait)

    def claim(self, claims: Sequence[Claim], now: int | None = None) -> list[Verdict]:
        if not claims:
            return []
        try:
            with self._handle.writing() as connection:
                at = self._clock() if now is None else now
                verdicts, hopeful = records.claim(connection, claims, at, hopeful=self._hopeful)
        except OverflowError as error:
            # A number that SQLite cannot hold is the trouble of its claim alone.
            if len(claims) > 1:
                return [self.claim([claim], now)[0] for claim in claims]
            return [Verdict("error", error=StoreError(f"{self._handle.place.path}: {error}"))]
        self._hopeful = hopeful
        return verdicts

    def settle(self, settlements: Sequence[Settlement], now: int | None = None) -> list[Kept]:
        if not settlements:
            return []
        with self._handle.writing() as connection:
            now = self._clock() if now is None else now
            return records.settle(connection, settlements, now)

    @contextmanager
    def transaction(self) -> Iterator[SQLiteTransaction]:
        """A transaction in which the caller's own tables and a settlement commit together.

        Threads queue for it. Until it ends nobody else can write, so it should be short: a call of
        this store in the same thread is refused, one in another thread waits its `wait` and is then
        `StoreUnavailable`, as it is in another process. Reading goes on.
        """
        with self._handle.lending() as connection:
            yield SQLiteTransaction(connection, self._handle, self._clock)

    def show(self, key: bytes) -> Record | None:
        with self._handle.reading() as connection:
            record = records.read(connection, [key]).get(key)
        return record if record is not None and ledger.lives(record, self._clock()) else None

    def put_letters(self, letters: Sequence[Letter]) -> None:
        with self._handle.writing() as connection:
            shelf.put(connection, letters)

    def letters(self, consumer: str | None = None) -> Iterator[Letter]:
        after = shelf.FIRST
        while True:
            with self._handle.reading() as connection:
                page = shelf.page(connection, consumer, after, PAGE)
            yield from page
            if len(page) < PAGE:
                return
            after = page[-1].at, page[-1].id

    def letter(self, id: str) -> Letter | None:
        with self._handle.reading() as connection:
            return shelf.one(connection, id)

    def drop_letters(self, ids: Sequence[str]) -> int:
        with self._handle.writing() as connection:
            return shelf.drop(connection, ids)

    def sweep(self, limit: int = 10_000, now: int | None = None) -> int:
        looked = swept = 0
        while looked < limit:
            step = min(SWEEP_STEP, limit - looked)
            with self._handle.writing() as connection:
                now = self._clock() if now is None else now
                seen, dropped = records.sweep(connection, step, now)
            looked += seen
            swept += dropped
            if seen < step:
                break
        return swept

    def forget(self, keys: Sequence[bytes]) -> int:
        with self._handle.writing() as connection:
            return records.forget(connection, keys)

    def stats(self) -> Stats:
        with self._handle.reading() as connection:
            (kept,) = connection.execute("SELECT count(*) FROM eventonce_records").fetchone()
            (letters,) = connection.execute("SELECT count(*) FROM eventonce_letters").fetchone()
        size = 0
        path = self._handle.place.path
        for file in (path, path.with_name(path.name + "-wal"), path.with_name(path.name + "-shm")):
            with suppress(FileNotFoundError):
                size += file.stat().st_size
        return Stats(records=kept, letters=letters, bytes=size)

    def close(self) -> None:
        self._handle.close()
