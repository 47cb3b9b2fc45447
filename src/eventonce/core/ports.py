"""The protocols of a store, its dead letters, a transaction, a source and an observer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, runtime_checkable

import msgspec

from eventonce.core.ledger import Record
from eventonce.types import (
    NO_HEADERS,
    Claim,
    Letter,
    Outcome,
    Settlement,
    SettleResult,
    Verdict,
)


class BatchObserver(Protocol):
    """Told of the outcomes of a whole batch in one call."""

    def batch(self, outcomes: Sequence[Outcome], seconds: float, /) -> None:
        """The outcomes, in the order of their events, and the seconds their batch took."""
        ...


Observer = Callable[[Outcome, float], None] | BatchObserver
"""Told of every outcome and the seconds its batch took; what it raises is its own problem."""


class StoreMeter(Protocol):
    """Makes the calls of the gate to the store, and counts them. The answer, or the exception, is
    the store's own."""

    def claim(
        self, call: Callable[[Sequence[Claim]], list[Verdict]], claims: Sequence[Claim], /
    ) -> list[Verdict]:
        """Call the store with these claims."""
        ...

    def settle(
        self,
        call: Callable[[Sequence[Settlement]], list[SettleResult]],
        settlements: Sequence[Settlement],
        /,
    ) -> list[SettleResult]:
        """Call the store with these settlements."""
        ...


@runtime_checkable
class Store(Protocol):
    """The hot path: two verbs, batched and fenced.

    Guaranteed: each key is judged by `ledger.judge` and `ledger.settle` as if it stood alone and
    one at a time, whoever else asks at the same moment; an answer that was given is durable to the
    degree the store's page in the docs says.
    Not guaranteed: that a batch is one transaction. A failure of one claim is its own verdict of
    kind `error`; a failure of the call is `StoreUnavailable`, and some of it may have been written:
    asking again with the same nonces and tokens is always safe.
    `now` is for tests; without it the store's own clock decides.
    """

    def claim(self, claims: Sequence[Claim], now: int | None = None) -> list[Verdict]:
        """Judge each claim, in the order asked; a batch holds each key once."""
        ...

    def settle(
        self, settlements: Sequence[Settlement], now: int | None = None
    ) -> list[SettleResult]:
        """Settle each run, in the order given; what is not the latest token's is refused."""
        ...


class Stats(msgspec.Struct, frozen=True):
    """How full a store is."""

    records: int
    letters: int
    bytes: int | None = None
    """Size on disk or in memory, where the store can tell."""


@runtime_checkable
class StoreAdmin(Protocol):
    """The calls of the command line to a store, away from the hot path."""

    def show(self, key: bytes) -> Record | None:
        """The record of this key, None if there is none or it has expired."""
        ...

    def put_letters(self, letters: Sequence[Letter]) -> None:
        """Keep these dead letters; one that is already there under its id is left as it is."""
        ...

    def letters(self, consumer: str | None = None) -> Iterator[Letter]:
        """All dead letters, oldest first."""
        ...

    def letter(self, id: str) -> Letter | None:
        """One dead letter by its id."""
        ...

    def drop_letters(self, ids: Sequence[str], before: int | None = None) -> int:
        """Forget these dead letters, with `before` only those whose `at` is below it; answers how
        many there were. A redrive may have kept one anew meanwhile, at a later instant."""
        ...

    def sweep(self, limit: int = 10_000, now: int | None = None) -> int:
        """Look at up to `limit` records from where the last sweep stopped; drop what expired."""
        ...

    def forget(self, keys: Sequence[bytes]) -> int:
        """Drop these records whatever they hold; answers how many there were."""
        ...

    def clear_results(self, keys: Sequence[bytes]) -> int:
        """Drop the results of these records, expired ones too, and nothing else of them: a copy is
        a duplicate as before. Answers how many had one."""
        ...

    def stats(self) -> Stats:
        """How full the store is now."""
        ...

    def close(self) -> None:
        """Let go of files, threads and connections."""
        ...


class LetterSink(Protocol):
    """Where the engine puts letters: a store, or a queue."""

    def put_letters(self, letters: Sequence[Letter]) -> None:
        """Keep these dead letters; raises an EventonceError where one of them is not kept."""
        ...

    def close(self) -> None:
        """Let go of files and connections."""
        ...


