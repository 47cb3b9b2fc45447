"""SNS over HTTPS: the verification of messages, the confirmation of a subscription, and the
requests that the receiver makes for both.

The rules are those of "Verifying the signatures of Amazon SNS messages" in its developer guide. One
rule is stricter: the certificate must come from the host of the topic's own region.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import re
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from http.client import HTTPException
from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.error import HTTPError
from urllib.request import HTTPRedirectHandler, HTTPSHandler, build_opener

import msgspec

from eventonce.envelope.headers import SNS_TYPE
from eventonce.errors import ConfigError, module_of
from eventonce.rules.instants import instant
from eventonce.web.admission import WARNING_INTERVAL

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

RAW_DELIVERY: Final = "x-amz-sns-rawdelivery"
NOTIFICATION: Final = "Notification"
SUBSCRIPTION: Final = "SubscriptionConfirmation"
UNSUBSCRIPTION: Final = "UnsubscribeConfirmation"

MOST_CERTIFICATES: Final = 16
"""The most certificates in memory: SNS has one for each region, and renews it about once a year."""

FETCH_TIMEOUT: Final = 5.0
"""Seconds for one request: SNS waits fifteen, and its first message needs two requests."""

MOST_FETCHES: Final = 4
"""The most requests at once; senders beyond this limit must send again."""

MAX_ANSWER: Final = 1 << 16
"""The most bytes of an answer: a certificate has two thousand, a confirmation less."""

Fetch = Callable[[str], bytes]

_HANDSHAKE: Final = (
    "Message",
    "MessageId",
    "SubscribeURL",
    "Timestamp",
    "Token",
    "TopicArn",
    "Type",
)
_SIGNED: Final[Mapping[str, Sequence[str]]] = {
    NOTIFICATION: ("Message", "MessageId", "Subject", "Timestamp", "TopicArn", "Type"),
    SUBSCRIPTION: _HANDSHAKE,
    UNSUBSCRIPTION: _HANDSHAKE,
}
"""The fields that are signed, in alphabetical order; `Subject` only if the message has one."""

_PROOF: Final = ("Signature", "SignatureVersion", "SigningCertURL")
_HASHES: Final = {"1": "SHA1", "2": "SHA256"}
_NULL: Final = msgspec.Raw(b"null")

_TOPIC: Final = re.compile(
    r"arn:(aws(?:-us-gov|-cn)?):sns:([a-z0-9-]+):\d{12}:[\w-]{1,256}", re.ASCII
)
_DOMAINS: Final = {"aws-cn": "amazonaws.com.cn"}
"""The domains of partitions other than amazonaws.com."""

log = logging.getLogger("eventonce.web")


class Unverified(NamedTuple):
    """The reason why a message is refused."""

    reason: str
    permanent: bool = True
    """Whether a second try of the same message would be refused, too."""


class Message(NamedTuple):
    """A message: its signed fields, and the signature."""

    signed: Mapping[str, str]
    signature: bytes
    hash: str
    certificate_url: str

    @property
    def type(self) -> str:
        return self.signed["Type"]

    @property
    def topic(self) -> str:
        return self.signed["TopicArn"]

    @property
    def body(self) -> bytes:
        """The envelope with signed fields only: anyone can add fields to a recorded message."""
        return msgspec.json.encode(self.signed)

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of SNS, made from signed fields: those of the request are not signed."""
        return {
            SNS_TYPE: self.type,
            "x-amz-sns-message-id": self.signed["MessageId"],
            "x-amz-sns-topic-arn": self.topic,
        }


