"""The entrance of RDS in front of a PostgreSQL: it asks for a token in clear text, and checks it.

This stands for RDS and IAM. The token's signature is worked out anew from the documented scheme
(Signature Version 4), by other code than boto3's; behind the door is a server that trusts everyone.
Without TLS, which RDS insists on.
"""

from __future__ import annotations

import hashlib
import hmac
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qs, quote

from tests.servers.aws import CREDENTIALS, REGION
from tests.servers.relay import Relay, accepting

ASK = b"R" + struct.pack("!ii", 8, 3)
"""AuthenticationCleartextPassword."""

_REFUSAL = b"SFATAL\0C28000\0MPAM authentication failed for user\0\0"
REFUSE = b"E" + struct.pack("!i", 4 + len(_REFUSAL)) + _REFUSAL


class Door(Relay):
    """Lets in who shows a good token."""

    def __init__(self, server: int) -> None:
        super().__init__(server)
        self.tokens: list[str] = []
        """The tokens that were sent, one a connection."""

    def admit(self, client: socket.socket) -> bytes | None:
        startup = _message(client, b"")
        client.sendall(ASK)
        token = _message(client, client.recv(1))[5:-1].decode()
        self.tokens.append(token)
        words = startup[8:].split(b"\0")
        settings = dict(zip(words[::2], words[1::2], strict=False))
        if good(token, self.port, settings[b"user"].decode()):
            return startup
        client.sendall(REFUSE)
        return None


def _message(client: socket.socket, kind: bytes) -> bytes:
    length = client.recv(4, socket.MSG_WAITALL)
    return kind + length + client.recv(struct.unpack("!i", length)[0] - 4, socket.MSG_WAITALL)


def good(token: str, port: int, user: str) -> bool:
    """Whether this is a token to connect here as this user, signed with the tests' secret, now."""
    place, _, query = token.partition("/?")
    asked = {name: value for name, (value,) in parse_qs(query).items()}
    signature, date = asked.pop("X-Amz-Signature"), asked["X-Amz-Date"]
    wanted = {"Action": "connect", "DBUser": user, "X-Amz-SignedHeaders": "host"}
    scope = f"{date[:8]}/{REGION}/rds-db/aws4_request"
    key, _, claimed_scope = asked["X-Amz-Credential"].partition("/")
    signed_at = datetime.strptime(date, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    age = datetime.now(UTC) - signed_at
    canonical = "&".join(
        f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in sorted(asked.items())
    )
    empty = hashlib.sha256(b"").hexdigest()
    request = f"GET\n/\n{canonical}\nhost:{place}\n\nhost\n{empty}"
    digest = hashlib.sha256(request.encode()).hexdigest()
    secret = f"AWS4{CREDENTIALS['AWS_SECRET_ACCESS_KEY']}".encode()
    for part in (*scope.split("/"), f"AWS4-HMAC-SHA256\n{date}\n{scope}\n{digest}"):
        secret = hmac.digest(secret, part.encode(), "sha256")
    return (
        wanted.items() <= asked.items()
        and place == f"127.0.0.1:{port}"
        and (key, claimed_scope) == (CREDENTIALS["AWS_ACCESS_KEY_ID"], scope)
        and abs(age) < timedelta(seconds=int(asked["X-Amz-Expires"]))
        and secret.hex() == signature
    )


@contextmanager
def guarding(server: int) -> Iterator[Door]:
    """A door before this port, on a loopback port of its own."""
    with accepting(Door(server)) as door:
        yield door
