"""Keys, scripts, and the arguments and answers of the scripts as bytes.

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
from eventonce.errors import ConfigError, newer_record
from eventonce.types import MAX_ORDER, Action, Claim, Settlement, SettleResult, Verdict, VerdictKind

T = TypeVar("T", Claim, Settlement)

# fmt: off
PARTITION_TAGS: Final = (
    "18", "4b", "0f", "a0", "d2", "5d", "95", "a1", "e6", "34", "0d", "a2", "d0", "5f", "1b", "48",
)
# fmt: on
"""The hash tags of the partitions. Their slots are a sixteenth of all slots apart, so that up to
sixteen equal shards get equal parts; more partitions would need more calls for a batch. With two
characters, a key with the usual prefix has 30 bytes: for one byte more, Redis 7 would allocate the
next size."""

_UNESCAPED: Final = re.compile(r"[\w:.\- ]")


class Keys:
    """The keys in Redis under one prefix; the same on a single server and on a cluster."""

    def __init__(self, prefix: str) -> None:
        if not prefix or "{" in prefix or "}" in prefix:
            raise ConfigError(
                f"RedisStore: the prefix {prefix!r} must not be empty, and must have no braces: "
                f"they set the slot of a key, and records are spread over several slots"
            )
        self.prefix = prefix
        self.partitions = tuple(f"{prefix}:{{{tag}}}".encode() for tag in PARTITION_TAGS)
        self._slots = tuple(key_slot(name) for name in self.partitions)
        self._by_last_byte = self.partitions * (256 // len(PARTITION_TAGS))
        self.letters = f"{prefix}:{{letters}}".encode()
        self.letters_by_time = f"{prefix}:{{letters}}:places".encode()
        self.letters_slot = key_slot(self.letters)
        self.names = f"{prefix}:{{letters}}:names".encode()

    def of(self, keys: Iterable[bytes]) -> list[bytes]:
        """Return the names of the records of these keys."""
        # The first bytes are a time if the fact has one: only the last byte spreads the keys.
        partitions = self._by_last_byte
        return [partitions[key[-1]] + key for key in keys]

    def slot(self, key: bytes) -> int:
        """Return the slot of a cluster that has this record."""
        return self._slots[partition(key)]

    def pattern(self) -> bytes:
        """Return a pattern that matches all records: the tag is two bytes and the key sixteen."""
        escaped = "".join(it if _UNESCAPED.match(it) else f"\\{it}" for it in self.prefix)
        return f"{escaped}:{{??}}{'?' * 16}".encode()


def partition(key: bytes) -> int:
    """Return the partition that a key belongs to."""
    return key[-1] % len(PARTITION_TAGS)


class Script(NamedTuple):
    """A script, and its SHA-1, by which a server knows it."""

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
"""A server at its maxmemory refuses the first write of a script, but no later one, because a script
must not stop in the middle. GETEX counts as a write, changes nothing, and is never refused, so that
the writes after it pass; `#!lua flags=allow-oom` has the same effect, but not on Redis 6.2. Not for
claims: a full server grants no new runs, but settles granted ones. If the user may not call GETEX,
the error is ignored, and the writes need free memory."""

CLAIM: Final = _script(_RECORDS, _source("claim"))
SETTLE: Final = _script(_EVEN_IF_FULL, _RECORDS, _source("settle"))
SHOW: Final = _script(_RECORDS, _source("show"))
CLEAR: Final = _script(_EVEN_IF_FULL, _RECORDS, _source("clear"))
LETTERS: Final = _script(_source("letters"))
COUNT: Final = _script(_source("count"))

LONGEST_TIME: Final = 2**46
"""The most milliseconds of a lease or a window: over two thousand years, and small enough that an
instant so far ahead still fits into the six bytes that a record has for it."""

MAX_KEYS: Final = 4_096
"""The most keys in one call of a script: Lua passes no more than 8,000 values at once, and the
server answers nobody else while the script runs, some milliseconds for this many keys."""


_TOO_LONG: Final = "a lease or a window is longer than two thousand years"


class Unpackable(ValueError):
    """A claim that does not fit into a record."""


_HEAD: Final = struct.Struct(">QBH").pack
NOTHING_ASKED: Final = _HEAD(0, False, 0)
"""The argument of show.lua and of clear.lua."""

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


def pack_claims(claims: Sequence[Claim], now: int | None, *, waiting: bool) -> bytes:
    """Return the argument of claim.lua."""
    return _packed(claims, now, waiting, _shared_by_claims, _claim_terms, _claim_entry)


def pack_settlements(settlements: Sequence[Settlement], now: int | None, *, waiting: bool) -> bytes:
    """Return the argument of settle.lua."""
    return _packed(
        settlements, now, waiting, _shared_by_settlements, _settlement_terms, _settlement_entry
    )


def _packed(
    asked: Sequence[T],
    now: int | None,
    waiting: bool,  # noqa: FBT001  positional, for speed
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
    if within > LONGEST_TIME:
        raise Unpackable(_TOO_LONG)
    return _CLAIM_TERMS(flags, *_checked(claim), claim.attempts, claim.nonce, within)


def _settlement_terms(settlement: Settlement) -> bytes:
    claim = settlement.claim
    flags = _ACTIONS[settlement.action] + (0 if claim.order is None else _SETTLED_STATE)
    return _SETTLE_TERMS(flags, *_checked(claim), claim.nonce, settlement.token)


def _checked(claim: Claim) -> tuple[int, int]:
    """Return the lease and the window of a claim, if they fit into a record."""
    lease, remember = claim.lease, claim.remember
    if not 0 <= claim.nonce <= MAX_ORDER:
        raise Unpackable("a nonce lies between 0 and 2^53")
    if lease > LONGEST_TIME or remember > LONGEST_TIME:
        raise Unpackable(_TOO_LONG)
    return lease, remember


def _version(order: int, at: int) -> bytes:
    if max(order, -order, at, -at) > MAX_ORDER:
        raise Unpackable("an order or an instant lies beyond 2^53, where Lua would round it")
    return _VERSION(order, at)


def verdicts(claims: Sequence[Claim], reply: Any) -> list[Verdict]:
    """Return the verdicts from the answer of claim.lua."""
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
        return Verdict("error", error=newer_record())
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


def kept(letters: bytes) -> list[SettleResult]:
    """Return the results from the answer of settle.lua."""
    if _MISMATCH in letters:
        raise newer_record()
    return [_KEPT[letter] for letter in letters]


def cleared(count: int) -> int:
    """Return the count from the answer of clear.lua."""
    if count < 0:
        raise newer_record()
    return count


def record(fields: Any) -> Record:
    """Return the record from the answer of show.lua."""
    if not isinstance(fields, list):
        raise newer_record()
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
