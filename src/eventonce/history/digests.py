"""Conversations, transport ids and subjects as keyed digests: a digest can be found by its value,
but does not reveal it. The beginning of a digest says which secret made it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final, Literal

from eventonce.history.decision import (
    LONGEST_TEXT,
    SHORTEST_ID,
    Kind,
    Own,
    id_kept,
    id_pattern,
    without_ids,
)
from eventonce.rules.keys import check_secrets, hasher

MARK: Final = "#"
"""The first character of a digest."""

SECRET_BYTES: Final = 3
"""The first bytes of a digest: the digest of a fixed text under the same secret. They say which
secret made the digest, and do not reveal it; two secrets share them once in 16 million."""

VALUE_BYTES: Final = 13
"""The other bytes of a digest: enough that no two values share them."""

SECRET_DIGITS: Final = len(MARK) + 2 * SECRET_BYTES
"""Characters at the beginning of a digest that say which secret made it."""

DIGITS: Final = SECRET_DIGITS + 2 * VALUE_BYTES
"""Characters of a digest."""

DIGEST: Final = re.compile(f"{MARK}[0-9a-f]{{{DIGITS - len(MARK)}}}")

NO_DIGEST: Final = "="
"""The mark before a value that looks like a digest but is none. Without it, a sender could choose
such ids, and `forget` could never prove that a conversation is gone."""

What = Literal["id", "conversation", "subject"]


def plain(text: str) -> str:
    """Return a value as it is stored by a history without secrets."""
    return NO_DIGEST + text if DIGEST.fullmatch(text) else text


class Digests:
    """The digests under some secrets: the first one makes new digests, the others are older ones
    of a rotation."""

    def __init__(self, secrets: Sequence[bytes]) -> None:
        check_secrets(secrets)
        given = [secret for secret in secrets if secret]
        self._hashers = [hasher(VALUE_BYTES, secret) for secret in given]
        self.begins: Final = tuple(
            MARK + hasher(SECRET_BYTES, secret)(b"history secret").hex() for secret in given
        )
        """For each secret, the beginning of all its digests."""
        # The decisions about one call come within minutes: its digests are needed again.
        self._cached = lru_cache(maxsize=4096)(self._digest)

    def __bool__(self) -> bool:
        return bool(self._hashers)

    def kept(self, kind: Kind, own: Own) -> tuple[Kind, Own]:
        """Return the fields of a decision with digests instead of its id and its conversation,
        also in its reason; its type and source are without both."""
        at, reason, id_, conversation, *_ = own
        named = self._cached("id", id_), self._cached("conversation", conversation)
        if reason:
            reason = _replaced(reason, dict(zip((id_, conversation), named, strict=True)))
        return without_ids(kind, id_, conversation), (at, reason, *named, *own[4:])

    def of(self, what: What, text: str) -> str:
        """Return the digest of this value under the first secret; without secrets, the value."""
        return self._cached(what, id_kept(text)) if self else text

    def names(self, what: What, text: str) -> list[str]:
        """Return all texts that may stand for this value: the value itself (stored before there
        were secrets, or a digest that the caller copied), and its digest under each secret."""
        kept = id_kept(text)
        found = [kept]
        if plain(kept) != kept:
            found.append(plain(kept))
        if text:
            found += [self._digest(what, kept, number) for number in range(len(self._hashers))]
        return found

    def _digest(self, what: What, text: str, number: int = 0) -> str:
        if not text:
            return ""
        return self.begins[number] + self._hashers[number](f"history {what}\0{text}".encode()).hex()


def _replaced(reason: str, digests: Mapping[str, str]) -> str:
    """Return the reason with digests instead of these ids. If the reason was cut inside an id, the
    part of that id at its end is removed."""
    if len(reason) == LONGEST_TEXT:
        parts = (it[:end] for it in digests for end in range(len(it) - 1, SHORTEST_ID - 1, -1))
        reason = next((reason.removesuffix(it) for it in parts if reason.endswith(it)), reason)
    pattern = id_pattern(digests)
    return pattern.sub(lambda it: digests[it[0]], reason)[:LONGEST_TEXT] if pattern else reason


NO_DIGESTS: Final = Digests(())
