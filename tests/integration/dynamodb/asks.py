"""Claims as these tests make them."""

from __future__ import annotations

import secrets

from eventonce.types import Claim, Settlement, Verdict

MINUTE = 60_000
DAY = 86_400_000


def fact(key: bytes | None = None, *, lease: int = MINUTE, remember: int = DAY) -> Claim:
    """A new claim of a fact, with a new key if none is given."""
    return Claim(
        key or secrets.token_bytes(16), 1 + secrets.randbits(52), lease, remember, 3, by=b"here"
    )


def version(key: bytes, order: int) -> Claim:
    """A new claim of a version of a subject."""
    return Claim(key, 1 + secrets.randbits(52), MINUTE, DAY, 3, order=order)


def facts(count: int) -> list[Claim]:
    """Claims of new facts."""
    return [fact() for _ in range(count)]


def completed(claims: list[Claim], verdicts: list[Verdict]) -> list[Settlement]:
    """The completions of these runs."""
    return [
        Settlement(claim, verdict.token, "complete")
        for claim, verdict in zip(claims, verdicts, strict=True)
    ]


def copies(claims: list[Claim]) -> list[Claim]:
    """Claims of the same facts by other callers."""
    return [fact(claim.key) for claim in claims]
