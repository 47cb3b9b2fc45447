"""Whom the receiver believes: API keys, Basic, and signatures; any one suffices.

Secrets are kept as digests where that is possible, and compared in constant time.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Final

from eventonce.config import Serve
from eventonce.envelope.headers import SNS_TYPE
from eventonce.errors import ConfigError
from eventonce.web.limits import seconds
from eventonce.web.signatures import SCHEMES
from eventonce.web.sns import NOTIFICATION, Topics

_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")

_PEPPER: Final = secrets.token_bytes(16)
"""Of this process alone: digests in its memory say nothing elsewhere."""


class Gate:
    """The credentials that open the receiver."""

    def __init__(self, settings: Serve) -> None:
        self._header = _header(settings.api_key_header)
        # No header has space around it, and a text that was read from a file often does.
        self._keys = [_digest(_filled("api_keys", key.strip())) for key in settings.api_keys]
        self._users = [_digest(_pair(*user)) for user in settings.users.items()]
        self._signing = [
            (scheme, [scheme.secret(text) for text in given])
            for scheme in SCHEMES
            if (given := getattr(settings, scheme.setting))
        ]
        self._tolerance = seconds(settings, "webhook_tolerance")
        named, off = settings.sns_topics, seconds(settings, "sns_tolerance")
        self.topics = Topics(named, off) if named else None

    @property
    def ways(self) -> list[str]:
        """How one may authenticate, in words; none if nobody needs to."""
        found = {"api key": self._keys, "basic": self._users}
        ways = [way for way, credentials in found.items() if credentials]
        ways += [scheme.way for scheme, _ in self._signing]
        return [*ways, "sns"] if self.topics else ways

    @property
    def challenge(self) -> str:
        """What a refused sender is asked for, as `WWW-Authenticate` says it."""
        asked = {
            "api key": f'ApiKey header="{self._header}"',
            "basic": 'Basic realm="eventonce", charset="UTF-8"',
            "signature": "StandardWebhooks",
            "stripe": "Stripe",
            "shopify": "Shopify",
            "github": "GitHub",
            "sns": "AmazonSNS",
        }
        return ", ".join(asked[way] for way in self.ways)

    def knows(self, headers: Mapping[str, str]) -> bool:
        """Whether the headers alone tell that this sender may send, or nobody is asked."""
        if not self.ways:
            return True
        by_key = _among(headers.get(self._header, "").encode("latin-1"), self._keys)
        return by_key or _among(_basic(headers.get("authorization", "")), self._users)

    def is_signed(self, headers: Mapping[str, str]) -> bool:
        """Whether there is a signature to look at once the body is there."""
        return self.must_prove(headers) is not None or any(
            scheme.is_on(headers) for scheme, _ in self._signing
        )

    def must_prove(self, headers: Mapping[str, str]) -> Topics | None:
        """The topics, if SNS must have signed this request for one of them: a handshake always, a
        notification unless its sender is known."""
        kind = headers.get(SNS_TYPE)
        if kind is None or (kind == NOTIFICATION and self.knows(headers)):
            return None
        return self.topics

    def complaint(self, headers: Mapping[str, str], body: bytes, now: float) -> str:
        """What is wrong with the signatures, nothing if one is right; `now` in epoch seconds."""
        complaints = [
            scheme.complaint(secrets, headers, body, now, self._tolerance)
            for scheme, secrets in self._signing
            if scheme.is_on(headers)
        ]
        return "" if "" in complaints else "; ".join(complaints)


def _header(name: str) -> str:
    if not _TOKEN.fullmatch(name):
        raise ConfigError(f"serve: api_key_header is {name!r}, which is no name of a header")
    return name.lower()


def _pair(user: str, password: str) -> bytes:
    if ":" in user:
        raise ConfigError(f"serve: users holds {user!r}: with Basic no name has a colon")
    return _filled("users", user) + b":" + _filled("users", password)


def _filled(place: str, text: str) -> bytes:
    if not text.strip():
        # An empty variable in the environment would otherwise be a key that everybody has.
        raise ConfigError(f"serve: {place} holds an empty text; is an environment variable empty?")
    return text.encode()


def _basic(authorization: str) -> bytes:
    """`user:password`, empty if the header says something else."""
    scheme, _, credentials = authorization.partition(" ")
    if scheme.lower() != "basic":
        return b""
    try:
        return base64.b64decode(credentials.strip(), validate=True)
    except (binascii.Error, ValueError):
        return b""


def _digest(credential: bytes) -> bytes:
    return hashlib.blake2b(credential, key=_PEPPER).digest()


def _among(given: bytes, known: Sequence[bytes]) -> bool:
    digest = _digest(given)
    fits = [hmac.compare_digest(digest, one) for one in known]
    return any(fits)
