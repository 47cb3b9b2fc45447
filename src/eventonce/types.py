"""The nouns: event, claim, verdict, settlement, outcome, letter, job.

Instants are integer milliseconds since the epoch, and durations integer milliseconds, because every
store compares integers; people type seconds or `"10d"`, and `rules` translates.
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

FORM_NAMES: Final = ("eventbridge", "cloudevents", "genesys", "cxone", "json")
"""The forms of envelopes; an object that is none of the others is `json`."""

VerdictKind = Literal["run", "duplicate", "stale", "unchanged", "busy", "dead", "conflict", "error"]
Action = Literal["complete", "release", "return", "bury", "extend"]
"""The ways to settle a run. `release` frees the key after a failed attempt; `return` frees it, too,
but the attempt does not count: the store, the network or the process ended it, not the event."""
SettleResult = Literal["kept", "fenced", "unknown"]
"""The result of a settlement: written; refused, because a later run has the key; or refused,
because the store no longer knows the run."""

MAX_ORDER: Final = 2**53 - 1
"""Lua's numbers are doubles: a higher order would be rounded, and two versions would tie."""


class Claim(msgspec.Struct, frozen=True, gc=False):
    """The claim of one event: its key, and all that the law needs to judge it."""

    key: bytes
    nonce: int
    """The number of this claim: asked again, after a lost answer, it gets the same grant."""
    lease: int
    remember: int
    attempts: int
    by: bytes = b""
    """A short hash of the transport id, empty if there was none."""
    sliding: bool = False
    digest: bytes = b""
    """The digest of a fact's content, if it is verified, or of a version; else empty."""
    order: int | None = None
    """The place of a version in the history of its subject; None for a fact."""
    at: int = 0
    unchanged_within: int = 0
    redrive: bool = False
    """Whether a dead letter is run again: the claim may run although the event was given up. All
    other verdicts stay."""
    peek: bool = False
    """Whether to judge and write nothing: a `run` then has no token."""
    alone: bool = False
    """Whether no other event runs in this process meanwhile: only then does a run that ends with
    its process count as an attempt of this event."""
    keep_result: int | None = None
    """Milliseconds for which the result is kept for copies, 0 for not at all; None for as long as
    the record. Stores do not use it."""


class Verdict(msgspec.Struct, frozen=True, gc=False):
    """The store's answer to one claim."""

    kind: VerdictKind
    token: int = 0
    attempt: int = 0
    wait: int = 0
    """Milliseconds. Of `run`: until the lease ends. Of `busy`: until asking again may help. A
    duration, because the clocks of the store and of this machine may differ."""
    same_id: bool | None = None
    """Whether the event that took effect had the same transport id; None if an id is missing."""
    order: int | None = None
    """The version that decided: of `stale`, `unchanged` and `duplicate` the applied one, of `busy`
    and `dead` a newer one that was tried."""
    result: bytes | None = None
    error: EventonceError | None = None
    alone: bool = False
    """Whether this `run` should be alone in its process, because the last run ended with its
    process."""
    spared: int = 0
    """Of `run`: how many of the attempts do not count towards giving up."""


class Settlement(msgspec.Struct, frozen=True, gc=False):
    """The end of a run, for the store, with the run's token: only the settlement of the latest run
    is accepted."""

    claim: Claim
    token: int
    action: Action
    result: bytes | None = None


class Letter(msgspec.Struct, frozen=True):
    """An event that was given up, whole, with the reason; `redrive` runs it again."""

    id: str
    """The id, the same for the same key and version: a dead letter written twice is one."""
    consumer: str
    status: Status
    reason: str
    rule: str
    key: bytes
    event: bytes
    at: int
    attempt: int = 0


