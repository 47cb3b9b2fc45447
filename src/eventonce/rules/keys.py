"""Keys and digests: an encoding that is different for every list of JSON values, and its hashes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite
from typing import Any, Final

import msgspec
from msgspec.msgpack import Ext

from eventonce.errors import ConfigError

try:
    # The same function as in hashlib, but hashlib loads OpenSSL first, at each cold start.
    from _blake2 import blake2b as blake2b  # noqa: PLC0414  `claims` imports it from here
except ImportError:
    from hashlib import blake2b as blake2b  # noqa: PLC0414  likewise

FORMAT: Final = 1
"""The first value of every key: a key of a later format can never equal one of this format."""

ABSENT: Final = Ext(0, b"")
"""The value of an optional part that is absent: no JSON value encodes to the same bytes."""


NAMELESS: Final = frozenset(("", "null", "undefined"))
"""The texts that JavaScript writes for a missing value: no id and no number is one of them."""
LONGEST_NAMELESS: Final = 9
"""The most characters of a text in NAMELESS."""


def is_empty(value: Any) -> bool:
    """Whether a value is empty: absent, null, a text of white space, or one of NAMELESS.

    An empty part is a missing part: all events with the same empty part would share a key.
    """
    if type(value) is str:
        return value in NAMELESS or value.isspace()
    return value is ABSENT or value is None


_BIG: Final = 1
"""The MessagePack extension of an integer beyond 64 bits, written in decimal digits."""

_BEYOND: Final = 2
"""The code of a number that Python cannot read, as it was written."""

MIN_SECRET: Final = 16
"""The fewest bytes of a secret: a shorter one could be guessed."""

Hasher = Callable[[bytes], bytes]

packed: Final = msgspec.msgpack.Encoder(order="sorted").encode
"""As `encode`, for values without integers beyond 64 bits; OverflowError for others."""


def encode(value: Any) -> bytes:
    """Encode the value as MessagePack: typed and length-prefixed, so that no two lists are equal.

    Object keys are sorted; `number` has made an integer of an integral float.
    """
    try:
        return packed(value)
    except OverflowError:
        return packed(_exact(value))


def _exact(value: Any) -> Any:
    """Return the same value with its integers beyond 64 bits as extensions."""
    if isinstance(value, dict):
        return dict(zip(value, map(_exact, value.values()), strict=True))
    if isinstance(value, (list, tuple)):
        return list(map(_exact, value))
    if type(value) is int and not -(2**63) <= value < 2**64:
        return Ext(_BIG, b"%d" % value)
    return value


def number(text: str) -> int | float | Ext:
    """Return a JSON number with a fraction or exponent by its value: `1.0` and `1e0` are 1.

    Relays in JavaScript write 1.0 as 1: if the two were different, a copy would run. Two different
    facts differ in more than that.
    """
    value = float(text)
    if not isfinite(value):
        return Ext(_BEYOND, text.encode())
    return int(value) if value.is_integer() else value


def _integer(text: str) -> int | Ext:
    try:
        return int(text)
    except ValueError:
        # Python refuses a number with thousands of digits, because reading it takes too long.
        return Ext(_BEYOND, text.encode())


_decode: Final = msgspec.json.Decoder(float_hook=number).decode


def decode_exact(raw: bytes | msgspec.Raw) -> Any:
    """Decode JSON to values for `encode`: integers exact, integral floats as integers."""
    try:
        return _decode(raw)
    except msgspec.ValidationError:
        # The only invalid value here is an integer that is too long for msgspec.
        import json  # noqa: PLC0415  slow to import, and next to no event needs it

        return json.loads(bytes(raw), parse_int=_integer, parse_float=number)


def key_of(secret: bytes) -> bytes:
    """Return the secret as a key of BLAKE2b, which has up to 64 bytes; empty for none."""
    if secret and len(secret) < MIN_SECRET:
        raise ConfigError(
            f"secrets: a secret needs at least {MIN_SECRET} bytes, this one has {len(secret)}"
        )
    return secret if len(secret) <= blake2b.MAX_KEY_SIZE else blake2b(secret).digest()


def check_secrets(secrets: object) -> None:
    """Refuse secrets that cannot key a digest. An older one may be empty: it finds the records from
    before the first secret."""
    if isinstance(secrets, str | bytes) or not isinstance(secrets, Sequence):
        raise ConfigError("secrets: expected a list of bytes, such as [b'…'], the one in use first")
    for secret in secrets:
        if not isinstance(secret, bytes):
            raise ConfigError(f"secrets: expected bytes, not {type(secret).__name__}")
        key_of(secret)
    if secrets and not secrets[0]:
        raise ConfigError("secrets: the first is empty; give the secret in use, or no secrets")


def hasher(size: int, secret: bytes = b"") -> Hasher:
    """Return a function from bytes to their digest of this size, keyed if there is a secret."""
    # Copying a hash is quicker than making one.
    copy = blake2b(digest_size=size, key=key_of(secret)).copy

    def digest(content: bytes) -> bytes:
        state = copy()
        state.update(content)
        return state.digest()

    return digest


content_hash: Final = hasher(16)
"""The sixteen bytes that `hash(path)` puts into a key; the key's own digest then covers them."""

EMPTY_HASHES: Final = frozenset(map(content_hash, map(encode, ({}, [], None))))
"""The hashes of empty content: different events would share a key of nothing else."""
