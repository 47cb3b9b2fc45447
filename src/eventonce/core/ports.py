"""The protocols of a store, dead letters, a transaction, a process, a source and an observer; and
whether an object offers one of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeGuard, TypeVar

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

P = TypeVar("P")


def offers(one: object, protocol: type[P]) -> TypeGuard[P]:
    """Whether this object has the methods of a protocol. Not `isinstance`: since Python 3.12 that
    does not see the methods which a wrapper passes on by `__getattr__`."""
    return all(hasattr(one, name) for name in dir(protocol) if not name.startswith("_"))


class BatchObserver(Protocol):
    """An observer that gets the outcomes of a whole batch in one call."""

    def batch(self, outcomes: Sequence[Outcome], seconds: float, /) -> None:
        """Take the outcomes, in the order of their events, and the seconds of their batch."""
        ...


Observer = Callable[[Outcome, float], None] | BatchObserver
"""An observer gets every outcome and the seconds of its batch; its exceptions are only logged."""


class StoreMeter(Protocol):
    """A meter that makes the gate's calls to the store and counts them. It returns the store's
    answer, or raises the store's exception."""

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


class Store(Protocol):
    """The two verbs for events: both take a batch, and both are fenced.

    Guaranteed: `ledger.judge` and `ledger.settle` decide about each key atomically, one call at a
    time, also while others ask for the same key; an answer is as durable as the store's page in the
    docs says.
    Not guaranteed: that a batch is one transaction. A failure of one claim is a verdict of kind
    `error`; a failure of the call is `StoreUnavailable`, and a part of it may have been written. A
    worker takes any other StoreError for a failure of the whole store, too.
    Asking again with the same nonces and tokens is always safe.
    `now` is for tests; without it the store's own clock decides.
    A store may have an attribute `embedded`, which is False unless it has one: True if only one
    machine can use the store, and claims delete expired records in passing. A consumer on it needs
    no name of its own, and a worker does not sweep it.
    """

    def claim(self, claims: Sequence[Claim], now: int | None = None) -> list[Verdict]:
        """Judge each claim, in the order given; a batch has each key once."""
        ...

    def settle(
        self, settlements: Sequence[Settlement], now: int | None = None
    ) -> list[SettleResult]:
        """Settle each run, in the order given; a settlement without the latest token is refused."""
        ...


class Stats(msgspec.Struct, frozen=True):
    """The number of records and dead letters of a store, and its size."""

    records: int
    letters: int
    bytes: int | None = None
    """Size on disk or in memory, where the store can tell."""


class StoreAdmin(Protocol):
    """The calls of the command line to a store, which no event waits for."""

    def show(self, key: bytes) -> Record | None:
        """Return the record of this key; None if there is none or it has expired."""
        ...

    def put_letters(self, letters: Sequence[Letter]) -> None:
        """Keep these dead letters; a dead letter that is already stored under its id stays."""
        ...

    def letters(self, consumer: str | None = None) -> Iterator[Letter]:
        """Return all dead letters, oldest first."""
        ...

    def letter(self, id: str) -> Letter | None:
        """Return one dead letter by its id."""
        ...

    def drop_letters(self, ids: Sequence[str], before: int | None = None) -> int:
        """Delete these dead letters, with `before` only those whose `at` is below it, because a
        redrive may have stored one again meanwhile. Return how many were deleted."""
        ...

    def sweep(self, limit: int = 10_000, now: int | None = None) -> int:
        """Look at up to `limit` records from where the last sweep stopped; delete expired ones."""
        ...

    def forget(self, keys: Sequence[bytes]) -> int:
        """Delete these records, also of running events; return how many there were."""
        ...

    def clear_results(self, keys: Sequence[bytes]) -> int:
        """Delete the results of these records, also of expired ones, and nothing else: a copy is
        still a duplicate. Return how many had a result."""
        ...

    def stats(self) -> Stats:
        """Return the present numbers of the store."""
        ...

    def close(self) -> None:
        """Close files and connections, and end threads."""
        ...


class LetterSink(Protocol):
    """The place of the engine's dead letters: a store, or a queue."""

    def put_letters(self, letters: Sequence[Letter]) -> None:
        """Keep these dead letters; raise an EventonceError if one of them is not kept."""
        ...

    def close(self) -> None:
        """Close files and connections."""
        ...


