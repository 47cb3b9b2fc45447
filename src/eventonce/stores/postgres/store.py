"""The PostgreSQL store, and the transaction that it opens for a caller's own statements.

The law is in the .sql files.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import psycopg
from psycopg.pq import TransactionStatus

from eventonce.arguments import check_keys
from eventonce.core.ledger import Record
from eventonce.core.ports import Finding, Stats
from eventonce.errors import ConfigError, StoreError, StoreUnavailable
from eventonce.stores.postgres import admin, codec
from eventonce.stores.postgres.codec import Row, rows
from eventonce.stores.postgres.connections import (
    TRANSACTION_WAIT,
    Connections,
    ExternalPool,
    OwnPool,
)
from eventonce.stores.postgres.errors import explain
from eventonce.stores.postgres.guarded_connection import (
    TRANSACTION_ENDED,
    AsyncGuardedConnection,
    under_way,
)
from eventonce.stores.postgres.uri import SCHEMA, Address, named, read
from eventonce.types import Claim, Letter, Settlement, SettleResult, Verdict

if TYPE_CHECKING:
    from psycopg_pool import ConnectionPool

SWEEP_STEP: Final = 1_000
"""Records checked in one transaction of a sweep: about a millisecond."""

LETTERS_A_PAGE: Final = 200
"""Dead letters read in one call: each holds a whole event, and the reader may be slow."""


class PostgresStore:
    """Records and dead letters in a schema of a PostgreSQL database.

    Takes a `postgresql://` URI, or the caller's own psycopg pool. Safe in many threads, and with a
    URI across forks. An answer is as durable as the server's commits. Only `create` makes the
    schema.
    """

    def __init__(
        self,
        database: str | ConnectionPool[Any],
        *,
        schema: str = SCHEMA,
        password: Callable[[], str] | None = None,
    ) -> None:
        """A URI names the schema (`?schema=`), the number of connections (`?connections=`,
        `?transactions=`) and the time-out of a call (`?timeout=`).

        `password` is called before each new connection, for passwords that change, such as tokens
        or those of a vault. `?iam=rds` is built in.
        """
        if isinstance(database, str):
            address = _with_password(read(database), password)
            self._connections = Connections(
                address,
                OwnPool(address, address.options.connections, address.options.timeout),
                OwnPool(address, address.options.transactions, TRANSACTION_WAIT),
            )
        elif not _is_pool(database):
            kind = type(database)
            raise ConfigError(
                f"PostgresStore takes a postgresql:// URI or a psycopg_pool.ConnectionPool, and "
                f"this is a {kind.__module__}.{kind.__qualname__}. One connection is not enough: "
                f"leases are renewed while a handler has its transaction open. Stores are "
                f"synchronous, under asyncio too."
            )
        elif password is not None:
            raise ConfigError(
                "PostgresStore: password= is for a postgresql:// URI; a psycopg pool connects by "
                "itself: give it a function as its kwargs=, or a connection_class"
            )
        else:
            address = Address("the pool's database", options=named(schema))
            pool = ExternalPool(database)
            self._connections = Connections(address, pool, pool)
        self._address = address
        self._queries = _queries(address)

    @classmethod
    def from_uri(cls, uri: str) -> PostgresStore:
        """`postgresql://user:password@host:5432/database`, with the options of libpq and ours."""
        return cls(uri)

    def __repr__(self) -> str:
        return f"PostgresStore({self._address.shown!r})"

    def claim(self, claims: Sequence[Claim], now: int | None = None) -> list[Verdict]:
        keys = [claim.key for claim in claims]
        return codec.by_parts(
            self._claim_once, claims, keys, now, lambda error: Verdict("error", error=error)
        )

    def _claim_once(self, claims: Sequence[Claim], now: int | None) -> list[Verdict]:
        try:
            rows = self._ask_or_pass_over("claim", codec.asked(claims), now)
        except StoreError as error:
            if not isinstance(error.__cause__, psycopg.errors.NumericValueOutOfRange):
                raise
            # Only the claim with a number that no row can hold gets the error.
            if len(claims) > 1:
                return [self._claim_once([claim], now)[0] for claim in claims]
            return [Verdict("error", error=error)]
        return codec.verdicts(claims, rows)

    def settle(
        self, settlements: Sequence[Settlement], now: int | None = None
    ) -> list[SettleResult]:
        keys = [settlement.claim.key for settlement in settlements]
        answers = codec.by_parts(self._settle_once, settlements, keys, now)
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
        rows = self._ask_or_pass_over("settle", codec.ended(settlements), now)
        return codec.answers(settlements, rows)

    def _ask_or_pass_over(self, query: str, batch: str, now: int | None) -> list[Row]:
        """Wait a moment for locked rows; then answer without them."""
        try:
            return self._ask(query, batch, now, True)
        except StoreUnavailable as error:
            if isinstance(error.__cause__, psycopg.errors.LockNotAvailable):
                return self._ask(query, batch, now, False)
            raise

    @contextmanager
    def transaction(self) -> Iterator[PostgresTransaction]:
        """Open a transaction in which the caller's own writes and a settlement commit together."""
        with self._connections.transaction() as connection:
            opened = PostgresTransaction(connection, self._connections, self._queries)
            yield opened
            opened.check()

    def async_connection(
        self, transaction: PostgresTransaction
    ) -> tuple[AsyncGuardedConnection, Callable[[], Awaitable[None]]]:
        """Return the transaction's connection for a coroutine, and the function that ends it."""
        connection = AsyncGuardedConnection(transaction.connection)
        return connection, connection.end

    def show(self, key: bytes) -> Record | None:
        check_keys([key])
        rows = self._ask("show", key)
        return codec.record(rows[0]) if rows and key != codec.NAMES_KEY else None

    def put_letters(self, letters: Sequence[Letter]) -> None:
        if letters:
            columns = zip(*map(codec.letter_row, letters), strict=True)
            self._ask("put_letters", *map(list, columns))

    def letters(self, consumer: str | None = None) -> Iterator[Letter]:
        after = (-(2**63), b"")
        name = None if consumer is None else codec.text(consumer)
        while True:
            page = self._ask("letters", *after, name, LETTERS_A_PAGE)
            for row in page:
                yield codec.letter(row)
            if len(page) < LETTERS_A_PAGE:
                return
            after = (page[-1][7], page[-1][0])

    def letter(self, id: str) -> Letter | None:
        rows = self._ask("letter", codec.text(id))
        return codec.letter(rows[0]) if rows else None

    def drop_letters(self, ids: Sequence[str], before: int | None = None) -> int:
        return self._count("drop_letters", list(map(codec.text, ids)), before)

    def sweep(self, limit: int = 10_000, now: int | None = None) -> int:
        seen = swept = ends = 0
        # After the last record the sweep continues at the first, once: wherever the last sweep
        # stopped, a limit above the number of records reaches all of them.
        while seen < limit and ends < 2:
            step = min(SWEEP_STEP, limit - seen)
            ((looked, dropped),) = self._ask("sweep", step, now)
            seen += looked
            swept += dropped
            ends += looked < step
        return swept

    def forget(self, keys: Sequence[bytes]) -> int:
        check_keys(keys)
        return self._count("forget", [key for key in keys if key != codec.NAMES_KEY])

    def clear_results(self, keys: Sequence[bytes]) -> int:
        check_keys(keys)
        return self._count("clear_results", list(keys))

    def names(self) -> list[str]:
        rows = self._ask("names")
        return [codec.read_text(name) for (name,) in rows]

    def add_name(self, name: str) -> None:
        self._ask("add_name", codec.text(name))

    def stats(self) -> Stats:
        ((records, letters, size),) = self._ask("stats")
        return Stats(records=records, letters=letters, bytes=size)

    def create(self, *, dry_run: bool = False) -> list[str]:
        """Create the schema; return the statements, with `dry_run` those that would run."""
        return self._connections.do(lambda it: admin.create(it, self._address, dry_run=dry_run))

    def migrate(self, *, dry_run: bool = False) -> list[str]:  # noqa: ARG002  nothing to do
        """Check that the schema exists; no release made an older one."""
        return self._connections.do(lambda it: admin.migrate(it, self._address))

    def check(self) -> list[Finding]:
        """Check the server, the schema and this user's permissions."""
        return self._connections.do(lambda it: admin.check(it, self._address))

    def close(self) -> None:
        self._connections.close()

    def _ask(self, query: str, *given: object) -> list[Row]:
        return self._connections.ask(self._queries[query], *given)

    def _count(self, query: str, *given: object) -> int:
        ((count,),) = self._ask(query, *given)
        return int(count)


