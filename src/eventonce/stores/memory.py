"""The store in memory: for tests, and where nothing has to outlive the process."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Final

from eventonce import forks
from eventonce.arguments import check_keys
from eventonce.clock import wall_clock
from eventonce.core import ledger
from eventonce.core.ledger import Record
from eventonce.core.masking import masked
from eventonce.core.ports import Stats
from eventonce.errors import ConfigError
from eventonce.types import MAX_ORDER, Claim, Letter, Settlement, SettleResult, Verdict

_remember: Final = attrgetter("remember")

LOOKS_PER_CLAIM: Final = 2
"""Records checked for expiry per claim. A claim adds at most one record, so the store holds at most
twice the live records, and no call checks all of them."""


class MemoryStore:
    """Records in a dict, judged under one lock. Safe in many threads; gone with the process.

    A call that is interrupted at any instant has written all of its records, or none.
    """

    embedded = True

    def __init__(self, *, clock: Callable[[], int] = wall_clock) -> None:
        self._clock = clock
        # The child of a fork keeps the records: none is half written.
        self._lock = forks.lock_of(self)
        self._records: dict[bytes, Record] = {}
        self._letters: dict[str, Letter] = {}
        self._unswept: deque[bytes] = deque()
        """The keys that have a record; the key checked last is at the end."""
        self._soonest = MAX_ORDER
        """No record expires before this instant: until then nothing is swept."""

    @classmethod
    def from_uri(cls, uri: str) -> MemoryStore:
        """`memory:`; it has no path and no options."""
        if uri.rstrip("/") != "memory:":
            raise ConfigError(f"store {masked(uri)!r}: memory: takes no path and no options")
        return cls()

    def claim(self, claims: Sequence[Claim], now: int | None = None) -> list[Verdict]:
        verdicts = []
        records = self._records
        changed: dict[bytes, Record] = {}
        new: list[bytes] = []
        with self._lock:
            now = self._clock() if now is None else now
            for claim in claims:
                key = claim.key
                known = changed[key] if key in changed else records.get(key)
                verdict, record = ledger.judge(known, claim, now)
                if record is not None:
                    changed[key] = record
                    if known is None:
                        new.append(key)
                verdicts.append(verdict)
            if changed:
                soonest = now + min(map(_remember, claims))
                self._soonest = min(self._soonest, soonest)
            # The keys first: a key without a record is dropped by a sweep, but a record without its
            # key here would never be swept. Each step is one call of C.
            self._unswept.extend(new)
            records.update(changed)
            if now >= self._soonest:
                self._sweep(LOOKS_PER_CLAIM * len(claims), now)
        return verdicts

    def settle(
        self, settlements: Sequence[Settlement], now: int | None = None
    ) -> list[SettleResult]:
        answers = []
        records = self._records
        changed: dict[bytes, Record] = {}
        with self._lock:
            now = self._clock() if now is None else now
            for settlement in settlements:
                key = settlement.claim.key
                known = changed[key] if key in changed else records.get(key)
                kept, record = ledger.settle(known, settlement, now)
                if record is not None:
                    changed[key] = record
                answers.append(kept)
            records.update(changed)
        return answers

    def show(self, key: bytes) -> Record | None:
        check_keys([key])
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

    def drop_letters(self, ids: Sequence[str], before: int | None = None) -> int:
        letters = self._letters
        with self._lock:
            if before is not None:
                ids = [name for name in ids if name in letters and letters[name].at < before]
            return sum(letters.pop(name, None) is not None for name in ids)

    def sweep(self, limit: int = 10_000, now: int | None = None) -> int:
        with self._lock:
            return self._sweep(limit, self._clock() if now is None else now)

    def _sweep(self, limit: int, now: int) -> int:
        """Check `limit` records for expiry, those first that were checked longest ago."""
        records, keys = self._records, self._unswept
        swept = 0
        for _ in range(min(limit, len(keys))):
            record = records.get(keys[0])
            # `ledger.lives`, without the call.
            if record is not None and (now < record.expires or now < record.held_until):
                keys.rotate(-1)
            else:
                # The record first, for the same reason as in `claim`.
                if record is not None:
                    del records[keys[0]]
                    swept += 1
                keys.popleft()
        return swept

    def forget(self, keys: Sequence[bytes]) -> int:
        check_keys(keys)
        with self._lock:
            return sum(self._records.pop(key, None) is not None for key in keys)

    def clear_results(self, keys: Sequence[bytes]) -> int:
        check_keys(keys)
        cleared: dict[bytes, Record] = {}
        with self._lock:
            for key in keys:
                record = ledger.without_result(self._records.get(key))
                if record is not None:
                    cleared[key] = record
            self._records.update(cleared)
        return len(cleared)

    def stats(self) -> Stats:
        return Stats(records=len(self._records), letters=len(self._letters))

    def close(self) -> None:
        """Do nothing: the store holds no connection."""
