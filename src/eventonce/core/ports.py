"""The seams: what a store, a shelf of letters, a transaction, a source and an observer must be."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from math import inf
from typing import Any, Final, Protocol, runtime_checkable

import msgspec

from eventonce.core.ledger import Record
from eventonce.rules.rule import Rule
from eventonce.types import Claim, Event, Job, Letter, Outcome, Settlement, SettleResult, Verdict

UNDECIDED: Final = Outcome(event=None, status="busy", reason="not decided yet")

Handler = Callable[[Job], Any]
"""What a user writes: a plain or an `async def` function of one job."""

Observer = Callable[[Outcome, float], None]
"""Told of every outcome and the seconds its batch took; what it raises is its own problem."""


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
    """What the command line and the dashboard ask of a store, away from the hot path."""

    def show(self, key: bytes) -> Record | None:
        """The record of this key, None if there is none or it has expired."""
        ...

    def put_letters(self, letters: Sequence[Letter]) -> None:
        """Keep these letters; one that is already there under its id is left as it is."""
        ...

    def letters(self, consumer: str | None = None) -> Iterator[Letter]:
        """All letters, oldest first."""
        ...

    def letter(self, id: str) -> Letter | None:
        """One letter by its id."""
        ...

    def drop_letters(self, ids: Sequence[str]) -> int:
        """Forget these letters; answers how many there were."""
        ...

    def sweep(self, limit: int = 10_000, now: int | None = None) -> int:
        """Look at up to `limit` records from where the last sweep stopped; drop what expired."""
        ...

    def forget(self, keys: Sequence[bytes]) -> int:
        """Drop these records whatever they hold; answers how many there were."""
        ...

    def stats(self) -> Stats:
        """How full the store is now."""
        ...

    def close(self) -> None:
        """Let go of files, threads and connections."""
        ...


class LetterSink(Protocol):
    """Where the engine puts letters: a shelf, or a queue."""

    def put_letters(self, letters: Sequence[Letter]) -> None:
        """Keep these letters; raises an EventonceError where one of them is not kept."""
        ...

    def close(self) -> None:
        """Let go of files and connections."""
        ...


class Finding(msgspec.Struct, frozen=True):
    """One thing that was looked at in a store."""

    what: str
    fine: bool
    fix: str = ""
    """What to do about it, empty if it is fine."""


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


class Delivery(msgspec.Struct, eq=False):
    """One message of a source: what it carries, and what the source knows it by."""

    body: bytes
    receipt: str = ""
    id: str = ""
    """The transport's own id, which an event that has none goes by."""
    group: str = ""
    """Those of one group are worked on one after the other, in their order; empty for none."""
    times: int = 1
    """How often it came, this time included."""
    since: float = 0.0
    """When it was received, by the monotonic clock."""
    held: float = 0.0
    """When it was received or last postponed, by the same clock."""


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
        """Whether nothing will come any more but what was received and is not acknowledged."""
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


class Task(msgspec.Struct, eq=False):
    """One event of a batch, shared by the engine that decides and the runner that acts."""

    event: Event
    rule: Rule
    claim: Claim
    handler: Handler
    also: Sequence[Claim] = ()
    """Claims on the keys that older rules gave this event."""
    forgotten: str = ""
    """Why nobody can know whether this replayed event took effect, empty where the store can."""
    token: int = 0
    attempt: int = 1
    spared: int = 0
    """Attempts that do not count towards giving up."""
    deliveries: float = inf
    """How often its transport brings it at the most: after that many attempts, spared or not, it is
    lost unless it is kept."""
    redelivery: bool | None = None
    """Of a copy: whether the event it is a copy of had the same transport id; None for unknown."""
    unguarded: str = ""
    """Why it runs without a token, empty if it has one."""
    job: Job | None = None
    """What the handler was given, once it was started."""
    finished: bool = False
    renewed: float = 0.0
    """When its lease was last renewed or first watched, by the monotonic clock; 0 for never."""
    ends: float = inf
    """When its process will be ended, by the same clock: its lease is not renewed beyond that."""
    last_call: float = inf
    """When its handler may begin at the latest, by the same clock."""
    covered: bool = False
    """Whether its first lease lasts until then, and needs no renewal."""
    value: Any = None
    result: bytes | None = None
    """The value as it is kept for copies."""
    note: str = ""
    error: Exception | None = None
    blameless: bool = False
    """Whether the store or the network, and not the handler, raised the error."""
    in_transaction: bool = False
    """Whether its completion is part of the handler's own transaction: nobody else completes it."""
    kept: SettleResult | None = None
    """What became of its completion where that was settled before the engine asks for it: inside
    that transaction, or by a renewal."""
    outcome: Outcome = UNDECIDED
    lost: bool = False
    """Whether a renewal was refused."""

    def lose(self) -> None:
        """Another run has taken over; the handler can ask."""
        self.lost = True
        if self.job is not None:
            self.job.lost = True

    def started(self) -> Job:
        """The job for the handler, made when it is started."""
        job = Job(self.event, self.claim, self.rule.name, self.token, self.attempt, lost=self.lost)
        self.job = job
        return job


class Effects(Protocol):
    """All that the engine wants of the world; a runner is an implementation of this."""

    def now(self) -> int:
        """Milliseconds since the epoch, for letters and retry times; the law has another clock."""
        ...

    async def claim(self, claims: Sequence[Claim]) -> list[Verdict]:
        """Ask the store."""
        ...

    async def settle(self, settlements: Sequence[Settlement]) -> list[SettleResult]:
        """Tell the store; tried again while the store is away, since that is always safe."""
        ...

    async def run(self, tasks: Sequence[Task]) -> Sequence[Task]:
        """Start what is not started and come back with what has finished, at least one.

        All leases are renewed meanwhile. A runner may wait a little for others to finish too, so
        that they are settled in one call.
        """
        ...

    async def shelve(self, letters: Sequence[Letter]) -> None:
        """Keep these letters."""
        ...

    async def enter(self, *, alone: bool) -> bool | None:
        """Begin to run events in this process, beside others or alone; whether it is alone. None
        where it cannot be alone because another is, which took too long: it did not begin."""
        ...

    def leave(self, *, alone: bool) -> None:
        """End it; `alone` is what `enter` answered."""
        ...
