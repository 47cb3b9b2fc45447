"""Keys, scripts, and what these are given and answer: claims, settlements, verdicts and records.

Claims of one rule share their terms, so terms are sent once and a claim names them by number: a
fact is then a few bytes beside its key.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from hashlib import sha1
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from redis.crc import key_slot

from eventonce.core import ledger
from eventonce.core.ledger import Record
from eventonce.errors import ConfigError, StoreError, StoreMismatch
from eventonce.types import MAX_ORDER, Action, Claim, Settlement, SettleResult, Verdict, VerdictKind

T = TypeVar("T", Claim, Settlement)

# fmt: off
TAGS: Final = (
    "18", "4b", "0f", "a0", "d2", "5d", "95", "a1", "e6", "34", "0d", "a2", "d0", "5f", "1b", "48",
)
# fmt: on
"""Hash tags of the partitions. Their slots lie a sixteenth of the slots apart, so that any number
of equal shards up to sixteen gets an even part; more partitions would be more calls for a batch.
Two characters, so that a key with the usual prefix is 30 bytes: with one more, Redis 7 would round
it up to the next size it allocates."""

_UNESCAPED: Final = re.compile(r"[\w:.\- ]")


class Keys:
    """The keys in Redis under one prefix; the same on a single server and on a cluster."""

    def __init__(self, prefix: str) -> None:
        if not prefix or "{" in prefix or "}" in prefix:
            raise ConfigError(
                f"RedisStore: the prefix {prefix!r} must have a character, and no braces: they "
                f"say in which slot of a cluster a key lies, and records are spread over several"
            )
        self.prefix = prefix
        self.partitions = tuple(f"{prefix}:{{{tag}}}".encode() for tag in TAGS)
        self._slots = tuple(key_slot(name) for name in self.partitions)
        self._by_last_byte = self.partitions * (256 // len(TAGS))
        self.letters = f"{prefix}:{{letters}}".encode()
        self.letters_by_time = f"{prefix}:{{letters}}:places".encode()
        self.letters_slot = key_slot(self.letters)
        self.names = f"{prefix}:{{letters}}:names".encode()

    def of(self, keys: Iterable[bytes]) -> list[bytes]:
        """The names of the records of these facts and states."""
        # The first bytes are a time where the fact has one: the last ones spread.
        partitions = self._by_last_byte
        return [partitions[key[-1]] + key for key in keys]

    def slot(self, key: bytes) -> int:
        """The slot of a cluster that has this record."""
        return self._slots[partition(key)]

    def pattern(self) -> bytes:
        """A pattern that matches all records: the tag is two bytes and the key sixteen."""
        escaped = "".join(it if _UNESCAPED.match(it) else f"\\{it}" for it in self.prefix)
        return f"{escaped}:{{??}}{'?' * 16}".encode()


def partition(key: bytes) -> int:
    """The partition that a key belongs to."""
    return key[-1] % len(TAGS)


class Script(NamedTuple):
    """A script, and the name by which a server that has it knows it."""

    text: bytes
    sha: bytes


def _source(name: str) -> str:
    return Path(__file__).with_name(f"{name}.lua").read_text(encoding="utf-8")


def _script(*sources: str) -> Script:
    text = "".join(sources).encode()
    return Script(text, sha1(text, usedforsecurity=False).hexdigest().encode())


_RECORDS: Final = "".join(
    f"local {name} = {getattr(ledger, name)}\n"
    for name in ("KEPT_DIGESTS", "NEWER_WAIT_LEASES", "UNSETTLED", "LONGEST_LEASE")
) + _source("records")

_EVEN_IF_FULL: Final = "redis.pcall('GETEX', KEYS[1])\n"
"""A server at its maxmemory refuses a script's first write, and none after it: it must not stop in
the middle. GETEX counts as a write, changes nothing, and is never refused, so that what follows it
always fits; `#!lua flags=allow-oom` says the same, but not to Redis 6.2. Not for claims: a server
that is full grants no new runs, and those that it granted can be settled. A user who may not call
it is let through as far as the memory goes."""

CLAIM: Final = _script(_RECORDS, _source("claim"))
SETTLE: Final = _script(_EVEN_IF_FULL, _RECORDS, _source("settle"))
SHOW: Final = _script(_RECORDS, _source("show"))
CLEAR: Final = _script(_EVEN_IF_FULL, _RECORDS, _source("clear"))
LETTERS: Final = _script(_source("letters"))
COUNT: Final = _script(_source("count"))

LONGEST: Final = 2**46
"""Milliseconds of a lease or a window: beyond two thousand years, and small enough that an instant
so far ahead still fits the six bytes a record has for it."""

MAX_KEYS: Final = 4_096
"""Keys in one call of a script: Lua hands over no more than 8,000 values at once, and nobody
else is served while it runs, some milliseconds for this many."""


_TOO_LONG: Final = "a lease or a window is longer than two thousand years"


class Unpackable(ValueError):
    """A claim that no record could hold."""


NEWER: Final = (
    "a record is packed in a form this release cannot read: a newer eventonce wrote it. Install "
    "that one here too."
)

_HEAD: Final = struct.Struct(">QBH").pack
_CLAIM_TERMS: Final = struct.Struct(">BQQIQQ").pack
_SETTLE_TERMS: Final = struct.Struct(">BQQQQ").pack
_VERSION: Final = struct.Struct(">qq").pack
_SIZE: Final = struct.Struct(">I").pack

_STATE, _SLIDING, _REDRIVE, _PEEK, _ALONE = 1, 2, 4, 8, 16
_SETTLED_STATE: Final = 128
_ACTIONS: Final[Mapping[Action, int]] = {
    "complete": 1,
    "release": 2,
    "bury": 3,
    "extend": 4,
    "return": 5,
}

_VERDICTS: Final[Mapping[bytes, VerdictKind]] = {
    b"run": "run",
    b"duplicate": "duplicate",
    b"stale": "stale",
    b"unchanged": "unchanged",
    b"busy": "busy",
    b"dead": "dead",
    b"conflict": "conflict",
}
_SAME_ID: Final[Mapping[int, bool | None]] = {-1: None, 0: False, 1: True}
_COPIES: Final = {
    ord("c"): Verdict("duplicate"),
    ord("p"): Verdict("duplicate", same_id=False),
    ord("d"): Verdict("duplicate", same_id=True),
}
_FIRST_RUN: Final = ord("r")
_MISMATCH: Final = ord("m")
_KEPT: Final[Mapping[int, SettleResult]] = {
    ord("k"): "kept",
    ord("f"): "fenced",
    ord("u"): "unknown",
}


@cache
def _entry(by: int, digest: int) -> Callable[..., bytes]:
    return struct.Struct(f">HB{by}sB{digest}s").pack


@cache
def _answered_entry(by: int, digest: int) -> Callable[..., bytes]:
    return struct.Struct(f">HBB{by}sB{digest}s").pack


def pack_show() -> bytes:
    """The argument of show.lua and of clear.lua."""
    return _HEAD(0, False, 0)


def pack_claims(claims: Sequence[Claim], now: int | None, *, waiting: bool) -> bytes:
    """The argument of claim.lua."""
    return _packed(claims, now, waiting, _shared_by_claims, _claim_terms, _claim_entry)


def pack_settlements(settlements: Sequence[Settlement], now: int | None, *, waiting: bool) -> bytes:
    """The argument of settle.lua."""
    return _packed(
        settlements, now, waiting, _shared_by_settlements, _settlement_terms, _settlement_entry
    )


def _packed(
    asked: Sequence[T],
    now: int | None,
    waiting: bool,  # noqa: FBT001  by place, for speed
    shared: Callable[[T], object],
    pack_terms: Callable[[T], bytes],
    pack_entry: Callable[[int, T], bytes],
) -> bytes:
    try:
        if len(asked) == 1:
            return _HEAD(now or 0, waiting, 1) + pack_terms(asked[0]) + pack_entry(1, asked[0])
        numbers: dict[object, int] = {}
        terms: list[bytes] = [b""]
        entries: list[bytes] = []
        for one in asked:
            number = numbers.get(key := shared(one))
            if number is None:
                number = numbers[key] = len(terms)
                terms.append(pack_terms(one))
            entries.append(pack_entry(number, one))
        terms[0] = _HEAD(now or 0, waiting, len(numbers))
    except struct.error as error:
        raise Unpackable(str(error)) from error
    return b"".join(terms + entries)


_claim_fields: Final = attrgetter(
    "nonce",
    "lease",
    "remember",
    "attempts",
    "sliding",
    "redrive",
    "peek",
    "alone",
    "unchanged_within",
)
_settlement_fields: Final = attrgetter(
    "token", "action", "claim.nonce", "claim.lease", "claim.remember"
)


def _shared_by_claims(claim: Claim) -> object:
    return _claim_fields(claim), claim.order is None


def _shared_by_settlements(settlement: Settlement) -> object:
    return _settlement_fields(settlement), settlement.claim.order is None


def _claim_entry(number: int, claim: Claim) -> bytes:
    by, digest = claim.by, claim.digest
    entry = _entry(len(by), len(digest))(number, len(by), by, len(digest), digest)
    return entry if claim.order is None else entry + _version(claim.order, claim.at)


def _settlement_entry(number: int, settlement: Settlement) -> bytes:
    claim, result = settlement.claim, settlement.result
    by, digest = claim.by, claim.digest
    pack = _answered_entry(len(by), len(digest))
    entry = pack(number, result is not None, len(by), by, len(digest), digest)
    if result is not None:
        entry += _SIZE(len(result)) + result
    return entry if claim.order is None else entry + _version(claim.order, claim.at)


def _claim_terms(claim: Claim) -> bytes:
    flags = 0 if claim.order is None else _STATE
    if claim.sliding:
        flags += _SLIDING
    if claim.redrive:
        flags += _REDRIVE
    if claim.peek:
        flags += _PEEK
    if claim.alone:
        flags += _ALONE
    within = claim.unchanged_within
    if within > LONGEST:
        raise Unpackable(_TOO_LONG)
    return _CLAIM_TERMS(flags, *_checked(claim), claim.attempts, claim.nonce, within)


def _settlement_terms(settlement: Settlement) -> bytes:
    claim = settlement.claim
    flags = _ACTIONS[settlement.action] + (0 if claim.order is None else _SETTLED_STATE)
    return _SETTLE_TERMS(flags, *_checked(claim), claim.nonce, settlement.token)


def _checked(claim: Claim) -> tuple[int, int]:
    """The lease and the window of a claim that a record can hold."""
    lease, remember = claim.lease, claim.remember
    if not 0 <= claim.nonce <= MAX_ORDER:
        raise Unpackable("a nonce lies between 0 and 2^53")
    if lease > LONGEST or remember > LONGEST:
        raise Unpackable(_TOO_LONG)
    return lease, remember


def _version(order: int, at: int) -> bytes:
    if max(order, -order, at, -at) > MAX_ORDER:
        raise Unpackable("an order or an instant lies beyond 2^53, where Lua would round it")
    return _VERSION(order, at)


def verdicts(claims: Sequence[Claim], reply: Any) -> list[Verdict]:
    """The answer of claim.lua."""
    if isinstance(reply, int):
        now, letter = divmod(reply, 256)
        copy = _COPIES.get(letter)
        return [copy or Verdict("run", now * 1000, 1, claims[0].lease)]
    letters, judged = (reply, iter(())) if isinstance(reply, bytes) else (reply[0], iter(reply[1]))
    now = int.from_bytes(letters[:6], "big")
    answers: list[Verdict] = []
    first_runs: dict[int, Verdict] = {}
    for claim, letter in zip(claims, letters[6:], strict=True):
        if letter == _FIRST_RUN:
            lease = claim.lease
            verdict = first_runs.get(lease)
            if verdict is None:
                verdict = first_runs[lease] = Verdict("run", now * 1000, 1, lease)
        else:
            verdict = _COPIES.get(letter) or _judged(next(judged))
        answers.append(verdict)
    return answers


def _judged(fields: Sequence[Any]) -> Verdict:
    kind = _VERDICTS.get(fields[0])
    if kind is None:
        return Verdict("error", error=StoreMismatch(NEWER))
    _, token, attempt, wait, same_id, order, result, alone, spared = fields
    return Verdict(
        kind,
        token,
        attempt,
        wait,
        _SAME_ID[same_id],
        order,
        result,
        alone=bool(alone),
        spared=spared,
    )


def unpackable(claim: Claim) -> Verdict | None:
    """The verdict on a claim that cannot be packed, None if it can."""
    try:
        pack_claims([claim], None, waiting=False)
    except Unpackable as error:
        return Verdict("error", error=StoreError(f"Redis cannot hold this claim: {error}"))
    return None


def kept(letters: bytes) -> list[SettleResult]:
    """The answer of settle.lua."""
    if _MISMATCH in letters:
        raise StoreMismatch(NEWER)
    return [_KEPT[letter] for letter in letters]


def cleared(count: int) -> int:
    """The answer of clear.lua."""
    if count < 0:
        raise StoreMismatch(NEWER)
    return count


def record(fields: Any) -> Record:
    """The answer of show.lua."""
    if not isinstance(fields, list):
        raise StoreMismatch(NEWER)
    named = dict(zip(Record.__struct_fields__, fields, strict=True))
    return Record(
        **{
            **named,
            "done": bool(named["done"]),
            "dirty": bool(named["dirty"]),
            "alone": bool(named["alone"]),
            "digests": tuple(named["digests"]),
            "dead": tuple(named["dead"]),
        }
    )
