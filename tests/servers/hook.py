"""A receiver of webhooks on a loopback port, which answers as it is told and keeps what it got."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.servers.http import Handler, served


class Call(NamedTuple):
    """One request as it came."""

    path: str
    headers: dict[str, str]
    body: bytes
    peer: int
    """The caller's port: the same for all requests of one connection."""

    @property
    def key(self) -> str:
        return self.headers["idempotency-key"]


class Reply(NamedTuple):
    """The answers of the receiver."""

    status: int = 200
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()


Answering = Callable[[Call], Reply | None]
"""Asked for every request; None closes the connection without an answer."""


class Hook:
    """The receiver: its address, the requests it got, and what it shall answer."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.answer: Answering = lambda _: Reply()
        self.port = 0
        self.scheme = "http"

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}/hook"

    def replies(self, *replies: Reply) -> None:
        """Answer with these in turn, and with the last of them from then on."""
        waiting = list(replies)
        self.answer = lambda _: waiting.pop(0) if len(waiting) > 1 else waiting[0]


@contextmanager
def hooked(certificate: tuple[Path, Path] | None = None) -> Iterator[Hook]:
    """A running receiver; over TLS if it has a certificate and its key."""
    hook = Hook()

    class Receiver(Handler):
        protocol_version = "HTTP/1.1"
        timeout = 30

        def reply(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            call = Call(self.path, headers, self.body(), self.client_address[1])
            hook.calls.append(call)
            said = hook.answer(call)
            if said is None:
                self.close_connection = True
            else:
                self.answer(said.status, said.body, said.headers)

    tls = None
    if certificate is not None:
        hook.scheme = "https"
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(*certificate)
    with served(Receiver, tls) as hook.port:
        yield hook
