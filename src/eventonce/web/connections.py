"""Connections of the receiver's own server: how many there may be, and how long one may be idle.

Uvicorn leaves both open: its timer starts after the first answer and stops at the first byte of a
request, so a client that sends nothing, its headers one by one, or requests whose answers it does
not read, would stay for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

LOOK: Final = 0.5
"""Seconds between two looks at the connections."""

HEAD: Final = 1 << 16
"""Bytes that the head of a request may have."""

SLICE: Final = 1 << 12
"""Bytes of a head that the parser is given at once: it looks only between two calls whether the
head is too long, and a socket may bring a quarter of a mebibyte together."""

SPARE: Final = 8
"""Connections for each request that may be under way: with the usual 64 there are 512, half of the
files that a process may usually open, so that there is always one left for the store."""


def protocol(concurrency: int) -> type[H11Protocol]:
    """What serves one connection, for so many requests side by side.

    Of too many connections the oldest that is idle is dropped, so that who only keeps connections
    open shuts nobody out. It is h11's, which bounds the head of a request: httptools,
    which uvicorn prefers where it is installed, takes headers without end.
    """
    most = concurrency * SPARE

    class Bounded(H11Protocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self.since = self.loop.time()
            if len(self.connections) > most:
                _drop_oldest(self.connections, most)

        def data_received(self, data: bytes) -> None:
            # What follows a refused slice is not looked at any more.
            while data and not self.transport.is_closing():
                size = SLICE if self.conn.their_state is h11.IDLE else len(data)
                super().data_received(data[:size])
                data = data[size:]

    return Bounded


def _drop_oldest(connections: Iterable[Any], most: int) -> None:
    # One that was dropped a moment ago stays in the set until the loop comes to it.
    living = [one for one in connections if not one.transport.is_closing()]
    if len(living) > most:
        min(filter(_is_idle, living), key=lambda one: one.since).transport.abort()


def _is_idle(connection: Any) -> bool:
    """Whether the client has to do something: send a request, the rest of one that is answered
    already, or read its answers."""
    cycle = connection.cycle
    return cycle is None or cycle.response_complete or connection.flow.write_paused


async def cut_off(connections: Iterable[Any], patience: float) -> None:
    """Drop, for as long as this runs, connections that are idle for more than so many seconds."""
    clock = asyncio.get_running_loop().time
    waiting: dict[Any, tuple[object, float]] = {}
    while True:
        await asyncio.sleep(LOOK)
        now = clock()
        idle: dict[Any, tuple[object, float]] = {}
        for connection in filter(_is_idle, list(connections)):
            cycle = connection.cycle
            last, since = waiting.get(connection, (cycle, now))
            idle[connection] = (cycle, since if last is cycle else now)
            if now - idle[connection][1] > patience:
                connection.transport.abort()
        waiting = idle
