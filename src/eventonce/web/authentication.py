"""Authentication of senders: API keys, Basic, and signatures over the body; any one suffices.

Secrets are kept as digests where that is possible. Every credential is compared with all known ones
in constant time, so that the time of an answer reveals nothing.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from eventonce.config import Serve
from eventonce.envelope.headers import SNS_TYPE
from eventonce.errors import ConfigError
from eventonce.web.admission import seconds
from eventonce.web.credentials import among, basic, digest, filled, is_local, pair
from eventonce.web.sns import NOTIFICATION, Topics

SECRET_PREFIX: Final = "whsec_"  # noqa: S105  a prefix, not a secret
SHORTEST_SECRET: Final = 16
"""The fewest bytes of a secret: the standard asks for 24; a word of a person is seldom as long."""

MOST_SIGNATURES: Final = 16
"""The most signatures that are checked in one header: a sender that rotates secrets sends two."""

Headers = Mapping[str, str]


class Claimed(NamedTuple):
    """The signature that a request claims."""

    content: bytes
    """The bytes that were signed."""
    signatures: Sequence[bytes]
    at: str | None = None
    """The time of signing in epoch seconds, as text; None if the scheme has none."""


class Scheme(NamedTuple):
    """One way to sign."""

    way: str
    setting: str
    headers: tuple[str, ...]
    """The headers that may have the signature; the first is the usual one."""
    secret: Callable[[str, str], bytes]
    """The function from the name of a setting and its text to the secret for HMAC."""
    claimed: Callable[[Headers, bytes], Claimed]
    encoded: Callable[[bytes], bytes]
    """The function from a digest to its text in the header."""

    def is_on(self, headers: Headers) -> bool:
        """Whether the request has such a signature."""
        return any(name in headers for name in self.headers)

    def complaint(
        self, secrets: Sequence[bytes], headers: Headers, body: bytes, now: float, tolerance: float
    ) -> str:
        """Return the fault of the signature; empty if it is right; `now` in epoch seconds."""
        content, signatures, at = self.claimed(headers, body)
        if at is not None:
            if not (at.isascii() and at.isdigit() and len(at) < 16):
                return f"the timestamp or the id of {self.headers[0]} is missing or malformed"
            if abs(now - int(at)) > tolerance:
                return f"the timestamp is more than {tolerance:g} seconds off"
        expected = [self.encoded(hmac.digest(secret, content, "sha256")) for secret in secrets]
        fits = [
            hmac.compare_digest(given, right)
            for given in signatures[:MOST_SIGNATURES]
            for right in expected
        ]
        return "" if any(fits) else f"no signature in {self.headers[0]} matches"


def _latin(text: str) -> bytes:
    return text.encode("latin-1")


def _standard(headers: Headers, body: bytes) -> Claimed:
    kind = "webhook" if "webhook-signature" in headers else "svix"
    id_, at = headers.get(f"{kind}-id", ""), headers.get(f"{kind}-timestamp", "")
    given = _latin(headers.get(f"{kind}-signature", "")).split()
    signatures = [one.removeprefix(b"v1,") for one in given if one.startswith(b"v1,")]
    return Claimed(_latin(f"{id_}.{at}.") + body, signatures, at if id_ else "")


def _stripe(headers: Headers, body: bytes) -> Claimed:
    pairs = [pair.strip().partition("=") for pair in headers["stripe-signature"].split(",")]
    at = next((value for name, _, value in pairs if name == "t"), "")
    signatures = [_latin(value) for name, _, value in pairs if name == "v1"]
    return Claimed(_latin(f"{at}.") + body, signatures, at)


def _github(headers: Headers, body: bytes) -> Claimed:
    given = _latin(headers["x-hub-signature-256"].strip())
    return Claimed(body, [given.removeprefix(b"sha256=")] if given[:7] == b"sha256=" else [])


def _shopify(headers: Headers, body: bytes) -> Claimed:
    return Claimed(body, [_latin(headers["x-shopify-hmac-sha256"].strip())])


def _decoded(setting: str, text: str) -> bytes:
    """Return the secret of Standard Webhooks, which is `whsec_` and base64."""
    digits = text.strip().removeprefix(SECRET_PREFIX).rstrip("=")
    try:
        found = base64.b64decode(digits + "=" * (-len(digits) % 4), validate=True)
    except (binascii.Error, ValueError):
        found = b""
    if len(found) < SHORTEST_SECRET:
        raise ConfigError(
            f"serve: {setting} holds a text that is not a secret: it must be "
            f"{SECRET_PREFIX} and base64 of {SHORTEST_SECRET} bytes or more, as the sender "
            "shows it"
        )
    return found


def _text(setting: str, text: str) -> bytes:
    """Return the secret that is the whole text."""
    found = text.strip().encode()
    if len(found) < SHORTEST_SECRET:
        raise ConfigError(
            f"serve: {setting} holds a secret of less than {SHORTEST_SECRET} characters; is an "
            "environment variable empty?"
        )
    return found


_STANDARD_HEADERS: Final = ("webhook-signature", "svix-signature")
_HEX, _BASE64 = binascii.hexlify, base64.b64encode

SCHEMES: Final = (
    Scheme("signature", "webhook_secrets", _STANDARD_HEADERS, _decoded, _standard, _BASE64),
    Scheme("stripe", "stripe_secrets", ("stripe-signature",), _text, _stripe, _HEX),
    Scheme("shopify", "shopify_secrets", ("x-shopify-hmac-sha256",), _text, _shopify, _BASE64),
    Scheme("github", "github_secrets", ("x-hub-signature-256",), _text, _github, _HEX),
)
"""The schemes. A new sender needs a function, an entry here, and a setting of its name."""

_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


def check_host(settings: Serve, host: str) -> None:
    """Raise ConfigError if other machines can reach this address and no credentials are asked for.
    A name passes: only its address can be checked."""
    if is_local(host) is not False or settings.anyone_may_send_events:
        return
    if not Authenticator(settings).ways:
        raise ConfigError(
            f"serve: {settings.host}:{settings.port} can be reached from other machines, and no "
            "authentication is set. Set api_keys, users, sns_topics or the secrets of a webhook in "
            "[serve]; or listen on 127.0.0.1; or, if anyone who reaches it may send events, use "
            "--anyone-may-send-events"
        )


class Authenticator:
    """The credentials that a receiver takes."""

    def __init__(self, settings: Serve) -> None:
        self._header = _header(settings.api_key_header)
        # A header has no space around its value, but a text that was read from a file often does.
        self._keys = [digest(filled("serve: api_keys", key.strip())) for key in settings.api_keys]
        self._users = [digest(pair("serve: users", *user)) for user in settings.users.items()]
        self._signing = [
            (scheme, [scheme.secret(scheme.setting, text) for text in given])
            for scheme in SCHEMES
            if (given := getattr(settings, scheme.setting))
        ]
        self._tolerance = seconds(settings, "webhook_tolerance")
        named, off = settings.sns_topics, seconds(settings, "sns_tolerance")
        self.topics = Topics(named, off) if named else None
        found = {
            "api key": self._keys,
            "basic": self._users,
            **{scheme.way: given for scheme, given in self._signing},
            "sns": self.topics,
        }
        self.ways = [way for way, credentials in found.items() if credentials]
        """The ways to authenticate, in words; empty if no authentication is set."""

    @property
    def challenge(self) -> str:
        """The challenge for a refused sender, as `WWW-Authenticate` has it."""
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
        """Whether the headers alone authenticate this sender, or no authentication is set."""
        if not self.ways:
            return True
        by_key = among(headers.get(self._header, "").encode("latin-1"), self._keys)
        return by_key or among(basic(headers.get("authorization", "")), self._users)

    def is_signed(self, headers: Mapping[str, str]) -> bool:
        """Whether there is a signature to check when the body has arrived."""
        return self.must_prove(headers) is not None or any(
            scheme.is_on(headers) for scheme, _ in self._signing
        )

    def must_prove(self, headers: Mapping[str, str]) -> Topics | None:
        """Return the topics if SNS must have signed this request: the confirmation of a
        subscription always, a notification unless its sender is authenticated."""
        kind = headers.get(SNS_TYPE)
        if kind is None or (kind == NOTIFICATION and self.knows(headers)):
            return None
        return self.topics

    def complaint(self, headers: Mapping[str, str], body: bytes, now: float) -> str:
        """Return the faults of the signatures; empty if one is right; `now` in epoch seconds."""
        complaints = [
            scheme.complaint(secrets, headers, body, now, self._tolerance)
            for scheme, secrets in self._signing
            if scheme.is_on(headers)
        ]
        return "" if "" in complaints else "; ".join(complaints)


def _header(name: str) -> str:
    if not _TOKEN.fullmatch(name):
        raise ConfigError(f"serve: api_key_header is {name!r}, which is not a name of a header")
    return name.lower()
