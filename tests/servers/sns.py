"""A stand-in for SNS: a key that signs its messages, and the host that has its certificates.

The host is a TLS server of this process under the name `sns.eu-central-1.amazonaws.com`, which a
certificate authority of the tests' own vouches for. A receiver reaches it through `https_proxy` and
believes it because of `SSL_CERT_FILE`: it runs as it does elsewhere, and nothing in it is replaced.
The proxy leads nowhere else, and notes every host that is asked for.
"""

from __future__ import annotations

import base64
import json
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler
from ipaddress import ip_address
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.x509.oid import NameOID

from tests.servers.http import served

TOPIC = "arn:aws:sns:eu-central-1:123456789012:calls"
HOST = "sns.eu-central-1.amazonaws.com"
CERTIFICATE = f"https://{HOST}/SimpleNotificationService-0123456789abcdef.pem"

SIGNED = {
    "Notification": "Message MessageId Subject Timestamp TopicArn Type",
    "SubscriptionConfirmation": "Message MessageId SubscribeURL Timestamp Token TopicArn Type",
    "UnsubscribeConfirmation": "Message MessageId SubscribeURL Timestamp Token TopicArn Type",
}
"""As the developer guide lists them."""


def a_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


SIGNER = a_key()


class Page(NamedTuple):
    """The answers of the host."""

    body: bytes = b""
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()


class Sns:
    """The host: its pages by their path, and what was asked for."""

    def __init__(self, folder: Path) -> None:
        self.pages = {CERTIFICATE.removeprefix(f"https://{HOST}"): Page(certificate(SIGNER))}
        self.tunnels: list[str] = []
        """The hosts that were asked for."""
        self.asked: list[str] = []
        """The paths, with their queries."""
        self.port = 0
        self.authority = folder / "authority.pem"

    @property
    def env(self) -> dict[str, str]:
        """With which a process believes that this is the host."""
        return {
            "https_proxy": f"http://127.0.0.1:{self.port}",
            "no_proxy": "",
            "SSL_CERT_FILE": str(self.authority),
        }

    def page(self, name: str, page: Page) -> str:
        """The URL of a certificate that is this page."""
        self.pages[f"/{name}.pem"] = page
        return f"https://{HOST}/{name}.pem"

    def subscribing(self, token: str, page: Page | None = None, topic: str = TOPIC) -> str:
        """A SubscribeURL, and what is answered to who visits it."""
        query = f"/?Action=ConfirmSubscription&TopicArn={topic}&Token={token}"
        said = f"<SubscriptionArn>{topic}:2bcfbf39-05c3-41de-beaa-fcfcc21c8f55</SubscriptionArn>"
        self.pages[query] = page or Page(f"<ConfirmSubscriptionResult>{said}".encode())
        return f"https://{HOST}{query}"


def certificate(
    key: rsa.RSAPrivateKey,
    *,
    name: str = "sns.amazonaws.com",
    days: tuple[int, int] = (-1, 1),
    issuer: tuple[str, rsa.RSAPrivateKey] | None = None,
) -> bytes:
    """A certificate of this key in PEM; its own authority unless another issues it."""
    by, signing = issuer or (name, key)
    now = datetime.now(UTC)
    host: x509.GeneralName = (
        x509.IPAddress(ip_address(name)) if name[0].isdigit() else x509.DNSName(name)
    )
    made = (
        x509.CertificateBuilder()
        .subject_name(_named(name))
        .issuer_name(_named(by))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + timedelta(days=days[0]))
        .not_valid_after(now + timedelta(days=days[1]))
        .add_extension(x509.SubjectAlternativeName([host]), critical=False)
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key()),
            critical=False,
        )
        .add_extension(
            x509.KeyUsage(
                digital_signature=True,
                content_commitment=False,
                key_encipherment=False,
                data_encipherment=False,
                key_agreement=False,
                key_cert_sign=issuer is None,
                crl_sign=issuer is None,
                encipher_only=False,
                decipher_only=False,
            ),
            critical=True,
        )
        .sign(signing, hashes.SHA256())
    )
    return made.public_bytes(serialization.Encoding.PEM)


def self_signed(folder: Path, name: str = "127.0.0.1") -> tuple[Path, Path]:
    """The files of a certificate for this host, and of its key."""
    key, paths = a_key(), (folder / "cert.pem", folder / "key.pem")
    paths[0].write_bytes(certificate(key, name=name))
    paths[1].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return paths


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def stamp(ago: float = 0.0) -> str:
    at = datetime.fromtimestamp(time.time() - ago, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def message(kind: str = "Notification", **fields: Any) -> dict[str, Any]:
    """A message of SNS that is signed for the topic; fields that are given stand as they are."""
    usual = {
        "Type": kind,
        "MessageId": str(uuid4()),
        "TopicArn": TOPIC,
        "Message": json.dumps({"detail-type": "call", "detail": {"call": str(uuid4())}}),
        "Timestamp": stamp(),
        "SignatureVersion": "2",
        "SigningCertURL": CERTIFICATE,
    }
    return signed({**usual, **fields})


def signed(fields: Mapping[str, Any], key: rsa.RSAPrivateKey = SIGNER) -> dict[str, Any]:
    """The message with a signature of its own version."""
    names = SIGNED[fields["Type"]].split()
    lines = [f"{name}\n{fields[name]}\n" for name in names if fields.get(name) is not None]
    digest = hashes.SHA1() if fields["SignatureVersion"] == "1" else hashes.SHA256()
    made = key.sign("".join(lines).encode(), padding.PKCS1v15(), digest)
    return {**fields, "Signature": base64.b64encode(made).decode()}


def headers(sent: Mapping[str, Any]) -> dict[str, str]:
    """As SNS sends them with this message."""
    return {
        "x-amz-sns-message-type": sent["Type"],
        "x-amz-sns-message-id": sent["MessageId"],
        "x-amz-sns-topic-arn": sent["TopicArn"],
        "content-type": "text/plain; charset=UTF-8",
        "user-agent": "Amazon Simple Notification Service Agent",
    }


@contextmanager
def sns_host(folder: Path) -> Iterator[Sns]:
    """The host and the proxy before it, on one port."""
    sns = Sns(folder)
    authority, key = a_key(), a_key()
    sns.authority.write_bytes(certificate(authority, name="authority.test"))
    chain = folder / "host.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    chain.write_bytes(private + certificate(key, name=HOST, issuer=("authority.test", authority)))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(chain)

    class Handler(BaseHTTPRequestHandler):
        timeout = 30

        def do_CONNECT(self) -> None:
            sns.tunnels.append(self.path)
            if self.path != f"{HOST}:443":
                self.send_error(403)
                return
            self.send_response_only(200)
            self.end_headers()
            with suppress(OSError):
                self.connection = context.wrap_socket(self.connection, server_side=True)
                self.rfile = self.connection.makefile("rb")
                self.wfile = self.connection.makefile("wb")
                self.handle_one_request()
                self.connection.close()

        def do_GET(self) -> None:
            sns.asked.append(self.path)
            page = sns.pages.get(self.path, Page(status=404))
            self.send_response(page.status)
            for name, value in (*page.headers, ("Content-Length", str(len(page.body)))):
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(page.body)
            self.wfile.flush()

        def log_message(self, *_: object) -> None:
            """Nothing: the tests look at what was asked."""

    with served(Handler) as sns.port:
        yield sns
