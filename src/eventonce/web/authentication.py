"""Authentication of senders: API keys, Basic, and signatures over the body; any one suffices.

Secrets are kept as digests where that is possible. Every credential is compared with every known
one in constant time, so that the time it takes says nothing.
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

SECRET_PREFIX: Final = "whsec_"  # noqa: S105  it is how a secret begins, not one
SHORTEST_SECRET: Final = 16
"""Bytes: the standard asks for 24, and a word that somebody thought of is seldom as long."""

SIGNATURES: Final = 16
"""Signatures looked at in one header: a sender that rotates its secrets sends two."""

Headers = Mapping[str, str]


class Claimed(NamedTuple):
    """The signature that a request claims."""

    content: bytes
    """The bytes that were signed."""
    signatures: Sequence[bytes]
    at: str | None = None
    """When, in epoch seconds; None where the sender does not say it."""


class Scheme(NamedTuple):
    """One way to sign."""

    way: str
    setting: str
    headers: tuple[str, ...]
    """Where the signature stands; the first is the usual one."""
    secret: Callable[[str], bytes]
    """The secret of a setting, as HMAC takes it."""
    claimed: Callable[[Headers, bytes], Claimed]
    encoded: Callable[[bytes], bytes]
    """The digest as the header has it."""

    def is_on(self, headers: Headers) -> bool:
        """Whether the request has such a signature."""
        return any(name in headers for name in self.headers)

    def complaint(
        self, secrets: Sequence[bytes], headers: Headers, body: bytes, now: float, tolerance: float
    ) -> str:
        """The fault of the signature, empty if it is right; `now` in epoch seconds."""
        content, signatures, at = self.claimed(headers, body)
        if at is not None:
            if not (at.isascii() and at.isdigit() and len(at) < 16):
                return (
                    f"{self.headers[0]} needs a timestamp in whole seconds, and what goes with it"
                )
            if abs(now - int(at)) > tolerance:
                return f"the timestamp is more than {tolerance:g} seconds off"
        expected = [self.encoded(hmac.digest(secret, content, "sha256")) for secret in secrets]
        fits = [
            hmac.compare_digest(given, right)
            for given in signatures[:SIGNATURES]
            for right in expected
        ]
        return "" if any(fits) else f"no signature in {self.headers[0]} fits"


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


def _decoded(text: str) -> bytes:
    """The secret of Standard Webhooks: `whsec_` and base64."""
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


def _text(setting: str) -> Callable[[str], bytes]:
    """The secret as its sender shows it, all of it."""

    def secret(text: str) -> bytes:
        found = text.strip().encode()
        if len(found) < SHORTEST_SECRET:
            raise ConfigError(
                f"serve: {setting} holds a secret of less than {SHORTEST_SECRET} characters; is an "
                "environment variable empty?"
            )
        return found

    return secret


def _hex(digest: bytes) -> bytes:
    return binascii.hexlify(digest)


SCHEMES: Final = (
    Scheme(
        "signature",
        "webhook_secrets",
        ("webhook-signature", "svix-signature"),
        _decoded,
        _standard,
        base64.b64encode,
    ),
    Scheme(
        "stripe",
        "stripe_secrets",
        ("stripe-signature",),
        _text("stripe_secrets"),
        _stripe,
        _hex,
    ),
    Scheme(
        "shopify",
        "shopify_secrets",
        ("x-shopify-hmac-sha256",),
        _text("shopify_secrets"),
        _shopify,
        base64.b64encode,
    ),
    Scheme(
        "github",
        "github_secrets",
        ("x-hub-signature-256",),
        _text("github_secrets"),
        _github,
        _hex,
    ),
)
"""Adding a sender is one function, one line here, and one setting of its name."""

_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


def check_host(settings: Serve, host: str) -> None:
    """ConfigError if this address can be reached from elsewhere, and nobody is asked for
    credentials. A name is not judged: only its address tells."""
    if is_local(host) is not False or settings.anyone_may_send_events:
        return
    if not Authenticator(settings).ways:
        raise ConfigError(
            f"serve: {settings.host}:{settings.port} can be reached from elsewhere, and no "
            "authentication is set. Set api_keys, users, sns_topics or the secrets of a webhook in "
            "[serve]; or listen on 127.0.0.1; or, if anyone who reaches it may send events, say "
            "--anyone-may-send-events"
        )


class Authenticator:
    """The credentials that a receiver takes."""

    def __init__(self, settings: Serve) -> None:
        self._header = _header(settings.api_key_header)
        # No header has space around it, and a text that was read from a file often does.
        self._keys = [digest(filled("serve: api_keys", key.strip())) for key in settings.api_keys]
        self._users = [digest(pair("serve: users", *user)) for user in settings.users.items()]
        self._signing = [
            (scheme, [scheme.secret(text) for text in given])
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
        """How one may authenticate, in words; none if nobody needs to."""

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
        """Whether the headers alone tell that this sender may send, or no authentication is set."""
        if not self.ways:
            return True
        by_key = among(headers.get(self._header, "").encode("latin-1"), self._keys)
        return by_key or among(basic(headers.get("authorization", "")), self._users)

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
        """The fault of the signatures, empty if one is right; `now` in epoch seconds."""
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
