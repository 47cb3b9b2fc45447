"""The PostgreSQL store: what is asked of the database; the law itself stands in the .sql files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final

import psycopg

from eventonce.core.ledger import Record
from eventonce.core.ports import Finding, Stats
from eventonce.errors import StoreError, StoreUnavailable
from eventonce.stores.postgres import admin as schemas
from eventonce.stores.postgres import codec as wire
from eventonce.stores.postgres.codec import Row
from eventonce.stores.postgres.database import Database
from eventonce.stores.postgres.queries import queries
from eventonce.stores.postgres.transaction import PostgresTransaction, transaction
from eventonce.stores.postgres.uri import SCHEMA
from eventonce.types import Claim, Letter, Settlement, SettleResult, Verdict

if TYPE_CHECKING:
    from psycopg_pool import ConnectionPool

SWEEP_STEP: Final = 1_000
"""Records looked at in one transaction of a sweep: about a millisecond."""

PAGE: Final = 200
"""Letters read at once: each holds a whole event, and reading on may take its reader a while."""


class PostgresStore:
    """Records and letters in a schema of a PostgreSQL database.

    Takes a `postgresql://` URI, or the caller's own psycopg pool. Safe in many threads, and with a
    URI across forks. An answer that was given is as durable as the server's commits are. The schema
    is made by `create`, and by nothing else.
    """

    embedded = False

    def __init__(
        self,
        database: str | ConnectionPool[Any],
        *,
        schema: str = SCHEMA,
        password: Callable[[], str] | None = None,
    ) -> None:
        """A URI says by itself which schema (`?schema=`), how many connections it may use
        (`?connections=`, `?transactions=`) and how long to wait for an answer (`?timeout=`).

        `password` is asked before each new connection, for passwords that change: tokens, leases of
        a vault. `?iam=rds` is one that is there already.
        """
        self._database = Database(database, schema, password)
        self._queries = queries(self._database.address)

    @classmethod
    def from_uri(cls, uri: str) -> PostgresStore:
        """`postgresql://user:password@host:5432/database`, as libpq reads it, and our options."""
        return cls(uri)

    def __repr__(self) -> str:
        return f"PostgresStore({self._database.address.shown!r})"

    def claim(self, claims: Sequence[Claim], now: int | None = None) -> list[Verdict]:
        keys = [claim.key for claim in claims]
        return wire.by_parts(
            self._claim_once, claims, keys, now, lambda error: Verdict("error", error=error)
        )

    def _claim_once(self, claims: Sequence[Claim], now: int | None) -> list[Verdict]:
        try:
            rows = self._patiently(self._queries.claim, wire.asked(claims), now)
        except StoreError as error:
            if isinstance(error.__cause__, psycopg.errors.NumericValueOutOfRange):
                return self._claim_what_fits(claims, now)
            raise
        return wire.verdicts(claims, rows)

    def _claim_what_fits(self, claims: Sequence[Claim], now: int | None) -> list[Verdict]:
        """A number that no row can hold is that claim's own error."""
        errors = [wire.unfit(claim) for claim in claims]
        if not any(errors):
            raise StoreError(f"{self!r}: an instant is out of range")
        fit = [claim for claim, error in zip(claims, errors, strict=True) if error is None]
        verdicts = iter(self.claim(fit, now))
        return [
            next(verdicts) if error is None else Verdict("error", error=error) for error in errors
        ]

    def settle(
        self, settlements: Sequence[Settlement], now: int | None = None
    ) -> list[SettleResult]:
        keys = [settlement.claim.key for settlement in settlements]
        answers = wire.by_parts(self._settle_once, settlements, keys, now)
        settled = [kept for kept in answers if kept is not None]
        if len(settled) < len(answers):
            raise StoreUnavailable(
                f"{self!r}: {len(answers) - len(settled)} of {len(answers)} records are locked by "
                f"a transaction that does not end; the others are settled. Look for it in "
                f"pg_stat_activity (idle in transaction)."
            )
        return settled

    def _settle_once(
        self, settlements: Sequence[Settlement], now: int | None
    ) -> list[SettleResult | None]:
        rows = self._patiently(self._queries.settle, wire.ended(settlements), now)
        return wire.answers(settlements, rows)

    def _patiently(self, query: bytes, batch: str, now: int | None) -> list[Row]:
        """Wait a moment for rows that are locked; then do without them."""
        try:
            return self._database.ask(query, batch, now, True)
        except StoreUnavailable as error:
            if isinstance(error.__cause__, psycopg.errors.LockNotAvailable):
                return self._database.ask(query, batch, now, False)
            raise

    def transaction(self) -> AbstractContextManager[PostgresTransaction]:
        """A transaction in which the caller's own tables and a settlement commit together."""
        return transaction(self._database, self._queries.settle)

    def show(self, key: bytes) -> Record | None:
        rows = self._database.ask(self._queries.show, key)
        return wire.record(rows[0]) if rows else None

    def put_letters(self, letters: Sequence[Letter]) -> None:
        if letters:
            columns = zip(*map(wire.letter_row, letters), strict=True)
            self._database.ask(self._queries.put_letters, *map(list, columns))

    def letters(self, consumer: str | None = None) -> Iterator[Letter]:
        after = (-(2**63), b"")
        name = None if consumer is None else wire.text(consumer)
        while True:
            page = self._database.ask(self._queries.letters, *after, name, PAGE)
            for row in page:
                yield wire.letter(row)
            if len(page) < PAGE:
                return
            after = (page[-1][7], page[-1][0])

    def letter(self, id: str) -> Letter | None:
        rows = self._database.ask(self._queries.letter, wire.text(id))
        return wire.letter(rows[0]) if rows else None

    def drop_letters(self, ids: Sequence[str]) -> int:
        return self._count(self._queries.drop_letters, list(map(wire.text, ids)))

    def sweep(self, limit: int = 10_000, now: int | None = None) -> int:
        seen = swept = ends = 0
        # After the last record it goes on at the first, once: wherever the last sweep stopped, a
        # limit above the number of records reaches them all.
        while seen < limit and ends < 2:
            step = min(SWEEP_STEP, limit - seen)
            ((looked, dropped),) = self._database.ask(self._queries.sweep, step, now)
            seen += looked
            swept += dropped
            ends += looked < step
        return swept

    def forget(self, keys: Sequence[bytes]) -> int:
        return self._count(self._queries.forget, list(keys))

    def stats(self) -> Stats:
        ((records, letters, size),) = self._database.ask(self._queries.stats)
        return Stats(records=records, letters=letters, bytes=size)

    def create(self, *, dry_run: bool = False) -> list[str]:
        """Make the schema; answers the statements, with `dry_run` those that would be run."""
        address = self._database.address
        return self._database.do(lambda it: schemas.create(it, address, dry_run=dry_run))

    def migrate(self, *, dry_run: bool = False) -> list[str]:
        """Bring an older schema up to date; answers the statements, or those that would be run."""
        address = self._database.address
        return self._database.do(lambda it: schemas.migrate(it, address, dry_run=dry_run))

    def check(self) -> list[Finding]:
        """Look whether the server, the schema and this user's permissions are as they must be."""
        return self._database.do(lambda it: schemas.check(it, self._database.address))

    def close(self) -> None:
        self._database.close()

    def _count(self, query: bytes, names: list[bytes]) -> int:
        ((count,),) = self._database.ask(query, names)
        return int(count)
