"""Conversations, transport ids and subjects as keyed digests: each is found by its value, and does
not tell it. The beginning of a digest tells under which secret it was made."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final, Literal

from eventonce.history.decision import LONGEST, SHORT, Kind, Own, id_kept, id_pattern, without_ids
from eventonce.rules.keys import check_secrets, hasher

MARK: Final = "#"
"""The beginning of a digest."""

SECRET_BYTES: Final = 3
"""Of a digest, its first: those of a fixed text under the same secret. They tell a digest that was
made under another secret, and nothing of the secret; a wrong one passes once in 16 million."""

VALUE_BYTES: Final = 13
"""Of a digest, the others: two values never share them."""

SECRET_DIGITS: Final = len(MARK) + 2 * SECRET_BYTES
"""Characters of a digest that tell its secret."""

DIGITS: Final = SECRET_DIGITS + 2 * VALUE_BYTES
"""Characters of a digest."""

DIGEST: Final = re.compile(f"{MARK}[0-9a-f]{{{DIGITS - len(MARK)}}}")

NO_DIGEST: Final = "="
"""The mark before a value of an event that looks like a digest and is none: a sender could make
every proof of `forget` impossible by such an id."""

What = Literal["id", "conversation", "subject"]


def plain(text: str) -> str:
    """A value as it is kept where there are no secrets."""
    return NO_DIGEST + text if DIGEST.fullmatch(text) else text


class Digests:
    """The digests of some secrets: the first is in use, the others are those of a rotation."""

    def __init__(self, secrets: Sequence[bytes]) -> None:
        check_secrets(secrets)
        given = [secret for secret in secrets if secret]
        self._hashers = [hasher(VALUE_BYTES, secret) for secret in given]
        self.begins: Final = tuple(
            MARK + hasher(SECRET_BYTES, secret)(b"history secret").hex() for secret in given
        )
        """The beginnings of all digests under each of the secrets."""
        # The decisions about one call come within minutes of each other.
        self._cached = lru_cache(maxsize=4096)(self._digest)

    def __bool__(self) -> bool:
        return bool(self._hashers)

    def kept(self, kind: Kind, own: Own) -> tuple[Kind, Own]:
        """The fields of a decision with digests in place of its id and its conversation, also in
        its reason; in its type and source they are left out."""
        at, reason, id_, conversation, *_ = own
        named = self._cached("id", id_), self._cached("conversation", conversation)
        if reason:
            reason = _replaced(reason, dict(zip((id_, conversation), named, strict=True)))
        return without_ids(kind, id_, conversation), (at, reason, *named, *own[4:])

    def of(self, what: What, text: str) -> str:
        """The digest of this value under the secret in use; without secrets, the value."""
        return self._cached(what, id_kept(text)) if self else text

    def names(self, what: What, text: str) -> list[str]:
        """All that may stand for this value: itself, from before the secrets or as a digest that
        was read somewhere, and its digest by each secret."""
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
    """The reason with digests in place of these ids; where it was cut in the midst of one, the
    beginning of that is left out."""
    if len(reason) == LONGEST:
        parts = (it[:end] for it in digests for end in range(len(it) - 1, SHORT - 1, -1))
        reason = next((reason.removesuffix(it) for it in parts if reason.endswith(it)), reason)
    pattern = id_pattern(digests)
    return pattern.sub(lambda it: digests[it[0]], reason)[:LONGEST] if pattern else reason


NO_DIGESTS: Final = Digests(())
