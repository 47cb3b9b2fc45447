"""The nouns: event, claim, verdict, settlement, outcome, letter, job.

Instants are integer milliseconds since the epoch and durations integer milliseconds, because that
is what every store compares; people type seconds or `"10d"`, and `rules` translates.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from decimal import Decimal
from functools import lru_cache
from math import isfinite
from types import MappingProxyType
from typing import Any, Final, Literal

import msgspec

from eventonce.core.status import ACKNOWLEDGED
from eventonce.core.status import Status as Status  # noqa: PLC0414  one of the nouns
from eventonce.errors import ConfigError, EnvelopeError, EventonceError

NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})

VerdictKind = Literal["run", "duplicate", "stale", "unchanged", "busy", "dead", "conflict", "error"]
Action = Literal["complete", "release", "return", "bury", "extend"]
"""How a run is settled. `release` frees it after a failed attempt; `return` frees it too, but the
attempt does not count: the store, the network or the process ended it, and not the event."""
SettleResult = Literal["kept", "fenced", "unknown"]
"""The result of a settlement: written; refused, because a later run has the key; or refused,
because the store no longer knows the run."""

MAX_ORDER: Final = 2**53 - 1
"""Lua's numbers are doubles: an order beyond this would be rounded, and two versions would tie."""


class Claim(msgspec.Struct, frozen=True, gc=False):
    """The claim of one event: its key, and everything the law needs to judge it."""

    key: bytes
    nonce: int
    """Names this ask: the same ask repeated (its reply was lost) gets its own grant again."""
    lease: int
    remember: int
    attempts: int
    by: bytes = b""
    """A short hash of the transport id, empty if there was none."""
    sliding: bool = False
    digest: bytes = b""
    """A fact's verified content, or which version of the subject this is; empty for neither."""
    order: int | None = None
    """The version's place in its subject's history; None makes the claim a fact's."""
    at: int = 0
    unchanged_within: int = 0
    redrive: bool = False
    """Whether a dead letter is run again: such a claim passes a version that was given up, and
    nothing else."""
    peek: bool = False
    """Judge and answer, but write nothing: a `run` then carries no token."""
    alone: bool = False
    """Whether nothing else will run in this process meanwhile: only then does a run that ends with
    its process count as an attempt of this event."""
    keep_result: int | None = None
    """Milliseconds for which the result is kept for copies, 0 for not at all; None for as long as
    the record. No store need know it."""


class Verdict(msgspec.Struct, frozen=True, gc=False):
    """The store's answer to one claim."""

    kind: VerdictKind
    token: int = 0
    attempt: int = 0
    wait: int = 0
    """Milliseconds from the store's now. Of `run`: until the lease ends. Of `busy`: until asking
    again may help. A duration, because the clocks of the store and of this machine may differ."""
    same_id: bool | None = None
    """Whether the winner had the same transport id; None where one of the ids is missing."""
    order: int | None = None
    """The version that won, of `stale`, `unchanged` and an overtaken `dead`."""
    result: bytes | None = None
    error: EventonceError | None = None
    alone: bool = False
    """Whether this `run` should have a process alone, because the last run ended with its
    process."""
    spared: int = 0
    """Of `run`: how many of the attempts do not count towards giving up."""


class Settlement(msgspec.Struct, frozen=True, gc=False):
    """The end of a run, told to the store with the run's token, so that only the latest run is
    believed."""

    claim: Claim
    token: int
    action: Action
    result: bytes | None = None


class Letter(msgspec.Struct, frozen=True):
    """An event that was given up, whole, with the reason; `redrive` runs it again."""

    id: str
    """The same for the same key and version: a letter written twice is one letter."""
    consumer: str
    status: Status
    reason: str
    rule: str
    key: bytes
    event: bytes
    at: int
    attempt: int = 0