class Event(msgspec.Struct, frozen=True, eq=False, gc=False):
    """One event as it came, with the fields of its envelope; the detail is decoded when used."""

    raw: bytes
    """The whole event as JSON: a dead letter keeps it, and `envelope.read` accepts it again."""
    detail_raw: bytes | msgspec.Raw
    """The JSON of the detail alone, or of the whole event where there is no envelope."""
    id: str = ""
    """The transport id, empty if there is none: new with every publish, kept on redelivery."""
    source: str = ""
    type: str = ""
    """The EventBridge detail-type, with `{id}` in place of the ids of a Genesys topic."""
    time: str = ""
    replay: str = ""
    """The name of the archive replay that brought the event, empty if it came live."""
    form: str = "json"
    """The form of the envelope, one of `FORM_NAMES`."""
    headers: Mapping[str, str] = NO_HEADERS
    """The HTTP headers of its request, names in lower case; empty for other transports."""
    _number: int | None = None
    """The number of the event among equal events of one HTTP request with several events."""
    envelope_raw: bytes | msgspec.Raw | None = None
    """The JSON of the envelope if it is a part of `raw`; None if it is `raw`."""
    own_org: str = ""
    """The organisation that the event itself names; empty if its source names it."""
    delivery: str = ""
    """The id of this delivery, the same if its source delivers it again. It tells attempts apart,
    and is not part of a key that tells copies."""
    channel: str = ""
    """The way in, such as `sqs:NAME`; empty if it is not known."""
    receives: int = 0
    """The number of deliveries by the queue until now; 0 if they are not counted."""
    _part: str = ""
    """The part as the event itself has it: a dead letter keeps it."""
    _detail: Any = msgspec.UNSET
    trace: Mapping[str, str] = NO_HEADERS
    """The trace context of the event, such as `traceparent`, by the names of the HTTP headers; a
    dead letter does not keep it."""

    @property
    def org(self) -> str:
        """The organisation of the event; the integration that published it does not matter."""
        return self.own_org or organisation(self.source)

    @property
    def part(self) -> str:
        """The id of one of several events of an HTTP request, by content and number; else empty."""
        if self._number is None or self._part:
            return self._part
        from hashlib import blake2b  # noqa: PLC0415  slow to import, and few events need it

        return f"{blake2b(self.raw, digest_size=16).hexdigest()}-{self._number}"

    @property
    def detail(self) -> Any:
        """The detail, decoded at the first use."""
        if self._detail is msgspec.UNSET:
            msgspec.structs.force_setattr(self, "_detail", _unpacked(self.detail_raw))
        return self._detail

    @property
    def body(self) -> Any:
        """The Genesys eventBody, or the detail if there is none."""
        detail = self.detail
        if isinstance(detail, dict) and "eventBody" in detail:
            return detail["eventBody"]
        return detail

    def __repr__(self) -> str:
        return f"Event(type={self.type!r}, id={self.id!r}, form={self.form!r})"


def _unpacked(raw: bytes | msgspec.Raw) -> Any:
    """Decode JSON; a number that is too large for a float becomes a Decimal."""
    try:
        try:
            return msgspec.json.decode(raw)
        except msgspec.ValidationError:
            return _decode_wide(raw)
    except (ValueError, RecursionError) as error:
        raise EnvelopeError(f"the detail cannot be decoded: {error}", place="detail") from None


def _wide(text: str) -> float | Decimal:
    value = float(text)
    return value if isfinite(value) else Decimal(text)


_decode_wide: Final = msgspec.json.Decoder(float_hook=_wide).decode


class Outcome(msgspec.Struct, frozen=True):
    """The outcome of one event, and the reason."""

    event: Event | None
    """None only if the bytes were no event at all."""
    status: Status
    reason: str = ""
    rule: str = ""
    key: bytes = b""
    result: Any = None
    error: BaseException | None = None
    retry_at: int | None = None
    """The moment when another try may help, of an outcome that is not acknowledged."""
    shadowed: str = ""
    """The status that an event under `shadow` would have without it; empty if it would run
    anyway."""
    attempt: int = 0
    """The number of the attempt, if a handler ran; else 0."""
    took: float = 0.0
    """Seconds that the handler took."""
    same_id: bool | None = None
    """Of a copy: whether the event that took effect had the same transport id; None for unknown."""
    order: int | None = None
    """The version that the event has of its subject; None for a fact."""
    warned: bool = False
    """Whether this is the first event of a type that no handler takes: the consumer itself writes
    its line in the log, and observers need not."""

    @property
    def ack(self) -> bool:
        """Whether the transport may forget the event."""
        return self.status in ACKNOWLEDGED


