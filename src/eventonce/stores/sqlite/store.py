"""The SQLite store: what is asked of it, each in a transaction over the tables' own modules."""

from __future__ import annotations

import os
import random
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from eventonce.clock import wall_clock
from eventonce.core import ledger
from eventonce.core.ledger import Record
from eventonce.core.ports import Stats
from eventonce.errors import StoreError
from eventonce.stores.sqlite import letters as shelf
from eventonce.stores.sqlite import records
from eventonce.stores.sqlite.file import Place, Synchronous
from eventonce.stores.sqlite.handle import Handle
from eventonce.stores.sqlite.transaction import SQLiteTransaction
from eventonce.stores.sqlite.uri import WAIT, absolute, read
from eventonce.types import Claim, Letter, Settlement, SettleResult, Verdict

SWEEP_STEP: Final = 1_000
"""Records looked at in one transaction of a sweep: about a millisecond for which others wait."""

LOOKS: Final = 3.0
"""Records looked at for each claim, to drop what expired, where the last look found some …"""

FEW_LOOKS: Final = 0.5
"""… and where it found none. A claim adds one at most, so the file holds no more than about three
times what lives, without anybody sweeping it."""

LOOKS_AT_ONCE: Final = 512
"""Fewer are saved up: a tenth of a millisecond, once in a while, instead of a look in every call.
Where each of them is to be dropped, it is half a millisecond."""

PAGE: Final = 200
"""Letters read at once: each holds a whole event, and reading on may take its reader a while."""


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
        # Anywhere, and at any time: a process that lives for a few claims does its share too.
        self._swept = random.randbytes(16)
        self._looks = random.uniform(0, LOOKS_AT_ONCE)
        self._expired = True

    @classmethod
    def from_uri(cls, uri: str) -> SQLiteStore:
        """`sqlite:///relative.db` or `sqlite:////absolute.db`, with `?synchronous=full&wait=5`."""
        path, synchronous, wait = read(uri)
        return cls(path, synchronous=synchronous, wait=wait)

    def claim(self, claims: Sequence[Claim], now: int | None = None) -> list[Verdict]:
        if not claims:
            return []

        def judge(connection: sqlite3.Connection) -> tuple[list[Verdict], bool]:
            at = self._clock() if now is None else now
            judged = records.claim(connection, claims, at, hopeful=self._hopeful)
            self._sweep_in_passing(connection, len(claims), at)
            return judged

        try:
            verdicts, self._hopeful = self._handle.write(judge)
        except OverflowError as error:
            # A number that SQLite cannot hold is the trouble of its claim alone.
            if len(claims) > 1:
                return [self.claim([claim], now)[0] for claim in claims]
            return [Verdict("error", error=StoreError(f"{self._handle.place.path}: {error}"))]
        return verdicts

    def settle(
        self, settlements: Sequence[Settlement], now: int | None = None
    ) -> list[SettleResult]:
        if not settlements:
            return []

        def judge(connection: sqlite3.Connection) -> list[SettleResult]:
            return records.settle(connection, settlements, self._clock() if now is None else now)

        return self._handle.write(judge)

    def transaction(self) -> SQLiteTransaction:
        """A transaction in which the caller's own tables and a settlement commit together.

        Threads queue for it, in their order; a call of this store waits for the one that is open,
        and for none of those that queue. Until it ends nobody else can write, so it should be
        short: a call of this store in the same thread is refused, one in another thread waits its
        `wait` and is then `StoreUnavailable`, as it is in another process. Reading goes on.
        """
        return SQLiteTransaction(self._handle, self._clock)

    def show(self, key: bytes) -> Record | None:
        record = self._handle.read(lambda connection: records.read(connection, [key])).get(key)
        return record if record is not None and ledger.lives(record, self._clock()) else None

    def put_letters(self, letters: Sequence[Letter]) -> None:
        self._handle.write(lambda connection: shelf.put(connection, letters))

    def letters(self, consumer: str | None = None) -> Iterator[Letter]:
        after = shelf.FIRST
        while True:
            page = self._handle.read(
                partial(shelf.page, consumer=consumer, after=after, limit=PAGE)
            )
            yield from page
            if len(page) < PAGE:
                return
            after = page[-1].at, page[-1].id

    def letter(self, id: str) -> Letter | None:
        return self._handle.read(lambda connection: shelf.one(connection, id))

    def drop_letters(self, ids: Sequence[str]) -> int:
        return self._handle.write(lambda connection: shelf.drop(connection, ids))

    def sweep(self, limit: int = 10_000, now: int | None = None) -> int:
        looked = swept = 0
        while looked < limit:
            step = min(SWEEP_STEP, limit - looked)
            seen, dropped = self._handle.write(partial(self._sweep_step, limit=step, now=now))
            looked += seen
            swept += dropped
            if seen < step:
                break
        return swept

    def _sweep_in_passing(self, connection: sqlite3.Connection, claims: int, now: int) -> None:
        self._looks += claims * (LOOKS if self._expired else FEW_LOOKS)
        if self._looks >= LOOKS_AT_ONCE:
            self._swept, self._expired = records.sweep_in_passing(
                connection, self._swept, int(self._looks), now
            )
            self._looks = 0

    def _sweep_step(
        self, connection: sqlite3.Connection, limit: int, now: int | None
    ) -> tuple[int, int]:
        return records.sweep(connection, limit, self._clock() if now is None else now)

    def forget(self, keys: Sequence[bytes]) -> int:
        return self._handle.write(lambda connection: records.forget(connection, keys))

    def stats(self) -> Stats:
        kept, letters = self._handle.read(_counts)
        size = 0
        for name in self._handle.place.names:
            with suppress(FileNotFoundError):
                size += Path(name).stat().st_size
        return Stats(records=kept, letters=letters, bytes=size)

    def close(self) -> None:
        self._handle.close()


def _counts(connection: sqlite3.Connection) -> tuple[int, int]:
    (kept,) = connection.execute("SELECT count(*) FROM eventonce_records").fetchone()
    (letters,) = connection.execute("SELECT count(*) FROM eventonce_letters").fetchone()
    return kept, letters
