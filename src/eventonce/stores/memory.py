"""The store that lives and ends with this process: for tests, and where nothing need outlive it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from eventonce import ledger
from eventonce.clock import wall_clock
from eventonce.errors import ConfigError
from eventonce.ledger import Record
from eventonce.masking import masked
from eventonce.ports import Stats
from eventonce.types import Claim, Kept, Letter, Settlement, Verdict


class MemoryStore:
    """Records in a dict, judged under one lock. Safe in many threads; gone with the process."""

    embedded = True

    def __init__(self, *, clock: Callable[[], int] = wall_clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._records: dict[bytes, Record] = {}
        self._letters: dict[str, Letter] = {}
        self._unswept: Iterator[bytes] = iter(())

    @classmethod
    def from_uri(cls, uri: str) -> MemoryStore:
        """`memory:`, and nothing more: there is nothing to say about it."""
        if uri.rstrip("/") != "memory:":
            raise ConfigError(f"store {masked(uri)!r}: memory: takes no path and no options")
        return cls()

    def claim(self, claims: Sequence[Claim], now: int | None = None) -> list[Verdict]:
        verdicts = []
        records = self._records
        with self._lock:
            now = self._clock() if now is None else now
            for claim in claims:
                verdict, record = ledger.judge(records.get(claim.key), claim, now)
                if record is not None:
                    records[claim.key] = record
                verdicts.append(verdict)
        return verdicts

    def settle(self, settlements: Sequence[Settlement], now: int | None = None) -> list[Kept]:
        answers = []
        records = self._records
        with self._lock:
            now = self._clock() if now is None else now
            for settlement in settlements:
                key = settlement.claim.key
                kept, record = ledger.settle(records.get(key), settlement, now)
                if record is not None:
                    records[key] = record
                answers.append(kept)
        return answers

    def show(self, key: bytes) -> Record | None:
        record = self._records.get(key)
        return record if record is not None and ledger.lives(record, self._clock()) else None

    def put_letters(self, letters: Sequence[Letter]) -> None:
        with self._lock:
            for letter in letters:
                self._letters.setdefault(letter.id, letter)

    def letters(self, consumer: str | None = None) -> Iterator[Letter]:
        with self._lock:
            letters = sorted(self._letters.values(), key=lambda letter: letter.at)
        return (letter for letter in letters if consumer in (None, letter.consumer))

    def letter(self, id: str) -> Letter | None:
        return self._letters.get(id)

    def drop_letters(self, ids: Sequence[str]) -> int:
        with self._lock:
            return sum(self._letters.pop(name, None) is not None for name in ids)

    def sweep(self, limit: int = 10_000, now: int | None = None) -> int:
        with self._lock:
            now = self._clock() if now is None else now
            keys = list(islice(self._unswept, limit))
            if not keys:
                self._unswept = iter(list(self._records))
                keys = list(islice(self._unswept, limit))
            swept = 0
            for key in keys:
                record = self._records.get(key)
                if record is not None and not ledger.lives(record, now):
                    del self._records[key]
                    swept += 1
            return swept

    def forget(self, keys: Sequence[bytes]) -> int:
        with self._lock:
            return sum(self._records.pop(key, None) is not None for key in keys)

    def stats(self) -> Stats:
        return Stats(records=len(self._records), letters=len(self._letters))

    def close(self) -> None:
        """Nothing to let go of."""
