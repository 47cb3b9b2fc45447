"""Credentials of HTTP requests: kept as digests, and compared in constant time with every known
one, so that the time it takes says nothing."""

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
"""A secret of this process alone: digests in its memory say nothing elsewhere."""


def pair(place: str, user: str, password: str) -> bytes:
    """`user:password` as Basic sends it; `place` is the setting that holds it."""
    if ":" in user:
        raise ConfigError(f"{place} holds {user!r}: with Basic no name has a colon")
    return filled(place, user) + b":" + filled(place, password)


def filled(place: str, text: str) -> bytes:
    """The text, which must not be empty."""
    if not text.strip():
        # An empty variable in the environment would otherwise be a key that everybody has.
        raise ConfigError(f"{place} holds an empty text; is an environment variable empty?")
    return text.encode()


def basic(authorization: str) -> bytes:
    """`user:password`, empty if the header says something else."""
    scheme, _, credentials = authorization.partition(" ")
    if scheme.lower() != "basic":
        return b""
    try:
        return base64.b64decode(credentials.strip(), validate=True)
    except (binascii.Error, ValueError):
        return b""


def is_local(host: str) -> bool | None:
    """Whether only this machine reaches this address; None for a name, which may stand for any."""
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return None


def digest(credential: bytes) -> bytes:
    """The digest that is kept of a credential."""
    return hashlib.blake2b(credential, key=_PEPPER).digest()


def among(given: bytes, known: Sequence[bytes]) -> bool:
    """Whether the digest of this credential is one of these."""
    mine = digest(given)
    fits = [hmac.compare_digest(mine, one) for one in known]
    return any(fits)