class PostgresTransaction:
    """A transaction open for the caller's writes.

    The record is locked only by the settlement: until then its lease can be renewed, and another
    run that takes it over does not wait. In that case the settlement is refused, and the caller's
    writes can be rolled back.
    """

    def __init__(
        self,
        connection: psycopg.Connection[Any],
        connections: Connections,
        queries: Mapping[str, bytes],
    ) -> None:
        self.connection = connection
        self._connections = connections
        self._queries = queries
        self._checked = False

    def settle(self, settlement: Settlement) -> SettleResult:
        """Settle in this transaction: it counts only if the transaction commits. The record is
        locked until then, so settle last."""
        batch = codec.ended([settlement])
        ((_, kept, marked),) = self._ask("settle_in_transaction", batch, None, True)
        self._refuse_unmarked(marked=marked)
        result: SettleResult = kept
        return result

    def check(self) -> None:
        """Refuse to commit a transaction that the caller has ended, or that the server will not
        commit."""
        if self._checked:
            self._refuse_unusable()
        else:
            ((marked,),) = self._ask("marked")
            self._refuse_unmarked(marked=marked)

    def _ask(self, query: str, *args: object) -> list[Row]:
        self._refuse_unusable()
        with self._connections.ours(self.connection):
            return rows(self.connection, self._queries[query], *args)

    def _refuse_unmarked(self, *, marked: bool) -> None:
        """Refuse a transaction that is not the one that was opened. Only the server knows: a
        `ROLLBACK; BEGIN` in one statement leaves no other trace."""
        if not marked:
            raise StoreError(f"{self._connections.address.shown}: {TRANSACTION_ENDED}")
        self._checked = True

    def failed(self, error: BaseException) -> bool:
        """Return whether the server or the network, not the caller's own statements, raised this.
        A statement that exceeds the caller's own time-out is the caller's error."""
        if self.connection.broken or isinstance(error, StoreUnavailable):
            return True
        if not isinstance(error, psycopg.Error) or isinstance(error, psycopg.errors.QueryCanceled):
            return False
        explained = explain(error, self._connections.address, has_answered=True)
        return isinstance(explained, StoreUnavailable)

    def _refuse_unusable(self) -> None:
        place = self._connections.address.shown
        if under_way(self.connection):
            raise StoreError(
                f"{place}: a statement is still in flight in this transaction, which is rolled "
                f"back: a COPY, a stream() or a pipeline() without its end, or another thread's. "
                f"Finish it before the handler or the block returns: `with …`"
            )
        match self.connection.info.transaction_status:
            case TransactionStatus.INTRANS:
                return
            case TransactionStatus.INERROR:
                raise StoreError(
                    f"{place}: a statement in this transaction failed, and with it the whole "
                    f"transaction, although its error was caught. To continue after an error, put "
                    f"the statement in a savepoint: `with connection.transaction(): …`"
                )
            case TransactionStatus.IDLE:
                raise StoreError(f"{place}: {TRANSACTION_ENDED}")
            case _ if not self.connection.broken:
                raise StoreError(
                    f"{place}: the connection was closed inside its block, so the transaction was "
                    f"rolled back. The store closes it."
                )
            case _:
                raise StoreUnavailable(
                    f"{place}: the connection was lost inside the transaction; none of its writes "
                    f"is kept."
                )


def _queries(address: Address) -> Mapping[str, bytes]:
    """Return the statements of queries.sql by name, with this schema's name in them; as bytes: the
    driver's types refuse text that is composed."""
    script = Path(__file__).with_name("queries.sql").read_text(encoding="utf-8")
    _, *parts = address.in_schema(script).split("-- name: ")
    statements = {}
    for part in parts:
        name, *lines = part.splitlines()
        text = "\n".join(line for line in lines if not line.startswith("--"))
        statements[name] = text.strip().encode()
    return statements


def _with_password(address: Address, password: Callable[[], str] | None) -> Address:
    if password is None:
        return address
    if address.password is not None or "password" in address.parameters:
        raise ConfigError(f"store {address.shown}: give the password once: here, or in the URI")
    return msgspec.structs.replace(address, password=password)


def _is_pool(given: object) -> bool:
    """Return whether this is a pool, by its methods: a connection has an attribute `connection`
    too."""
    return all(hasattr(given, name) for name in ("getconn", "check")) and not hasattr(
        given, "__aenter__"
    )