class Finding(msgspec.Struct, frozen=True):
    """One thing that was looked at in a store, or around it."""

    what: str
    fix: str = ""
    """The remedy; empty if all is fine."""
    missing: bool = False
    """Whether the thing does not exist at all."""
    unchecked: bool = False
    """Whether it could not be looked at: `what` says why, and nothing is known of it."""

    @property
    def fine(self) -> bool:
        """Whether nothing need be done, as far as is known."""
        return not self.fix

    @property
    def state(self) -> str:
        """The state in a word or two: ok, failed, missing or not checked."""
        if self.unchecked:
            return "not checked"
        return "ok" if self.fine else "missing" if self.missing else "failed"


@runtime_checkable
class StoreNames(Protocol):
    """A store that keeps the names of the consumers that use it, so that `eventonce show` finds an
    event whoever ran it. A store need not: events of other names are then found by `--name`.

    Each consumer asks and adds once a process, after its first batch and in a thread of its own.
    The names are counted as no records, and no sweep drops them.
    """

    def names(self) -> list[str]:
        """The names that were added, in any order; none where nothing was."""
        ...

    def add_name(self, name: str) -> None:
        """Keep this name; one that is already there is kept once."""
        ...


@runtime_checkable
class StoreSchema(Protocol):
    """A store that must be made before it can be used: a table, a schema."""

    def create(self, *, dry_run: bool = False) -> list[str]:
        """Make what is missing; answers what was done, or with `dry_run` what would be."""
        ...

    def migrate(self, *, dry_run: bool = False) -> list[str]:
        """Bring what is older up to date; answers what was done, or would be."""
        ...

    def check(self) -> list[Finding]:
        """Look whether all is as it must be, permissions too."""
        ...


class Transaction(Protocol):
    """The store's own database transaction, open for the caller's writes."""

    @property
    def connection(self) -> Any:
        """The driver's connection; what is written through it commits with the settlement."""
        ...

    def settle(self, settlement: Settlement) -> SettleResult:
        """Settle within this transaction: it counts only if the transaction commits."""
        ...

    def failed(self, error: BaseException) -> bool:
        """Whether the database or the network, and not the caller's own statements, raised this."""
        ...


@runtime_checkable
class Transactional(Protocol):
    """A store that can complete a run inside a transaction of the caller's."""

    def transaction(self) -> AbstractContextManager[Transaction]:
        """Open a transaction; it commits on a normal exit and rolls back on an exception."""
        ...


@runtime_checkable
class AsyncTransactional(Transactional, Protocol):
    """A store with transactions whose driver has asynchronous connections too."""

    def async_connection(self, transaction: Any) -> tuple[Any, Callable[[], Awaitable[None]]]:
        """The connection of an open transaction for a coroutine, and what takes it back: from then
        on every statement is refused, and the answer is there when nobody awaits one."""
        ...


class Delivery(msgspec.Struct, eq=False):
    """One message of a source: its content, and the names that the source has for it."""

    body: bytes
    receipt: str = ""
    id: str = ""
    """The transport's own id, which an event that has none goes by."""
    group: str = ""
    """The FIFO group, whose events run one after the other, in their order; empty for none."""
    times: int = 1
    """The number of deliveries, this one included."""
    since: float = 0.0
    """The moment of receipt, by the monotonic clock."""
    held: float = 0.0
    """The moment of receipt, or of the last postponement, by the same clock."""
    trace: Mapping[str, str] = NO_HEADERS
    """The trace context that it came with, by the names that HTTP has for it."""


class Source(Protocol):
    """Where a worker's events come from.

    Guaranteed: what was received and not acknowledged comes again, at the latest `hold` seconds
    after it was received or last postponed. Deliveries of one group come in their order, and none
    of them while an earlier one is out.
    Not guaranteed: that what was acknowledged never comes again; it is a copy then.
    Called by many threads. `SourceUnavailable` means to try again; nothing is lost by it.
    """

    @property
    def hold(self) -> float:
        """Seconds a delivery is left to who received it; `inf` for as long as the process lives."""
        ...

    @property
    def ended(self) -> bool:
        """Whether the source has no more messages but those that were received and are not
        acknowledged."""
        ...

    def receive(self, most: int) -> list[Delivery]:
        """Wait a while for up to so many; none if nothing came."""
        ...

    def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        """Forget these: they are settled."""
        ...

    def postpone(self, deliveries: Sequence[tuple[Delivery, float]]) -> None:
        """Bring each again, but not before so many seconds; also how a delivery is kept longer."""
        ...

    def close(self) -> None:
        """Let go of files and connections."""
        ...
