"""The DynamoDB store: claims, settlements and dead letters in one table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from eventonce.arguments import check_keys
from eventonce.clock import wall_clock
from eventonce.core import ledger
from eventonce.core.ledger import Record
from eventonce.core.ports import Finding, Stats
from eventonce.errors import EventonceError, StoreError, StoreUnavailable
from eventonce.stores.dynamodb import admin
from eventonce.stores.dynamodb import letters as dead_letters
from eventonce.stores.dynamodb.codec import EXPIRY, KEY, NAMES_KEY, Delete, Item, Seen, name_of
from eventonce.stores.dynamodb.optimistic import NEW_FACT, Contended, Decided, Ground, decide
from eventonce.stores.dynamodb.table import Done, ServiceClock, Table
from eventonce.stores.dynamodb.uri import check_client, check_layout, check_table, read, table_ref
from eventonce.types import MAX_ORDER, Claim, Letter, Settlement, SettleResult, Verdict

LARGEST_RESULT: Final = 400_000
"""The most bytes of a result: an item has at most 409,600, and the rest of a record is small."""

GRANTS_KEPT: Final = 10_000
"""The most runs whose records are kept in memory, so that settling needs no read. More are seldom
in flight in one process; their records are read."""

COPY_SHARE: Final = 1 / 6
"""The share of copies above which a read before the write is cheaper: a read costs a fifth of a
write. It saves the write of a copy, and is an extra cost for every other event."""

AVERAGED_FACTS: Final = 25
"""The number of facts over which the share of copies is averaged."""

CONTENDED_WAIT: Final = 1_000
"""Milliseconds after which to claim again a key that others changed in every round."""


class DynamoDBStore:
    """Records and dead letters in one table; a record is written only if it has not changed.

    Safe in many threads and processes, and after a fork. Answers are as durable as DynamoDB's
    writes. Leases end by the service's time, which is learned from its answers (`ServiceClock`).
    """

    def __init__(
        self,
        client: Any,
        table: str,
        *,
        key: str = KEY,
        expiry: str = EXPIRY,
        clock: Callable[[], int] = wall_clock,
    ) -> None:
        """`client` is `boto3.client("dynamodb")` and belongs to the caller: `close` leaves it
        open."""
        check_table(table)
        layout = check_layout(table, key, expiry)
        check_client(client, table)
        self._open(Table(table, layout, ServiceClock(clock), lambda: client, client))

    @classmethod
    def from_uri(cls, uri: str) -> DynamoDBStore:
        """`dynamodb://table?region=…&endpoint=…&profile=…&key=…&expiry=…&timeout=…`."""
        address = read(uri)
        table = Table(address.table, address.layout, ServiceClock(wall_clock), address.connect)
        store = cls.__new__(cls)
        store._open(table, address.options.profile)  # noqa: SLF001  the class's own
        return store

    def _open(self, table: Table, profile: str = "") -> None:
        table.ref = table_ref(table.client, table.ref.table, table.layout, profile)
        self._table = table
        self._grants: dict[str, Seen] = {}
        self._copies = 0.0

    def claim(self, claims: Sequence[Claim], now: int | None = None) -> list[Verdict]:
        hopeful = self._copies <= COPY_SHARE
        asks = [
            (name_of(claim.key), claim, NEW_FACT if hopeful and _may_be_new(claim) else None)
            for claim in claims
        ]
        decided = decide(self._table, ledger.judge, asks, now)
        failed = [answer for answer in decided if isinstance(answer, EventonceError)]
        if failed and len(failed) == len(claims):
            raise failed[0]
        verdicts = []
        known = copies = 0
        for (name, claim, _), answer in zip(asks, decided, strict=True):
            if isinstance(answer, Decided):
                if _may_be_new(claim):
                    known += 1
                    copies += answer.existed
                if answer.answer.token and answer.seen is not None:
                    self._grant(name, answer.seen)
                verdicts.append(answer.answer)
            elif isinstance(answer, Contended):
                verdicts.append(Verdict("busy", wait=CONTENDED_WAIT))
            else:
                verdicts.append(Verdict("error", error=answer))
        if known:
            self._copies += (copies / known - self._copies) * min(1.0, known / AVERAGED_FACTS)
        return verdicts

    def settle(
        self, settlements: Sequence[Settlement], now: int | None = None
    ) -> list[SettleResult]:
        for settlement in settlements:
            if settlement.result is not None and len(settlement.result) > LARGEST_RESULT:
                raise StoreError(
                    f"{self._table.ref}: a result of {len(settlement.result)} bytes is too large "
                    f"for an item; the limit is {LARGEST_RESULT}. Nothing was settled. Store it "
                    f"elsewhere and return its name as the result."
                )
        asks = [
            (name, settlement, self._as_we_left_it(name, settlement.token))
            for settlement in settlements
            for name in (name_of(settlement.claim.key),)
        ]
        decided = decide(self._table, ledger.settle, asks, now)
        answers: list[SettleResult] = []
        fault: EventonceError | None = None
        for (name, settlement, _), answer in zip(asks, decided, strict=True):
            if isinstance(answer, Decided):
                self._settled(name, settlement, answer)
                answers.append(answer.answer)
            elif isinstance(answer, Contended):
                fault = StoreUnavailable(
                    f"{self._table.ref}: others keep changing {name}; settle it again"
                )
            else:
                fault = answer
        if fault is not None:
            raise fault
        return answers

    def _as_we_left_it(self, name: str, token: int) -> Ground | None:
        """Return the record of this run, assumed to be as this process left it."""
        seen = self._grants.get(name)
        if seen is None or seen.record.token != token:
            return None
        return Ground(seen.record, seen, proven=False)

    def _settled(self, name: str, settlement: Settlement, answer: Decided[SettleResult]) -> None:
        seen = answer.seen
        if seen is not None and seen.record.nonce and seen.record.token == settlement.token:
            self._grant(name, seen)
        else:
            self._grants.pop(name, None)

    def _grant(self, name: str, seen: Seen) -> None:
        self._grants[name] = seen
        if len(self._grants) > GRANTS_KEPT:
            # No lock, because a fork could leave it locked for ever; if another thread interferes,
            # one entry more or less does no harm.
            with suppress(KeyError, RuntimeError, StopIteration):
                del self._grants[next(iter(self._grants))]

    def show(self, key: bytes) -> Record | None:
        check_keys([key])
        item = self._read(name_of(key))
        if item is None:
            return None
        record = self._table.layout.seen(item).record
        return record if ledger.lives(record, self._table.clock.now()) else None

    def _read(self, name: str) -> Item | None:
        item = self._table.read([name])[name]
        if isinstance(item, EventonceError):
            raise item
        return item

    def put_letters(self, letters: Sequence[Letter]) -> None:
        dead_letters.put(self._table, letters)

    def letters(self, consumer: str | None = None) -> Iterator[Letter]:
        return dead_letters.read_all(self._table, consumer)

    def letter(self, id: str) -> Letter | None:
        return dead_letters.read(self._table, id)

    def drop_letters(self, ids: Sequence[str], before: int | None = None) -> int:
        return dead_letters.drop(self._table, ids, before)

    def sweep(self, limit: int = 10_000, now: int | None = None) -> int:  # noqa: ARG002
        """Do nothing: DynamoDB deletes expired records by the table's TTL attribute."""
        return 0

    def forget(self, keys: Sequence[bytes]) -> int:
        check_keys(keys)
        names = list(dict.fromkeys(name_of(key) for key in keys))
        for name in names:
            self._grants.pop(name, None)
        outcomes = self._table.write([Delete(name) for name in names])
        for outcome in outcomes:
            if isinstance(outcome, EventonceError):
                raise outcome
        return sum(isinstance(outcome, Done) and bool(outcome.item) for outcome in outcomes)

    def clear_results(self, keys: Sequence[bytes]) -> int:
        check_keys(keys)
        names = [name_of(key) for key in keys]
        for name in names:
            self._grants.pop(name, None)
        return sum(self._change(names, ledger.without_result))

    def names(self) -> list[str]:
        item = self._read(NAMES_KEY)
        kept = () if item is None else self._table.layout.seen(item).record.digests
        return [name.decode() for name in kept]

    def add_name(self, name: str) -> None:
        self._change([NAMES_KEY], partial(_with_name, name.encode()))

    def _change(
        self,
        names: Sequence[str],
        change: Callable[[Record | None], Record | None],
    ) -> list[bool]:
        """Change these items, each as it is now; return whether there was something to change."""

        def law(record: Record | None, _: None, __: int) -> tuple[bool, Record | None]:
            changed = change(record)
            return changed is not None, changed

        asks = [(name, None, None) for name in names]
        answers = []
        for name, answer in zip(names, decide(self._table, law, asks, None), strict=True):
            if isinstance(answer, EventonceError):
                raise answer
            if isinstance(answer, Contended):
                raise StoreUnavailable(
                    f"{self._table.ref}: others keep changing {name}; change it again"
                )
            answers.append(answer.answer)
        return answers

    def stats(self) -> Stats:
        """Return records and bytes from DescribeTable, up to six hours old, and the dead letters of
        now."""
        described = self._table.call("describe_table", TableName=self._table.ref.table)["Table"]
        count = dead_letters.count(self._table)
        others = count + (self._read(NAMES_KEY) is not None)
        return Stats(
            records=max(0, described.get("ItemCount", 0) - others),
            letters=count,
            bytes=described.get("TableSizeBytes"),
        )

    def create(self, *, dry_run: bool = False) -> list[str]:
        return admin.create(self._table, dry_run=dry_run)

    def migrate(self, *, dry_run: bool = False) -> list[str]:
        return admin.migrate(self._table, dry_run=dry_run)

    def check(self) -> list[Finding]:
        return admin.check(self._table)

    def close(self) -> None:
        self._table.close()


def _with_name(name: bytes, record: Record | None) -> Record | None:
    known = () if record is None else record.digests
    # Without an end, so that the table's TTL does not delete it.
    return None if name in known else Record(expires=MAX_ORDER, digests=(*known, name))


def _may_be_new(claim: Claim) -> bool:
    """Return whether to write before reading; a version of a subject is seldom the first."""
    return claim.order is None and not claim.peek and not claim.redrive
