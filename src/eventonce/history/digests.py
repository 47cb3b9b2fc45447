"""Conversations and transport ids as keyed digests: each is found by its value, and does not tell
it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, Literal

from eventonce.history.decision import Own, storable
from eventonce.rules.keys import check_secrets, hasher

MARK: Final = "#"
"""The beginning of a digest."""

BYTES: Final = 16
"""Of a digest: two values never share one."""

DIGEST: Final = re.compile(f"{MARK}[0-9a-f]{{{2 * BYTES}}}")

What = Literal["id", "conversation"]


class Digests:
    """The digests of some secrets: the first is in use, the others are those of a rotation."""

    def __init__(self, secrets: Sequence[bytes]) -> None:
        check_secrets(secrets)
        self._hashers = [hasher(BYTES, secret) for secret in secrets if secret]
        # The decisions about one call come within minutes of each other.
        self._cached = lru_cache(maxsize=4096)(self._digest)

    def __bool__(self) -> bool:
        return bool(self._hashers)

    def kept(self, own: Own) -> Own:
        """The fields of a decision with digests in place of its id and its conversation."""
        at, reason, id_, conversation, *_ = own
        named = self._cached("id", id_), self._cached("conversation", conversation)
        return (at, reason, *named, *own[4:])

    def names(self, what: What, text: str) -> list[str]:
        """All that may stand for this value: itself, from before the secrets or as a digest that
        was read somewhere, and its digest by each secret."""
        found = [storable(text)]
        if text:
            found += [self._digest(what, found[0], number) for number in range(len(self._hashers))]
        return found

    def _digest(self, what: What, text: str, number: int = 0) -> str:
        if not text:
            return ""
        return MARK + self._hashers[number](f"history {what}\0{text}".encode()).hex()


NO_DIGESTS: Final = Digests(())
