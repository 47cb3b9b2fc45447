"""Keys, claims, dead letters and instants for the cases."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any, Final

from msgspec.structs import replace

from eventonce.clock import wall_clock
from eventonce.types import Claim, Letter, Settlement, Verdict

SECOND: Final = 1_000
MINUTE: Final = 60 * SECOND
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR

EPOCH: Final = max(2_000_000_000_000, wall_clock() + 7 * DAY)
"""The start of the suite's clock: in 2033, or later a week from now.

Always ahead of the real time, because a server that expires records by its own clock would
otherwise delete records that are live by the suite's clock.
"""

EVERY_BYTE: Final = bytes(range(256))


def new_keys(count: int) -> tuple[bytes, ...]:
    """Return keys that nobody has used, so that no store needs to be emptied first."""
    return tuple(secrets.token_bytes(16) for _ in range(count))


def new_nonce() -> int:
    """Return a nonce that is unique in all processes."""
    return 1 + secrets.randbits(52)


def fact(key: bytes, **terms: Any) -> Claim:
    """Return a new claim of a fact; the terms are fields of `Claim`."""
    return replace(Claim(key, new_nonce(), MINUTE, 10 * DAY, 5), **terms)


def version(key: bytes, order: int, **terms: Any) -> Claim:
    """Return a new claim of one version of a subject."""
    return fact(key, order=order, **terms)


def settlements(
    claims: Sequence[Claim],
    runs: Sequence[Verdict],
    results: Iterable[bytes | None] = repeat(None),
) -> list[Settlement]:
    """Return the completions of these runs, each with its result."""
    assert len(claims) == len(runs)
    return [
        Settlement(claim, run.token, "complete", result)
        for claim, run, result in zip(claims, runs, results, strict=False)
    ]


def new_consumer() -> str:
    """Return a name that nobody has used."""
    return f"consumer-{secrets.token_hex(8)}"


def new_letters(count: int) -> list[Letter]:
    """Return dead letters of one new consumer, the oldest first."""
    consumer = new_consumer()
    return [
        Letter(secrets.token_hex(8), consumer, "dead", "why", "rule", key, b"{}", EPOCH + place)
        for place, key in enumerate(new_keys(count))
    ]
