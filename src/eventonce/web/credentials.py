"""Credentials of HTTP requests: kept as digests, and compared with all known ones in constant time,
so that the time of an answer reveals nothing."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import ipaddress
import secrets
from collections.abc import Sequence
from typing import Final

from eventonce.errors import ConfigError

_PEPPER: Final = secrets.token_bytes(16)
"""A secret of this process: digests from its memory are of no use elsewhere."""


def pair(place: str, user: str, password: str) -> bytes:
    """Return `user:password` as Basic sends it; `place` is the setting that holds it."""
    if ":" in user:
        raise ConfigError(f"{place} holds {user!r}: a user name of Basic has no colon")
    return filled(place, user) + b":" + filled(place, password)


def filled(place: str, text: str) -> bytes:
    """Return the text as bytes; ConfigError if it is empty."""
    if not text.strip():
        # Otherwise an empty environment variable would be a key that everybody has.
        raise ConfigError(f"{place} holds an empty text; is an environment variable empty?")
    return text.encode()


def basic(authorization: str) -> bytes:
    """Return `user:password` of this header; empty if it is not Basic."""
    scheme, _, credentials = authorization.partition(" ")
    if scheme.lower() != "basic":
        return b""
    try:
        return base64.b64decode(credentials.strip(), validate=True)
    except (binascii.Error, ValueError):
        return b""


def is_local(host: str) -> bool | None:
    """Whether only this machine reaches this address; None for a name, whose address is unknown."""
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return None


def digest(credential: bytes) -> bytes:
    """Return the digest that is kept of a credential."""
    return hashlib.blake2b(credential, key=_PEPPER).digest()


def among(given: bytes, known: Sequence[bytes]) -> bool:
    """Whether the digest of this credential is one of these."""
    mine = digest(given)
    fits = [hmac.compare_digest(mine, one) for one in known]
    return any(fits)
