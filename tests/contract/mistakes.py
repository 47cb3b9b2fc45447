"""Stores with one mistake each, in their calls rather than in the law.

`bent` has the mistakes in the law itself.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from eventonce.clock import wall_clock
from eventonce.core import ledger
from eventonce.core.ledger import Record
from eventonce.core.ports import Stats
from eventonce.stores.memory import MemoryStore
from eventonce.types import MAX_ORDER, Claim, Letter, Settlement, SettleResult, Verdict
from tests.contract.bent import Judge, Settle
from tests.contract.elsewhere import TextbookStore, TextbookTransaction


class BentStore:
    """The memory store with a bent law, or with one method replaced."""

    def __init__(
        self,
        judge: Judge = ledger.judge,
        believe: Settle = ledger.settle,
        **instead: Callable[..., Any],
    ) -> None:
        self.judge = judge
        self.believe = believe
        self.lock = threading.RLock()
        self.inner = MemoryStore()
        self.records: dict[bytes, Record] = self.inner._records
        self.named: list[str] = []
        admin = (
            "show forget clear_results sweep stats close put_letters letters letter drop_letters"
        )
        for verb in admin.split():
            setattr(self, verb, getattr(self.inner, verb))
        for verb, mistake in instead.items():
            setattr(self, verb, partial(mistake, self))

    def claim(self, claims: Sequence[Claim], now: int | None = None) -> list[Verdict]:
        with self.lock:
            return [self.claim_one(claim, wall_clock() if now is None else now) for claim in claims]

    def settle(
        self, settlements: Sequence[Settlement], now: int | None = None
    ) -> list[SettleResult]:
        with self.lock:
            return [self.settle_one(it, wall_clock() if now is None else now) for it in settlements]

    def claim_one(self, claim: Claim, now: int) -> Verdict:
        verdict, record = self.judge(self.records.get(claim.key), claim, now)
        if record is not None:
            self.records[claim.key] = record
        return verdict

    def settle_one(self, settlement: Settlement, now: int) -> SettleResult:
        key = settlement.claim.key
        kept, record = self.believe(self.records.get(key), settlement, now)
        if record is not None:
            self.records[key] = record
        return kept


def torn_claim(store: BentStore, claims: Sequence[Claim], now: int | None = None) -> list[Verdict]:
    """Reads, and writes later: other claims have read the same records meanwhile."""
    now = wall_clock() if now is None else now
    judged = [ledger.judge(store.records.get(claim.key), claim, now) for claim in claims]
    time.sleep(0.0001)
    store.records.update(
        (claim.key, record)
        for claim, (_, record) in zip(claims, judged, strict=True)
        if record is not None
    )
    return [verdict for verdict, _ in judged]


def torn_settle(
    store: BentStore, settlements: Sequence[Settlement], now: int | None = None
) -> list[SettleResult]:
    now = wall_clock() if now is None else now
    settled = [ledger.settle(store.records.get(it.claim.key), it, now) for it in settlements]
    time.sleep(0.0005)
    for settlement, (_, record) in zip(settlements, settled, strict=True):
        if record is not None:
            store.records[settlement.claim.key] = record
    return [kept for kept, _ in settled]


def torn_sweep(store: BentStore, limit: int = 10_000, now: int = 0) -> int:
    with store.lock:
        records = list(store.records.items())
    expired = [key for key, record in records if not ledger.lives(record, now)][:limit]
    time.sleep(0.001)
    return store.inner.forget(expired)


def sorted_claim(
    store: BentStore, claims: Sequence[Claim], now: int | None = None
) -> list[Verdict]:
    return BentStore.claim(store, sorted(claims, key=lambda it: it.key), now)


def sorted_settle(
    store: BentStore, settlements: Sequence[Settlement], now: int | None = None
) -> list[SettleResult]:
    return BentStore.settle(store, sorted(settlements, key=lambda it: it.claim.key), now)


def claim_of_some(
    store: BentStore, claims: Sequence[Claim], now: int | None = None
) -> list[Verdict]:
    """Fails for an empty batch, as a statement with an empty list of values does."""
    if not claims:
        raise ValueError("syntax error at or near the end of input")
    return BentStore.claim(store, claims, now)


def claim_of_all_or_none(
    store: BentStore, claims: Sequence[Claim], now: int | None = None
) -> list[Verdict]:
    if any(abs(it.order or 0) >= 2**63 for it in claims):
        raise OverflowError("integer too large")
    return BentStore.claim(store, claims, now)


def claim_of_999(
    store: BentStore, claims: Sequence[Claim], now: int | None = None
) -> list[Verdict]:
    return BentStore.claim(store, claims[:999], now)


def claim_by_text(
    store: BentStore, claims: Sequence[Claim], now: int | None = None
) -> list[Verdict]:
    """Cuts each key at a zero byte, as strings of C are."""
    return BentStore.claim(store, [replace(it, key=it.key.split(b"\0")[0]) for it in claims], now)


def claim_in_own_time(
    store: BentStore, claims: Sequence[Claim], now: int | None = None
) -> list[Verdict]:
    return BentStore.claim(store, claims)


def claim_in_seconds(
    store: BentStore, claims: Sequence[Claim], now: int | None = None
) -> list[Verdict]:
    return BentStore.claim(store, claims, wall_clock() // 1_000 if now is None else now)


def claim_in_the_events_time(
    store: BentStore, claims: Sequence[Claim], now: int | None = None
) -> list[Verdict]:
    now = wall_clock() if now is None else now
    return [store.claim_one(claim, max(now, claim.at)) for claim in claims]


def sweep_of_the_held(store: BentStore, limit: int = 10_000, now: int = 0) -> int:
    return store.inner.forget([k for k, it in store.records.items() if it.expires <= now][:limit])


def sweep_of_the_first(store: BentStore, limit: int = 10_000, now: int = 0) -> int:
    first = list(store.records.items())[:limit]
    return store.inner.forget([key for key, it in first if not ledger.lives(it, now)])


def sweep_of_all(store: BentStore, limit: int = 10_000, now: int = 0) -> int:
    return store.inner.sweep(10**9, now=now)


def show_the_expired(store: BentStore, key: bytes) -> Record | None:
    return store.records.get(key)


def show_no_result(store: BentStore, key: bytes) -> Record | None:
    record = store.inner.show(key)
    return record and replace(record, result=None)


def forget_the_done(store: BentStore, keys: Sequence[bytes]) -> int:
    return store.inner.forget([key for key in keys if store.records.get(key, Record()).done])


def forget_and_guess(store: BentStore, keys: Sequence[bytes]) -> int:
    store.inner.forget(keys)
    return len(keys)


def clear_and_guess(store: BentStore, keys: Sequence[bytes]) -> int:
    store.inner.clear_results(keys)
    return len(keys)


def clear_the_record(store: BentStore, keys: Sequence[bytes]) -> int:
    return store.inner.forget([it for it in keys if store.records.get(it, Record()).result])


def clear_the_done(store: BentStore, keys: Sequence[bytes]) -> int:
    """Looks for a result only where the latest run completed."""
    return store.inner.clear_results([key for key in keys if store.records.get(key, Record()).done])


def drop_and_guess(store: BentStore, ids: Sequence[str], before: int | None = None) -> int:
    store.inner.drop_letters(ids, before)
    return len(ids)


def drop_whatever_its_age(store: BentStore, ids: Sequence[str], before: int | None = None) -> int:
    return store.inner.drop_letters(ids)


def drop_up_to(store: BentStore, ids: Sequence[str], before: int | None = None) -> int:
    return store.inner.drop_letters(ids, None if before is None else before + 1)


def put_over(store: BentStore, letters: Sequence[Letter]) -> None:
    store.inner._letters.update((letter.id, letter) for letter in letters)


def put_as_text(store: BentStore, letters: Sequence[Letter]) -> None:
    store.inner.put_letters(
        [replace(it, event=it.event.decode(errors="replace").encode()) for it in letters]
    )


def letters_as_they_came(store: BentStore, consumer: str | None = None) -> Iterator[Letter]:
    return (it for it in list(store.inner._letters.values()) if consumer in (None, it.consumer))


def letters_by_prefix(store: BentStore, consumer: str | None = None) -> Iterator[Letter]:
    return (it for it in store.inner.letters() if it.consumer.startswith(consumer or ""))


def letters_by_page(store: BentStore, consumer: str | None = None) -> Iterator[Letter]:
    """Counts pages: a dead letter that is dropped meanwhile shifts the next page."""
    start = 0
    while page := list(store.inner.letters(consumer))[start : start + 100]:
        yield from page
        start += 100


def first_letters(store: BentStore, consumer: str | None = None) -> Iterator[Letter]:
    return iter(list(store.inner.letters(consumer))[:1_000])


def no_stats(store: BentStore) -> Stats:
    return Stats(records=0, letters=0)


def names(store: BentStore) -> list[str]:
    """The names without a mistake, for the mistakes of the other methods."""
    return list(store.named)


def add_name_again(store: BentStore, name: str) -> None:
    store.named = [*store.named, name]


def add_name_as_a_record(store: BentStore, name: str) -> None:
    store.named = list(dict.fromkeys([*store.named, name]))
    store.records[name.encode()] = Record(expires=MAX_ORDER)


def torn_add_name(store: BentStore, name: str) -> None:
    known = store.named
    time.sleep(0.01)
    store.named = list(dict.fromkeys([*known, name]))


def sweep_of_names(store: BentStore, limit: int = 10_000, now: int = 0) -> int:
    store.named = []
    return store.inner.sweep(limit, now)


def deferred(path: Path) -> TextbookStore:
    """`BEGIN` alone locks nothing: two read the same record before either writes."""

    @contextmanager
    def transaction() -> Iterator[TextbookTransaction]:
        with inner() as open_transaction:
            yield _pausing(open_transaction)

    store = TextbookStore(path, begin="BEGIN")
    inner = store.transaction
    return transacting(store, transaction)


def without_transactions(path: Path) -> TextbookStore:
    """A store that reads, and writes later, in no common transaction."""

    @contextmanager
    def transaction() -> Iterator[TextbookTransaction]:
        with store.lock:
            yield _pausing(TextbookTransaction(store.connection))

    store = TextbookStore(path)
    return transacting(store, transaction)


def _pausing(transaction: TextbookTransaction) -> TextbookTransaction:
    """A pause between reading and writing, so that a machine of two cores shows the mistake."""
    write = transaction.write

    def write_later(key: bytes, record: Record | None) -> None:
        time.sleep(0.0002)
        write(key, record)

    transaction.write = write_later  # type: ignore[method-assign]
    return transaction


A_WHILE: Final = 100
"""Calls: more than a worker of the contract makes before it is killed, whenever that is."""


def committing_too_late(path: Path) -> TextbookStore:
    """A store that answers before it commits: the changes that a killed worker made are lost."""

    @contextmanager
    def transaction() -> Iterator[TextbookTransaction]:
        with store.lock:
            if not store.connection.in_transaction:
                store.connection.execute("BEGIN IMMEDIATE")
            yield TextbookTransaction(store.connection)
            if next(calls) % A_WHILE == 0:
                store.connection.execute("COMMIT")

    calls = count(1)
    store = TextbookStore(path)
    return transacting(store, transaction)


def committing_whatever_happens(path: Path) -> TextbookStore:
    @contextmanager
    def transaction() -> Iterator[TextbookTransaction]:
        with store.lock:
            store.connection.execute("BEGIN IMMEDIATE")
            try:
                yield TextbookTransaction(store.connection)
            finally:
                store.connection.execute("COMMIT")

    store = TextbookStore(path)
    return transacting(store, transaction)


def settling_nothing(path: Path) -> TextbookStore:
    """A store whose transaction answers as the law does, and writes no record."""

    @contextmanager
    def transaction() -> Iterator[TextbookTransaction]:
        with inner() as open_transaction:
            open_transaction.write = lambda key, record: None  # type: ignore[method-assign]
            yield open_transaction

    store = TextbookStore(path)
    inner = store.transaction
    return transacting(store, transaction)


def accepting_every_settlement(path: Path) -> TextbookStore:
    """A store whose transaction answers each settlement with kept."""

    def keep(settlement: Settlement, now: int | None = None) -> SettleResult:
        return "kept"

    @contextmanager
    def transaction() -> Iterator[TextbookTransaction]:
        with inner() as open_transaction:
            open_transaction.settle = keep  # type: ignore[method-assign]
            yield open_transaction

    store = TextbookStore(path)
    inner = store.transaction
    return transacting(store, transaction)


def transacting(
    store: TextbookStore, transaction: Callable[[], AbstractContextManager[TextbookTransaction]]
) -> TextbookStore:
    store.transaction = transaction  # type: ignore[method-assign, assignment]
    return store