class Finding(msgspec.Struct, frozen=True):
    """The result of one check of a store, or of its surroundings."""

    what: str
    fix: str = ""
    """The remedy; empty if all is fine."""
    missing: bool = False
    """Whether the checked thing does not exist."""
    unchecked: bool = False
    """Whether the check could not be made: `what` says why."""

    @property
    def fine(self) -> bool:
        """Whether there is nothing to do, as far as is known."""
        return not self.fix

    @property
    def state(self) -> str:
        """The state in a word or two: ok, failed, missing or not checked."""
        if self.unchecked:
            return "not checked"
        return "ok" if self.fine else "missing" if self.missing else "failed"


def judged(fine: bool, what: str, fix: str) -> Finding:  # noqa: FBT001  the first argument
    """Return the finding; with its remedy unless all is fine."""
    return Finding(what, "" if fine else fix)


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


class StoreSchema(Protocol):
    """A store that must be created before use: a table, a schema."""

    def create(self, *, dry_run: bool = False) -> list[str]:
        """Create the missing parts; return what was done, or with `dry_run` what would be done."""
        ...

    def migrate(self, *, dry_run: bool = False) -> list[str]:
        """Bring older parts up to date; return what was done, or would be done."""
        ...

    def check(self) -> list[Finding]:
        """Check that all parts are as they must be, permissions too."""
        ...


class HostProcess(Protocol):
    """The process in which a batch runs, for the engine's calls: a request would cost more."""

    def enter(self) -> bool:
        """Enter beside other batches, if no wait is needed; return whether the batch entered."""
        ...

    def leave(self, claims: Sequence[Claim]) -> None:
        """Leave the process, and end the runs of these claims: their outcomes are known."""
        ...


class Transaction(Protocol):
    """The store's own database transaction, open for the caller's writes."""

    @property
    def connection(self) -> Any:
        """The driver's connection; writes through it commit together with the settlement."""
        ...

    def settle(self, settlement: Settlement) -> SettleResult:
        """Settle within this transaction: the settlement counts only if the transaction commits."""
        ...

    def failed(self, error: BaseException) -> bool:
        """Whether the database or the network, and not the caller's own statements, raised this."""
        ...


class Transactional(Protocol):
    """A store that can complete a run inside a transaction of the caller."""

    def transaction(self) -> AbstractContextManager[Transaction]:
        """Open a transaction; it commits on a normal exit and rolls back on an exception."""
        ...


class AsyncTransactional(Transactional, Protocol):
    """A store with transactions whose driver has asynchronous connections too."""

    def async_connection(self, transaction: Any) -> tuple[Any, Callable[[], Awaitable[None]]]:
        """Return the connection of an open transaction for a coroutine, and a function that ends
        its use: further statements are refused, and its awaitable is done when none is awaited."""
        ...


class Delivery(msgspec.Struct, eq=False):
    """One message of a source: its content, and its ids at the source."""

    body: bytes
    receipt: str = ""
    id: str = ""
    """The transport's own id, which an event without an id gets."""
    group: str = ""
    """The FIFO group, whose events run one after the other, in their order; empty for none."""
    times: int = 1
    """The number of deliveries, this one included."""
    since: float = 0.0
    """The moment of receipt, by the monotonic clock."""
    held: float = 0.0
    """The moment of receipt, or of the last postponement, by the same clock."""
    trace: Mapping[str, str] = NO_HEADERS
    """The trace context of the message, by the names of the HTTP headers."""


class Source(Protocol):
    """The source of a worker's events.

    Guaranteed: a message that was received and not acknowledged comes again, at the latest `hold`
    seconds after it was received or last postponed. Messages of one group come in their order, and
    none of them while an earlier one is in flight.
    Not guaranteed: that an acknowledged message never comes again; it is a copy then.
    Many threads call the methods. `SourceUnavailable` means: retry; no message is lost.
    `str` of the source is its name in the log and in errors.
    A source may have an attribute `keeps`, which is False unless it has one: True if a message
    stays in the source although it is acknowledged, such as a line of a file. An event that
    fails because no handler takes it is then counted and acknowledged, and does not come again.
    """

    @property
    def hold(self) -> float:
        """Seconds for which a message is left to its receiver; `inf` while the process lives."""
        ...

    @property
    def ended(self) -> bool:
        """Whether the source has no more messages but those that were received and are not
        acknowledged."""
        ...

    def receive(self, most: int) -> list[Delivery]:
        """Wait a while for up to `most` messages; return an empty list if none came."""
        ...

    def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        """Delete these messages: their events are settled."""
        ...

    def postpone(self, deliveries: Sequence[tuple[Delivery, float]]) -> None:
        """Deliver each again, but not before so many seconds; this also extends `hold`."""
        ...

    def close(self) -> None:
        """Close files and connections."""
        ...