class Topics:
    """The allowed topics, and the certificates with which SNS signs their messages."""

    def __init__(self, topics: Sequence[str], tolerance: float) -> None:
        module_of("sns", "cryptography", "serve: sns_topics needs")
        self._hosts = {topic.strip(): _host(topic.strip()) for topic in topics}
        self._tolerance = tolerance
        self._fetches = Fetches()
        self._certificates: dict[str, Certificate] = {}
        self._warned_at = -inf

    async def verified(
        self, headers: Mapping[str, str], body: bytes, now: float
    ) -> Message | Unverified:
        """Return the message if SNS signed it for an allowed topic; `now` in epoch seconds."""
        if RAW_DELIVERY in headers:
            return self._refused(
                "raw message delivery has no signature: turn it off for this subscription, or "
                "authenticate the subscription with Basic",
                headers.get("x-amz-sns-topic-arn", ""),
            )
        message = _read(body)
        if isinstance(message, str):
            return self._refused(message, headers.get("x-amz-sns-topic-arn", ""))
        complaint = self._complaint(headers, message, now)
        if complaint:
            return self._refused(complaint, message.topic)
        certificate = await self._certificate(message.certificate_url)
        if isinstance(certificate, Unverified):
            return certificate
        complaint = _unproved(message, certificate, now)
        return self._refused(complaint, message.topic) if complaint else message

    async def confirm(self, message: Message) -> Unverified | None:
        """Confirm the subscription of this verified message."""
        url = message.signed["SubscribeURL"]
        if not _is_at(self._hosts[message.topic], url):
            return self._refused("SubscribeURL is not at the topic's host", message.topic)
        answer = await self._fetches.ask(url)
        # The status is not enough: the page of a proxy may have status 200 too.
        receipt = f"<SubscriptionArn>{message.topic}:".encode()
        if isinstance(answer, bytes) and receipt in answer:
            log.info("sns: the subscription to %s is confirmed", message.topic)
            return None
        why = answer if isinstance(answer, OSError) else "the answer names no subscription"
        log.warning("sns: the subscription to %s could not be confirmed: %s", message.topic, why)
        return Unverified("the subscription could not be confirmed", permanent=False)

    def _complaint(self, headers: Mapping[str, str], message: Message, now: float) -> str:
        """Return the fault of a message that shows without the certificate; empty for none."""
        host = self._hosts.get(message.topic)
        if host is None:
            return "this topic is not among sns_topics"
        if message.type != headers[SNS_TYPE]:
            return f"{SNS_TYPE} differs from the Type of the message"
        at = instant(message.signed["Timestamp"], "iso")
        if at is None or abs(now - at / 1000) > self._tolerance:
            return f"Timestamp is not a time, or more than {self._tolerance:g} seconds off"
        if not _is_at(host, message.certificate_url, r"[\w-]+\.pem"):
            return f"SigningCertURL is not a certificate at {host}"
        return ""

    async def _certificate(self, url: str) -> Certificate | Unverified:
        found = self._certificates.get(url)
        if found is None:
            answer = await self._fetches.ask(url)
            read = answer if isinstance(answer, OSError) else _certificate(answer)
            if isinstance(read, Exception):
                self._warn("%s cannot be fetched, its messages must come again: %s", url, read)
                return Unverified("the signing certificate could not be fetched", permanent=False)
            found = self._certificates[url] = read
            while len(self._certificates) > MOST_CERTIFICATES:
                del self._certificates[next(iter(self._certificates))]
        return found

    def _refused(self, reason: str, topic: str) -> Unverified:
        self._warn("a message of topic %.300r is refused: %s", topic, reason)
        return Unverified(reason)

    def _warn(self, text: str, *about: object) -> None:
        """Warn at intervals: otherwise a stranger could fill the log."""
        now = time.monotonic()
        if now - self._warned_at >= WARNING_INTERVAL:
            self._warned_at = now
            log.warning(f"sns: {text}", *about)  # noqa: G004  ours


def _host(topic: str) -> str:
    found = _TOPIC.fullmatch(topic)
    if found is None:
        raise ConfigError(
            f"serve: sns_topics holds {topic!r}: it must be the ARN of a standard topic, "
            "arn:aws:sns:REGION:ACCOUNT:NAME"
        )
    return f"sns.{found[2]}.{_DOMAINS.get(found[1], 'amazonaws.com')}"


def _is_at(host: str, url: str, path: str = "[!-~]*") -> bool:
    """Whether the URL is https and at exactly this host: no parser finds a host after the slash."""
    return re.fullmatch(rf"https://{re.escape(host)}/{path}", url, re.ASCII) is not None


