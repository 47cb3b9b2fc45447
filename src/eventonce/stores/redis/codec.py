"""Claims and settlements as the scripts read them, and their answers as the law gives them.

Claims of one rule share their terms, so terms are sent once and a claim names them by number: a
fact is then a few bytes beside its key.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Final

from eventonce.core.ledger import Record
from eventonce.errors import StoreError, StoreMismatch
from eventonce.types import MAX_ORDER, Action, Claim, Settlement, SettleResult, Verdict, VerdictKind

LONGEST: Final = 2**46
"""Milliseconds of a lease or a window: beyond two thousand years, and small enough that an instant
so far ahead still fits the six bytes a record has for it."""

MOST: Final = 4_096
"""Claims in one call of a script: Lua hands over no more than 8,000 values at once, and nobody
else is served while it runs, some milliseconds for this many."""


class Unpackable(ValueError):
    """What no record could hold."""


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

_KINDS: Final[Mapping[bytes, VerdictKind]] = {
    b"run": "run",
    b"duplicate": "duplicate",
    b"stale": "stale",
    b"unchanged": "unchanged",
    b"busy": "busy",
    b"dead": "dead",
    b"conflict": "conflict",
}
_REDELIVERY: Final[Mapping[int, bool | None]] = {-1: None, 0: False, 1: True}
_COPIES: Final = {
    ord("c"): Verdict("duplicate"),
    ord("p"): Verdict("duplicate", redelivery=False),
    ord("d"): Verdict("duplicate", redelivery=True),
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


def head(now: int | None, *, waiting: bool, terms: int = 0) -> bytes:
    """What every script that reads records is given first."""
    return _HEAD(now or 0, waiting, terms)


def pack_claims(claims: Sequence[Claim], now: int | None, *, waiting: bool) -> bytes:
    """What claim.lua is given."""
    numbers: dict[tuple[object, ...], int] = {}
    terms: list[bytes] = [b""]
    entries: list[bytes] = []
    try:
        for claim in claims:
            order = claim.order
            shared = (
                claim.nonce,
                claim.lease,
                claim.remember,
                claim.attempts,
                claim.sliding,
                claim.redrive,
                claim.peek,
                claim.alone,
                order is None,
                claim.unchanged_within,
            )
            number = numbers.get(shared)
            if number is None:
                number = numbers[shared] = len(terms)
                terms.append(_claim_terms(claim))
            by, digest = claim.by, claim.digest
            entries.append(_entry(len(by), len(digest))(number, len(by), by, len(digest), digest))
            if order is not None:
                entries.append(_version(order, claim.at))
    except struct.error as error:
        raise Unpackable(str(error)) from error
    terms[0] = head(now, waiting=waiting, terms=len(numbers))
    return b"".join(terms + entries)


def pack_settlements(settlements: Sequence[Settlement], now: int | None, *, waiting: bool) -> bytes:
    """What settle.lua is given."""
    numbers: dict[tuple[object, ...], int] = {}
    terms: list[bytes] = [b""]
    entries: list[bytes] = []
    try:
        for settlement in settlements:
            claim = settlement.claim
            order = claim.order
            shared = (
                settlement.token,
                settlement.action,
                claim.nonce,
                claim.lease,
                claim.remember,
                order is None,
            )
            number = numbers.get(shared)
            if number is None:
                number = numbers[shared] = len(terms)
                terms.append(_settlement_terms(settlement))
            by, digest, result = claim.by, claim.digest, settlement.result
            entry = _answered_entry(len(by), len(digest))
            answered = result is not None
            entries.append(entry(number, answered, len(by), by, len(digest), digest))
            if result is not None:
                entries += (_SIZE(len(result)), result)
            if order is not None:
                entries.append(_version(order, claim.at))
    except struct.error as error:
        raise Unpackable(str(error)) from error
    terms[0] = head(now, waiting=waiting, terms=len(numbers))
    return b"".join(terms + entries)


def _claim_terms(claim: Claim) -> bytes:
    _check_terms(claim)
    return _CLAIM_TERMS(
        (claim.order is not None) * _STATE
        + claim.sliding * _SLIDING
        + claim.redrive * _REDRIVE
        + claim.peek * _PEEK
        + claim.alone * _ALONE,
        claim.lease,
        claim.remember,
        claim.attempts,
        claim.nonce,
        claim.unchanged_within,
    )


def _settlement_terms(settlement: Settlement) -> bytes:
    claim = settlement.claim
    _check_terms(claim)
    return _SETTLE_TERMS(
        (claim.order is not None) * _SETTLED_STATE + _ACTIONS[settlement.action],
        claim.lease,
        claim.remember,
        claim.nonce,
        settlement.token,
    )


def _check_terms(claim: Claim) -> None:
    if not 0 <= claim.nonce <= MAX_ORDER:
        raise Unpackable("a nonce lies between 0 and 2^53")
    if max(claim.lease, claim.remember, claim.unchanged_within) > LONGEST:
        raise Unpackable("a lease or a window is longer than two thousand years")


def _version(order: int, at: int) -> bytes:
    if max(order, -order, at, -at) > MAX_ORDER:
        raise Unpackable("an order or an instant lies beyond 2^53, where Lua would round it")
    return _VERSION(order, at)


def verdicts(claims: Sequence[Claim], reply: Any) -> list[Verdict]:
    """What claim.lua answered."""
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
    kind = _KINDS.get(fields[0])
    if kind is None:
        return Verdict("error", error=StoreMismatch(NEWER))
    _, token, attempt, wait, redelivery, order, result, alone, spared = fields
    return Verdict(
        kind,
        token,
        attempt,
        wait,
        _REDELIVERY[redelivery],
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
    """What settle.lua answered."""
    if _MISMATCH in letters:
        raise StoreMismatch(NEWER)
    return [_KEPT[letter] for letter in letters]


def record(fields: Any) -> Record:
    """What show.lua answered."""
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
