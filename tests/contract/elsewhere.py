"""A store as another author might write it: the law inside a transaction of SQLite, and no more.

The store shows that the contract asks nothing that `ports` does not say. With the mistakes of
`test_contract_catches.py`, it shows that the contract's tests of races and crashes can fail.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from eventonce.clock import wall_clock
from eventonce.core import ledger
from eventonce.core.ledger import Record
from eventonce.core.ports import Stats
from eventonce.errors import EventonceError
from eventonce.types import Claim, Letter, Settlement, SettleResult, Verdict

TABLES = """
CREATE TABLE IF NOT EXISTS records (key BLOB PRIMARY KEY, record BLOB) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS letters (id TEXT PRIMARY KEY, consumer TEXT, at INTEGER, letter BLOB);
"""

WAIT = 60.0
"""Seconds to wait for the lock of another process: eight processes may keep a slow disk busy."""

as_bytes = msgspec.msgpack.encode
as_record = msgspec.msgpack.Decoder(Record).decode
as_letter = msgspec.msgpack.Decoder(Letter).decode


class TextbookStore:
    """One file, one connection a handle, one transaction a call."""

    def __init__(self, path: Path, *, begin: str = "BEGIN IMMEDIATE") -> None:
        self.begin = begin
        self.lock = threading.Lock()
        self.swept_to = b""
        self.connection = sqlite3.connect(
            path, timeout=WAIT, isolation_level=None, check_same_thread=False
        )
        # Safe from a killed process, not from a power cut, which no test here brings about.
        self.connection.execute("PRAGMA synchronous = OFF")
        self._write_ahead()
        self.connection.executescript(TABLES)

    @classmethod
    def from_uri(cls, uri: str) -> TextbookStore:
        return cls(Path(uri.partition("://")[2]))

    def _write_ahead(self) -> None:
        """Of two processes that open a new file at once, SQLite lets one wait and answers the other
        that the file is locked."""
        end = time.monotonic() + WAIT
        while True:
            try:
                self.connection.execute("PRAGMA journal_mode = WAL")
            except sqlite3.OperationalError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.01)
            else:
                return

    @contextmanager
    def transaction(self) -> Iterator[TextbookTransaction]:
        with self.lock:
            self.connection.execute(self.begin)
            try:
                yield TextbookTransaction(self.connection)
            except BaseException:
                self.connection.execute("ROLLBACK")
                raise
            self.connection.execute("COMMIT")

    def claim(self, claims: Sequence[Claim], now: int | None = None) -> list[Verdict]:
        with self.transaction() as transaction:
            now = wall_clock() if now is None else now
            return [transaction.judge(claim, now) for claim in claims]

    def settle(
        self, settlements: Sequence[Settlement], now: int | None = None
    ) -> list[SettleResult]:
        with self.transaction() as transaction:
            return [transaction.settle(settlement, now) for settlement in settlements]

    def show(self, key: bytes) -> Record | None:
        with self.transaction() as transaction:
            record = transaction.read(key)
        return record if record is not None and ledger.lives(record, wall_clock()) else None

    def put_letters(self, letters: Sequence[Letter]) -> None:
        rows = [(it.id, it.consumer, it.at, as_bytes(it)) for it in letters]
        with self.transaction() as transaction:
            transaction.connection.executemany(
                "INSERT OR IGNORE INTO letters VALUES (?, ?, ?, ?)", rows
            )

    def letters(self, consumer: str | None = None) -> Iterator[Letter]:
        with self.transaction() as transaction:
            rows = transaction.connection.execute(
                "SELECT letter FROM letters WHERE consumer = ? OR ? IS NULL ORDER BY at, id",
                (consumer, consumer),
            ).fetchall()
        return (as_letter(row) for (row,) in rows)

    def letter(self, id: str) -> Letter | None:
        with self.transaction() as transaction:
            row = transaction.connection.execute(
                "SELECT letter FROM letters WHERE id = ?", (id,)
            ).fetchone()
        return as_letter(row[0]) if row else None

    def drop_letters(self, ids: Sequence[str], before: int | None = None) -> int:
        with self.transaction() as transaction:
            return sum(
                transaction.connection.execute(
                    "DELETE FROM letters WHERE id = ?1 AND (?2 IS NULL OR at < ?2)", (it, before)
                ).rowcount
                for it in ids
            )

    def sweep(self, limit: int = 10_000, now: int | None = None) -> int:
        with self.transaction() as transaction:
            now = wall_clock() if now is None else now
            rows = transaction.connection.execute(
                "SELECT key, record FROM records WHERE key > ? ORDER BY key LIMIT ?",
                (self.swept_to, limit),
            ).fetchall()
            self.swept_to = rows[-1][0] if rows else b""
            return transaction.drop(
                [key for key, record in rows if not ledger.lives(as_record(record), now)]
            )

    def forget(self, keys: Sequence[bytes]) -> int:
        with self.transaction() as transaction:
            return transaction.drop(keys)

    def clear_results(self, keys: Sequence[bytes]) -> int:
        with self.transaction() as transaction:
            cleared = {key: ledger.without_result(transaction.read(key)) for key in keys}
            for key, record in cleared.items():
                transaction.write(key, record)
        return sum(record is not None for record in cleared.values())

    def stats(self) -> Stats:
        with self.transaction() as transaction:
            counts = "SELECT (SELECT count(*) FROM records), (SELECT count(*) FROM letters)"
            return Stats(*transaction.connection.execute(counts).fetchone())

    def close(self) -> None:
        self.connection.close()


class TextbookTransaction:
    """The law, read from and written to one open transaction."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection

    def judge(self, claim: Claim, now: int) -> Verdict:
        verdict, record = ledger.judge(self.read(claim.key), claim, now)
        try:
            self.write(claim.key, record)
        except OverflowError as error:
            return Verdict("error", error=EventonceError(f"{claim.key.hex()}: {error}"))
        return verdict

    def settle(self, settlement: Settlement, now: int | None = None) -> SettleResult:
        now = wall_clock() if now is None else now
        kept, record = ledger.settle(self.read(settlement.claim.key), settlement, now)
        self.write(settlement.claim.key, record)
        return kept

    def read(self, key: bytes) -> Record | None:
        row = self.connection.execute("SELECT record FROM records WHERE key = ?", (key,)).fetchone()
        return as_record(row[0]) if row else None

    def write(self, key: bytes, record: Record | None) -> None:
        if record is not None:
            row = (key, as_bytes(record))
            self.connection.execute("INSERT OR REPLACE INTO records VALUES (?, ?)", row)

    def drop(self, keys: Sequence[bytes]) -> int:
        return sum(
            self.connection.execute("DELETE FROM records WHERE key = ?", (key,)).rowcount
            for key in keys
        )
