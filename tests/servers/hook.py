"""A receiver of webhooks on a loopback port, which answers as it is told and keeps what it got."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple


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
    """What the receiver answers."""

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

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 30

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            call = Call(self.path, headers, body, self.client_address[1])
            hook.calls.append(call)
            reply = hook.answer(call)
            if reply is None:
                self.close_connection = True
                return
            with suppress(ConnectionError):
                self.send_response(reply.status)
                for name, value in (*reply.headers, ("Content-Length", str(len(reply.body)))):
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(reply.body)

        def log_message(self, *_: Any) -> None: ...

    class Server(ThreadingHTTPServer):
        # Callers that come at once may all wait to be let in; the system sends a sixth one away.
        request_queue_size = 128

    server = Server(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    # SettleResult connections of a test's clients must not keep the receiver from ending.
    server.block_on_close = False
    if certificate is not None:
        hook.scheme = "https"
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificate)
        server.socket = context.wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )
    hook.port = int(server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield hook
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
