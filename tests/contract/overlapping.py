"""Stores whose mistake shows only where calls overlap or a process is killed, and then always.

`mistakes` has the mistakes that a race finds by chance.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from eventonce.clock import wall_clock
from eventonce.core import ledger
from eventonce.core.ledger import Record
from eventonce.types import Claim, Verdict
from tests.contract.elsewhere import (
    WAIT,
    TextbookStore,
    TextbookTransaction,
    as_bytes,
    as_record,
)
from tests.contract.mistakes import BentStore, transacting

COMPANY: Final = 0.1
"""Seconds in which clients that start at one moment have all begun."""


def read_in_company() -> Callable[..., list[Verdict]]:
    """A claim that reads, and writes only when another claim has read too, if there is another."""
    company = threading.Condition()
    readers = inside = 0

    def claim_read_in_company(
        store: BentStore, claims: Sequence[Claim], now: int | None = None
    ) -> list[Verdict]:
        nonlocal readers, inside
        now = wall_clock() if now is None else now
        with company:
            judged = [ledger.judge(store.records.get(claim.key), claim, now) for claim in claims]
            readers, inside = readers + 1, inside + 1
            mine = readers
            company.notify_all()
            if inside == 1:
                company.wait_for(lambda: readers > mine, COMPANY)
            inside -= 1
            for claim, (_, record) in zip(claims, judged, strict=True):
                if record is not None:
                    store.records[claim.key] = record
        return [verdict for verdict, _ in judged]

    return claim_read_in_company


def reading_before_locking(path: Path) -> TextbookStore:
    """A store that judges by the record that it read before it had the lock; processes that claim
    at one moment read the same record."""

    def claim(claims: Sequence[Claim], now: int | None = None) -> list[Verdict]:
        at = wall_clock() if now is None else now
        with store.lock:
            reading = TextbookTransaction(store.connection)
            judged = [ledger.judge(reading.read(claim.key), claim, at) for claim in claims]
        time.sleep(A_CALL)
        with store.transaction() as transaction:
            for claim, (_, record) in zip(claims, judged, strict=True):
                transaction.write(claim.key, record)
        return [verdict for verdict, _ in judged]

    store = TextbookStore(path)
    store.claim = claim  # type: ignore[method-assign]
    return store


A_CALL: Final = 0.03
"""Seconds: longer than processes take to begin a call that all are to make at one moment."""


def forgetting_when_killed(path: Path) -> TextbookStore:
    """A store that keeps completions where all processes see them, and only while the process that
    wrote them lives: as a cache that was never written to the disk."""

    def read(transaction: TextbookTransaction, key: bytes) -> Record | None:
        row = transaction.connection.execute(
            "SELECT pid, record FROM unsaved WHERE key = ?", (key,)
        ).fetchone()
        if row is not None and _lives(row[0]):
            return as_record(row[1])
        return TextbookTransaction.read(transaction, key)

    def write(transaction: TextbookTransaction, key: bytes, record: Record | None) -> None:
        connection = transaction.connection
        if record is not None and record.done:
            row = (key, os.getpid(), as_bytes(record))
            connection.execute("INSERT OR REPLACE INTO unsaved VALUES (?, ?, ?)", row)
        elif record is not None:
            connection.execute("DELETE FROM unsaved WHERE key = ?", (key,))
            TextbookTransaction.write(transaction, key, record)

    @contextmanager
    def transaction() -> Iterator[TextbookTransaction]:
        with inner() as opened:
            opened.read = partial(read, opened)  # type: ignore[method-assign]
            opened.write = partial(write, opened)  # type: ignore[method-assign]
            yield opened

    store = TextbookStore(path)
    store.connection.execute(
        "CREATE TABLE IF NOT EXISTS unsaved (key BLOB PRIMARY KEY, pid INTEGER, record BLOB)"
    )
    inner = store.transaction
    return transacting(store, transaction)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def answering_busy_without_the_lock(path: Path) -> TextbookStore:
    """A store that gives up waiting for the lock, and answers busy, with the token that a takeover
    would have had."""

    def claim(claims: Sequence[Claim], now: int | None = None) -> list[Verdict]:
        store.connection.execute(f"PRAGMA busy_timeout = {IMPATIENCE}")
        try:
            return asked(claims, now)
        except sqlite3.OperationalError:
            at = wall_clock() if now is None else now
            reading = TextbookTransaction(store.connection)
            judged = [ledger.judge(reading.read(claim.key), claim, at)[0] for claim in claims]
            return [replace(it, kind="busy") if it.kind == "run" else it for it in judged]
        finally:
            store.connection.execute(f"PRAGMA busy_timeout = {int(WAIT * 1_000)}")

    store = TextbookStore(path)
    asked = store.claim
    store.claim = claim  # type: ignore[method-assign]
    return store


IMPATIENCE: Final = 1
"""Milliseconds: less than any transaction of the contract lasts that other calls wait for."""
