"""The server of the dashboard: uvicorn, in a thread with an event loop of its own."""

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
from eventonce.sockets import address, listen_at

DRAIN_TIME: Final = 3.0
"""Seconds that responses under way have when the dashboard ends."""

MOST_CONNECTIONS: Final = 200
"""The most connections at the same time, including those of live pages."""

HEAD_TIMEOUT: Final = 10.0
"""Seconds within which a connection must send the whole head of a request."""


def listen(said: str) -> socket.socket:
    """Return a socket that listens on `HOST:PORT`, or on a port of loopback."""
    host, port = address(said, "dashboard")
    return listen_at(host, port, "dashboard")


def url_of(listening: socket.socket) -> str:
    """Return the address of the first page."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


def link_of(app: Starlette, listening: socket.socket) -> str:
    """Return the address to give to people; ConfigError if other machines can reach it and there
    are no passwords."""
    access: Access = app.state.context.access
    check_host(access.settings, listening.getsockname()[0])
    return access.link(url_of(listening))


class Connection(H11Protocol):
    """One connection, with a timeout for the head of a request. Uvicorn has none: a client without
    a password could hold all connections. h11 limits the size of a head."""

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timeout for the first request."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Start the timeout for the rest of the head, unless the head is whole."""
        super().data_received(data)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timeout."""
        super().connection_lost(exc)
        self._stop()

    def _wait(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop()
        elif self._late is None:
            self._late = self.loop.call_later(HEAD_TIMEOUT, self.transport.abort)

    def _stop(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None


class Server(uvicorn.Server):
    """Uvicorn; at its end, live pages are closed before it waits for the other responses."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the live pages, and end after the responses under way."""
        app: Any = self.config.app
        app.state.context.snapshots.ended.set()
        await super().shutdown(sockets)


@contextmanager
def serving(app: Starlette, listening: socket.socket) -> Iterator[None]:
    """Serve in a thread of its own until the end of the block."""
    server = _server(app)

    def run() -> None:
        asyncio.run(server.serve(sockets=[listening]))

    thread = threading.Thread(target=run, name="eventonce-dashboard", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.should_exit = True
        thread.join(DRAIN_TIME + 2)
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
            limit_concurrency=MOST_CONNECTIONS,
            timeout_graceful_shutdown=int(DRAIN_TIME),
        )
    )
