"""Serves the dashboard with uvicorn, in a thread and an event loop of its own."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

from eventonce.dashboard.access import Access, check_host
from eventonce.errors import ConfigError
from eventonce.worker.health import address

DRAIN: Final = 3.0
"""Seconds that answers under way have when the dashboard ends."""

CONNECTIONS: Final = 200
"""Connections at the same time, those of who watches too."""

HEAD: Final = 10.0
"""Seconds within which a connection has to send a whole head."""


def listen(said: str) -> socket.socket:
    """A socket on `HOST:PORT`, or on a port of loopback."""
    host, port = address(said, "dashboard")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        family, _, _, _, place = found[0]
        listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(place)
            listening.listen(128)
        except BaseException:
            listening.close()
            raise
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"dashboard: cannot listen on {host}:{port}: {error}") from error
    return listening


def url_of(listening: socket.socket) -> str:
    """The address of the first page."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


def link_of(app: Starlette, listening: socket.socket) -> str:
    """The address to give to people; ConfigError if strangers could reach it, and nobody is asked
    for a password."""
    access: Access = app.state.context.access
    check_host(access.settings, listening.getsockname()[0])
    return access.link(url_of(listening))


class Connection(H11Protocol):
    """One connection. Uvicorn waits for ever for the first request, and for the rest of a head: who
    knows no password could hold all connections. H11 bounds the size of a head too."""

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Wait for the rest of the head, if it is not whole."""
        super().data_received(data)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no longer."""
        super().connection_lost(exc)
        self._stop()

    def _wait(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop()
        elif self._late is None:
            self._late = self.loop.call_later(HEAD, self.transport.abort)

    def _stop(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None


class Server(uvicorn.Server):
    """Uvicorn; whoever watches is let go before it waits for the answers under way."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End, when what is under way is answered."""
        app: Any = self.config.app
        app.state.context.snapshots.ended.set()
        await super().shutdown(sockets)


@contextmanager
def serving(app: Starlette, listening: socket.socket) -> Iterator[None]:
    """Serve in a thread of its own until the block is left."""
    server = _server(app)

    def run() -> None:
        asyncio.run(server.serve(sockets=[listening]))

    thread = threading.Thread(target=run, name="eventonce-dashboard", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.should_exit = True
        thread.join(DRAIN + 2)
        app.state.context.actions.close()


def _server(app: Starlette) -> Server:
    return Server(
        uvicorn.Config(
            app,
            http=Connection,
            interface="asgi3",
            lifespan="off",
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=CONNECTIONS,
            timeout_graceful_shutdown=int(DRAIN),
        )
    )