class Job(msgspec.Struct, eq=False):
    """The argument of a handler: the event, and the ids and numbers of its run."""

    event: Event
    claim: Claim
    rule: str = ""
    token: int = 0
    """A number that rises with every run of this key: a sink that remembers the highest token, and
    refuses a lower one, is safe from a worker that outlived its lease."""
    attempt: int = 1
    run: bool = True
    """Whether the event must run; False only under `Consumer.once`, for example for a copy."""
    lost: bool = False
    """Whether another run has taken over: all further work of this run is done twice."""
    result: Any = None
    """The result to keep for copies; under `Consumer.once` the block sets it."""
    outcome: Outcome | None = None
    """The outcome, once it is known; only under `Consumer.once`."""
    traced: dict[str, str] | None = None
    """The headers of `trace`; None, which costs less than an empty mapping, without a tracer."""
    connect: Callable[[], Any] | None = None
    """Opens the transaction of `connection`; None if the run cannot have one."""
    connect_async: Callable[[], Awaitable[Any]] | None = None
    """The same for `async_connection`."""

    @property
    def trace(self) -> Mapping[str, str]:
        """The headers that make a request of the handler part of its trace; empty without a
        tracer."""
        return self.traced or NO_HEADERS

    @property
    def key(self) -> bytes:
        """The key of the fact or of the subject; all versions of a subject have the same."""
        return self.claim.key

    @property
    def effect_id(self) -> str:
        """The effect id: the same for all attempts, and another for another fact or version. Use it
        as an `Idempotency-Key` header or as a FIFO deduplication id."""
        return effect_id(self.claim)

    @property
    def connection(self) -> Any:
        """The store's own database connection, in a transaction that commits with the completion.

        The first use opens the transaction; the store must have transactions.
        """
        if self.connect is None:
            raise ConfigError(
                "job.connection: this run has no transaction to offer. It needs an SQL store "
                "(sqlite:, postgresql:) and a plain `def` handler. An `async def` handler would "
                "block the event loop while it waits for the database: on PostgreSQL it writes "
                "through `await job.async_connection()`."
            )
        return self.connect()

    async def async_connection(self) -> Any:
        """Return the same for an `async def` handler on PostgreSQL: a `psycopg.AsyncConnection`.

        The first call opens the transaction; later calls of the handler get the same connection.
        """
        if self.connect_async is None:
            raise ConfigError(
                "job.async_connection(): this run has no asynchronous transaction to offer. It "
                "needs a PostgreSQL store (postgresql:) and an `async def` handler that still "
                "runs. On SQLite write a plain `def` handler, which uses job.connection: it runs "
                "in a thread, and does not block the event loop."
            )
        return await self.connect_async()


def effect_id(claim: Claim) -> str:
    """Return the id of the effect of this claim, the same for every attempt."""
    if claim.order is None:
        return claim.key.hex()
    return f"{claim.key.hex()}-{claim.order}-{claim.digest.hex()}"


_GENESYS: Final = re.compile(
    r"aws\.partner/genesys\.com(?:\.test)?/cloud/([^/]+)(?:/.*)?", re.DOTALL
)

_LONGEST_SOURCE: Final = 512
"""The most characters of a source with an organisation: a longer one is not cached."""


def organisation(source: str) -> str:
    """Return the Genesys organisation of a source, for any integration of it; else empty."""
    return _known(source) if len(source) <= _LONGEST_SOURCE else ""


@lru_cache(maxsize=1024)
def _known(source: str) -> str:
    match = _GENESYS.fullmatch(source)
    return match[1] if match else ""
