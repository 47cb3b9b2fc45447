"""Keys and digests: any list of JSON values as bytes that no other list has, and their hashes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite
from typing import Any, Final

import msgspec
from msgspec.msgpack import Ext

from eventonce.errors import ConfigError

try:
    # The very function that hashlib has: but hashlib loads OpenSSL first, at each cold start.
    from _blake2 import blake2b as blake2b  # noqa: PLC0414  `claims` has it from here
except ImportError:
    from hashlib import blake2b as blake2b  # noqa: PLC0414  likewise

FORMAT: Final = 1
"""Stands first in every key: a later format can never meet a key of this one."""

ABSENT: Final = Ext(0, b"")
"""An optional part that was not there: no JSON value encodes to the same bytes."""


NAMELESS: Final = frozenset(("", "null", "undefined"))
"""The texts that JavaScript writes where it has no value: no id and no number is one of them."""
LONGEST_NAMELESS: Final = 9
"""Characters; a longer text need not be looked up."""


def is_empty(value: Any) -> bool:
    """Whether a value names nothing: absent, null, a text of white space, or one of NAMELESS.

    A hole by another name: a key with an empty part is shared by all events that have it so.
    """
    if type(value) is str:
        return value in NAMELESS or value.isspace()
    return value is ABSENT or value is None


_BIG: Final = 1
"""The MessagePack extension of an integer beyond 64 bits, written in decimal digits."""

_BEYOND: Final = 2
"""The code of a number beyond what Python reads, as it was written."""

MIN_SECRET: Final = 16
"""Bytes; a shorter secret could be guessed together with what it hides."""

Hasher = Callable[[bytes], bytes]

packed: Final = msgspec.msgpack.Encoder(order="sorted").encode
"""As `encode`, for values without integers beyond 64 bits; OverflowError for others."""


def encode(value: Any) -> bytes:
    """The value as MessagePack: typed and length-prefixed, so that no two lists share it.

    Object keys are sorted; an integral float is the integer it equals (`number` sees to it).
    """
    try:
        return packed(value)
    except OverflowError:
        return packed(_exact(value))


def _exact(value: Any) -> Any:
    """The same value with its integers beyond 64 bits as extensions."""
    if isinstance(value, dict):
        return dict(zip(value, map(_exact, value.values()), strict=True))
    if isinstance(value, (list, tuple)):
        return list(map(_exact, value))
    if type(value) is int and not -(2**63) <= value < 2**64:
        return Ext(_BIG, b"%d" % value)
    return value


def number(text: str) -> int | float | Ext:
    """A JSON number with a fraction or exponent, by its value: `1.0` and `1e0` are the integer 1.

    Relays in JavaScript write 1.0 as 1, so telling them apart would let a copy through; that two
    facts differ in nothing else does not happen.
    """
    value = float(text)
    if not isfinite(value):
        return Ext(_BEYOND, text.encode())
    return int(value) if value.is_integer() else value


def _integer(text: str) -> int | Ext:
    try:
        return int(text)
    except ValueError:
        # Python refuses thousands of digits, which take it too long.
        return Ext(_BEYOND, text.encode())


_decode: Final = msgspec.json.Decoder(float_hook=number).decode


def decode_exact(raw: bytes | msgspec.Raw) -> Any:
    """JSON to values as `encode` wants them: integers exact, integral floats as integers."""
    try:
        return _decode(raw)
    except msgspec.ValidationError:
        # All that is not valid here is an integer too long for it.
        import json  # noqa: PLC0415  slow to import, and next to no event needs it

        return json.loads(bytes(raw), parse_int=_integer, parse_float=number)


def key_of(secret: bytes) -> bytes:
    """The secret as BLAKE2b takes it, which is up to 64 bytes; empty for none."""
    if secret and len(secret) < MIN_SECRET:
        raise ConfigError(
            f"secrets: a secret needs at least {MIN_SECRET} bytes, this one has {len(secret)}"
        )
    return secret if len(secret) <= blake2b.MAX_KEY_SIZE else blake2b(secret).digest()


def check_secrets(secrets: object) -> None:
    """Refuse secrets that key nothing. An older one may be empty: it finds the records from before
    the first secret."""
    if isinstance(secrets, str | bytes) or not isinstance(secrets, Sequence):
        raise ConfigError("secrets: expected a list of bytes, such as [b'…'], the one in use first")
    for secret in secrets:
        if not isinstance(secret, bytes):
            raise ConfigError(f"secrets: expected bytes, not {type(secret).__name__}")
        key_of(secret)
    if secrets and not secrets[0]:
        raise ConfigError("secrets: the first is empty, and no digest would be keyed by it")


def hasher(size: int, secret: bytes = b"") -> Hasher:
    """A function from bytes to their digest of this size, keyed if there is a secret."""
    # Copying a state is quicker than making one.
    copy = blake2b(digest_size=size, key=key_of(secret)).copy

    def digest(content: bytes) -> bytes:
        state = copy()
        state.update(content)
        return state.digest()

    return digest


content_hash: Final = hasher(16)
"""The sixteen bytes that `hash(path)` puts into a key; the key's own digest then covers them."""

EMPTY_HASHES: Final = frozenset(map(content_hash, map(encode, ({}, [], None))))
"""The hashes of content that says nothing: a key of nothing else is shared by unlike events."""
