"""Whom the receiver believes: API keys, Basic, and Standard Webhooks signatures; any one suffices.

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
from eventonce.errors import ConfigError
from eventonce.web.limits import seconds

SECRET_PREFIX: Final = "whsec_"  # noqa: S105  it is how a secret begins, not one
SHORTEST_SECRET: Final = 16
"""Bytes: the standard asks for 24, and a word that somebody thought of is seldom as long."""

SIGNATURES: Final = 16
"""Signatures looked at in one header: a sender that rotates its secrets sends two."""

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
        self._secrets = [_secret(text) for text in settings.webhook_secrets]
        self._tolerance = seconds(settings, "webhook_tolerance")

    @property
    def ways(self) -> list[str]:
        """How one may authenticate, in words; none if nobody needs to."""
        found = {"api key": self._keys, "basic": self._users, "signature": self._secrets}
        return [way for way, credentials in found.items() if credentials]

    @property
    def challenge(self) -> str:
        """What a refused sender is asked for, as `WWW-Authenticate` says it."""
        asked = {
            "api key": f'ApiKey header="{self._header}"',
            "basic": 'Basic realm="eventonce", charset="UTF-8"',
            "signature": "StandardWebhooks",
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
        return bool(self._secrets) and "webhook-signature" in headers

    def complaint(self, headers: Mapping[str, str], body: bytes, now: float) -> str:
        """What is wrong with the signature, nothing if it is right; `now` in epoch seconds."""
        id_, timestamp = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
        if not id_ or not (timestamp.isascii() and timestamp.isdigit() and len(timestamp) < 16):
            return "webhook-id, webhook-timestamp (whole seconds) and webhook-signature go together"
        if abs(now - int(timestamp)) > self._tolerance:
            return f"webhook-timestamp is more than {self._tolerance:g} seconds off"
        content = f"{id_}.{timestamp}.".encode("latin-1") + body
        expected = [
            base64.b64encode(hmac.digest(secret, content, "sha256")) for secret in self._secrets
        ]
        given = headers.get("webhook-signature", "").encode("latin-1").split()[:SIGNATURES]
        # All are compared, whichever fits: how long it takes says nothing.
        fits = [
            hmac.compare_digest(signature.removeprefix(b"v1,"), right)
            for signature in given
            if signature.startswith(b"v1,")
            for right in expected
        ]
        return "" if any(fits) else "no signature in webhook-signature fits"


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


def _secret(text: str) -> bytes:
    digits = text.strip().removeprefix(SECRET_PREFIX).rstrip("=")
    try:
        found = base64.b64decode(digits + "=" * (-len(digits) % 4), validate=True)
    except (binascii.Error, ValueError):
        found = b""
    if len(found) < SHORTEST_SECRET:
        raise ConfigError(
            "serve: webhook_secrets holds something that is no secret: "
            f"{SECRET_PREFIX} and base64 of {SHORTEST_SECRET} bytes or more was expected, as the "
            "sender shows it"
        )
    return found


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