class Event(msgspec.Struct, frozen=True, eq=False, gc=False):
    """One event as it came, with the fields of its envelope; unpacked only as far as it is read."""

    raw: bytes
    """The whole event as JSON: a dead letter keeps it, and `envelope.read` accepts it again."""
    detail_raw: bytes | msgspec.Raw
    """The JSON of the detail alone, or of the whole event where there is no envelope."""
    id: str = ""
    """The transport id, empty if there is none: new with every publish, kept on redelivery."""
    source: str = ""
    type: str = ""
    """The EventBridge detail-type, with `{id}` standing for the ids of a Genesys topic."""
    time: str = ""
    replay: str = ""
    """The name of the archive replay that brought the event, empty if it came live."""
    form: str = "json"
    """The form of the envelope: `eventbridge`, `genesys`, `cxone`, `cloudevents`, `json`."""
    headers: Mapping[str, str] = NO_HEADERS
    """The HTTP headers it came with, names in lower case; empty for other transports."""
    _number: int | None = None
    """Which of the equal events of one HTTP request it is, if there are several events in it."""
    envelope_raw: bytes | msgspec.Raw | None = None
    """The JSON of the envelope where it lies inside `raw`; None where it is `raw`."""
    own_org: str = ""
    """The organisation as the event itself has it; empty where its source names it."""
    delivery: str = ""
    """Names this delivery where its source may bring it again by itself: the same then. It tells
    attempts apart and is no part of a key that tells copies."""
    channel: str = ""
    """Where it came in, such as `sqs:NAME`; empty where what brought it does not say."""
    receives: int = 0
    """How often the queue has delivered it by now; 0 where nobody counts."""
    _part: str = ""
    """The part as the event itself brings it: a dead letter keeps it."""
    _detail: Any = msgspec.UNSET
    trace: Mapping[str, str] = NO_HEADERS
    """The trace context that it came with, such as `traceparent`, by the names that HTTP has for
    it; no dead letter keeps it."""

    @property
    def org(self) -> str:
        """The organisation the event belongs to, whichever integration published it."""
        return self.own_org or organisation(self.source)

    @property
    def part(self) -> str:
        """Which of several events of one HTTP request it is, by content and number; else empty."""
        if self._number is None or self._part:
            return self._part
        from hashlib import blake2b  # noqa: PLC0415  slow to import, and few events need it

        return f"{blake2b(self.raw, digest_size=16).hexdigest()}-{self._number}"

    @property
    def detail(self) -> Any:
        """The detail, unpacked when first asked for."""
        if self._detail is msgspec.UNSET:
            msgspec.structs.force_setattr(self, "_detail", _unpacked(self.detail_raw))
        return self._detail

    @property
    def body(self) -> Any:
        """The Genesys eventBody, or the detail where there is none."""
        detail = self.detail
        if isinstance(detail, dict) and "eventBody" in detail:
            return detail["eventBody"]
        return detail

    def __repr__(self) -> str:
        return f"Event(type={self.type!r}, id={self.id!r}, form={self.form!r})"


def _unpacked(raw: bytes | msgspec.Raw) -> Any:
    """JSON to Python; a number no float can hold comes as a Decimal."""
    try:
        try:
            return msgspec.json.decode(raw)
        except msgspec.ValidationError:
            return _decode_wide(raw)
    except (ValueError, RecursionError) as error:
        raise EnvelopeError(f"the detail cannot be unpacked: {error}", place="detail") from None


def _wide(text: str) -> float | Decimal:
    value = float(text)
    return value if isfinite(value) else Decimal(text)


_decode_wide: Final = msgspec.json.Decoder(float_hook=_wide).decode


class Outcome(msgspec.Struct, frozen=True):
    """The outcome of one event, and the reason."""

    event: Event | None
    """None only where the bytes were no event at all."""
    status: Status
    reason: str = ""
    rule: str = ""
    key: bytes = b""
    result: Any = None
    error: BaseException | None = None
    retry_at: int | None = None
    """The moment when another try may help, of an outcome that is not acknowledged."""
    shadowed: str = ""
    """The status that an event under `shadow` would have had; empty where it would have run
    anyway."""
    attempt: int = 0
    """Which attempt this was, where a handler ran; else 0."""
    took: float = 0.0
    """Seconds that the handler took."""
    same_id: bool | None = None
    """Of a copy: whether the event that took effect had the same transport id; None for unknown."""
    order: int | None = None
    """The version that the event has of its subject; None for a fact."""
    warned: bool = False
    """Whether this is the first event of a type that no handler takes: the consumer writes its line
    of the log, so that nobody else must."""

    @property
    def ack(self) -> bool:
        """Whether the transport may forget the event."""
        return self.status in ACKNOWLEDGED


