"""Names in Redis: which key a record has, and in which slots of a cluster the records lie."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from redis.crc import key_slot

from eventonce.errors import ConfigError

# fmt: off
TAGS: Final = (
    "18", "4b", "0f", "a0", "d2", "5d", "95", "a1", "e6", "34", "0d", "a2", "d0", "5f", "1b", "48",
)
# fmt: on
"""Hash tags of the partitions. Their slots lie a sixteenth of the slots apart, so that any number
of equal shards up to sixteen gets an even part; more partitions would be more calls for a batch.
Two characters, so that a name with the usual prefix is 30 bytes: with one more, Redis 7 would round
it up to the next size it allocates."""

_UNESCAPED: Final = re.compile(r"[\w:.\- ]")


class Names:
    """The names under one prefix; the same on a single server and on a cluster."""

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
        self.places = f"{prefix}:{{letters}}:places".encode()
        self.letters_slot = key_slot(self.letters)

    def of(self, keys: Iterable[bytes]) -> list[bytes]:
        """The names of these keys' records."""
        # The first bytes are a time where the fact has one: the last ones spread.
        partitions = self._by_last_byte
        return [partitions[key[-1]] + key for key in keys]

    def slot(self, key: bytes) -> int:
        """Where in a cluster this key's record lies."""
        return self._slots[partition(key)]

    def pattern(self) -> bytes:
        """What SCAN finds all records by: the tag is two bytes and the key sixteen."""
        escaped = "".join(it if _UNESCAPED.match(it) else f"\\{it}" for it in self.prefix)
        return f"{escaped}:{{??}}{'?' * 16}".encode()


def partition(key: bytes) -> int:
    """Which of the partitions a key belongs to."""
    return key[-1] % len(TAGS)