def _read(body: bytes) -> Message | str:
    """Return the message in this body, or the fault of the body."""
    try:
        fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        signed = {
            name: _text(fields[name])
            for name in _SIGNED[_text(fields["Type"])]
            if name != "Subject" or fields.get(name, _NULL) != _NULL
        }
        proof = [_text(fields[name]) for name in _PROOF]
        # The signed text has names and values in lines: if a value had several lines, one signature
        # would fit several messages. `Message` may: it is the first, and its end is clear.
        if any("\n" in value for name, value in signed.items() if name != "Message"):
            return "a field of the message has several lines"
        return Message(
            signed, base64.b64decode(proof[0], validate=True), _HASHES[proof[1]], proof[2]
        )
    except (KeyError, ValueError, RecursionError):
        return "the body is not a message that SNS signed with version 1 or 2"


def _text(raw: msgspec.Raw) -> str:
    return msgspec.json.decode(raw, type=str)


def _certificate(pem: bytes) -> Certificate | ValueError:
    from cryptography.x509 import load_pem_x509_certificate  # noqa: PLC0415  see Topics

    try:
        return load_pem_x509_certificate(pem)
    except ValueError as error:
        return error


def _unproved(message: Message, certificate: Certificate, now: float) -> str:
    """Return the fault of the signature; empty if it is right; `now` in epoch seconds."""
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415  see Topics
    from cryptography.hazmat.primitives import hashes  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey  # noqa: PLC0415

    at = datetime.fromtimestamp(now, UTC)
    if not certificate.not_valid_before_utc <= at <= certificate.not_valid_after_utc:
        return "the signing certificate is not valid now"
    key = certificate.public_key()
    if not isinstance(key, RSAPublicKey):
        return "the signing certificate has no RSA key"
    content = "".join(f"{name}\n{value}\n" for name, value in message.signed.items())
    try:
        key.verify(message.signature, content.encode(), PKCS1v15(), getattr(hashes, message.hash)())
    except InvalidSignature:
        return "the signature does not match"
    return ""


class _NoRedirects(HTTPRedirectHandler):
    """A handler that follows no redirect, which would lead to a host that was not checked."""

    def redirect_request(self, *_: object) -> None:
        return None


def fetched(url: str) -> bytes:
    """Return the body of the answer to a GET of this URL; OSError unless it is a complete 200.

    A proxy that the environment names (`https_proxy`) is used.
    """
    ends = time.monotonic() + FETCH_TIMEOUT
    opener = build_opener(_NoRedirects, HTTPSHandler(context=ssl.create_default_context()))
    try:
        with opener.open(url, timeout=FETCH_TIMEOUT) as answer:
            if answer.status != 200:
                raise OSError(f"status {answer.status}")
            body = b""
            while piece := answer.read1(MAX_ANSWER):
                body += piece
                if len(body) > MAX_ANSWER:
                    raise OSError(f"the answer has more than {MAX_ANSWER} bytes")
                if time.monotonic() > ends:
                    raise TimeoutError(f"no complete answer within {FETCH_TIMEOUT:g} seconds")
            return body
    except HTTPError as error:
        with error:
            raise OSError(f"status {error.code}") from None
    except (HTTPException, ValueError) as error:
        raise OSError(f"no HTTP answer: {error}") from error


class Fetches:
    """The requests under way; callers that ask for the same URL share one request."""

    def __init__(self, fetch: Fetch = fetched) -> None:
        self._fetch = fetch
        self._under_way: dict[str, Future[bytes | OSError]] = {}
        self._threads = ThreadPoolExecutor(MOST_FETCHES, thread_name_prefix="eventonce-fetches")

    async def ask(self, url: str) -> bytes | OSError:
        """Return the answer, or the error."""
        asked = self._under_way.get(url)
        if asked is None:
            if len(self._under_way) >= MOST_FETCHES:
                return OSError(f"{MOST_FETCHES} requests are under way, which is the limit")
            asked = self._under_way[url] = self._threads.submit(self._answer, url)
            asked.add_done_callback(lambda _: self._under_way.pop(url, None))
        # A timeout of its own: the timeout of the socket begins anew with every byte.
        answer = asyncio.wrap_future(asked)
        await asyncio.wait([answer], timeout=FETCH_TIMEOUT)
        return answer.result() if answer.done() else TimeoutError("no answer in time")

    def _answer(self, url: str) -> bytes | OSError:
        try:
            return self._fetch(url)
        except OSError as error:
            return error