class Job(msgspec.Struct, eq=False):
    """The argument of a handler: the event, and the names and numbers of its run."""

    event: Event
    claim: Claim
    rule: str = ""
    token: int = 0
    """Rises with every run of this key: a sink that keeps the highest one it saw, and refuses a
    lower one, is safe from a worker that outlived its lease."""
    attempt: int = 1
    run: bool = True
    """Whether there is something to do; False only under `Consumer.once`, for a copy."""
    lost: bool = False
    """Set when another run has taken over: what is still done now is done twice."""
    result: Any = None
    """Set it under `Consumer.once` to have it kept for copies."""
    outcome: Outcome | None = None
    """The outcome, once it is known; only under `Consumer.once`."""
    traced: dict[str, str] | None = None
    """The headers of `trace`; None, which costs less than an empty one, where nobody traces."""
    connect: Callable[[], Any] | None = None
    """Opens the transaction behind `connection`; given by the runner where there can be one."""
    connect_async: Callable[[], Awaitable[Any]] | None = None
    """The same behind `async_connection`."""

    @property
    def trace(self) -> Mapping[str, str]:
        """The headers that make a request of the handler part of its trace; empty where nobody
        traces."""
        return self.traced or NO_HEADERS

    @property
    def key(self) -> bytes:
        """The fact or the subject: the same for all versions of a subject, so it groups them."""
        return self.claim.key

    @property
    def effect_id(self) -> str:
        """The same over all retries, another for another fact or version: what an
        `Idempotency-Key` header or a FIFO deduplication id wants."""
        return effect_id(self.claim)

    @property
    def connection(self) -> Any:
        """The store's own database connection, in a transaction that commits with the completion.

        Opened when first asked for; the store must be one that has transactions.
        """
        if self.connect is None:
            raise ConfigError(
                "job.connection: this run has no transaction to offer. It needs an SQL store "
                "(sqlite:, postgresql:) and a plain `def` handler. An `async def` handler would "
                "hold the event loop while it waits for the database: on PostgreSQL it writes "
                "through `await job.async_connection()`."
            )
        return self.connect()

    async def async_connection(self) -> Any:
        """The same for an `async def` handler on PostgreSQL: a `psycopg.AsyncConnection`.

        Opened when first asked for, and the same one as long as the handler runs.
        """
        if self.connect_async is None:
            raise ConfigError(
                "job.async_connection(): this run has no asynchronous transaction to offer. It "
                "needs a PostgreSQL store (postgresql:) and an `async def` handler that still "
                "runs. On SQLite write a plain `def` handler, which uses job.connection: it runs "
                "in a thread, and holds up nobody."
            )
        return await self.connect_async()


def effect_id(claim: Claim) -> str:
    """The name of what this claim would bring about."""
    if claim.order is None:
        return claim.key.hex()
    return f"{claim.key.hex()}-{claim.order}-{claim.digest.hex()}"


_GENESYS: Final = re.compile(
    r"aws\.partner/genesys\.com(?:\.test)?/cloud/([^/]+)(?:/.*)?", re.DOTALL
)

_LONGEST_SOURCE: Final = 512
"""Characters of a source that may name one: what no organisation has is not remembered."""


def organisation(source: str) -> str:
    """The Genesys organisation of a source, whichever of its integrations it names; else empty."""
    return _known(source) if len(source) <= _LONGEST_SOURCE else ""


@lru_cache(maxsize=1024)
def _known(source: str) -> str:
    match = _GENESYS.fullmatch(source)
    return match[1] if match else ""
