"""Connections of the receiver's own server: how many there may be, and how long one may be idle.

Uvicorn leaves both open: its timer starts after the first answer and stops at the first byte of a
request, so a client that sends nothing, its headers one by one, or requests whose answers it does
not read, would stay for ever.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sized
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


HOLD: Final = 0.4
"""Seconds that a request waits unread for its turn: with what follows, less than a sender waits."""


def protocol(concurrency: int, max_held: int) -> type[H11Protocol]:
    """What serves one connection, for so many requests side by side.

    A request beyond them is left unread for a moment, up to `max_held` bytes of all such: a refusal
    costs half as much as an event, so that who is sent four times what it bears would spend most of
    its time on refusals. One that had no turn in that moment is read, and refused by the app.

    Of too many connections the oldest that is idle is dropped, so that who only keeps connections
    open shuts nobody out. It is h11's, which bounds the head of a request: httptools,
    which uvicorn prefers where it is installed, takes headers without end.
    """
    most = concurrency * SPARE
    waiting: deque[Bounded] = deque()
    held_bytes = 0

    class Bounded(H11Protocol):
        held = b""

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self.since = self.loop.time()
            if len(self.connections) > most:
                _drop_oldest(self.connections, most)

        def data_received(self, data: bytes) -> None:
            nonlocal held_bytes
            if self.held:
                # Only now: most requests come in one piece, and a pause costs two system calls.
                self.transport.pause_reading()
                self.held += data
                held_bytes += len(data)
            elif self._must_wait(data):
                self.held = data
                held_bytes += len(data)
                waiting.append(self)
                self.loop.call_later(HOLD, self.let_in, data)
            else:
                self._feed(data)

        def _must_wait(self, data: bytes) -> bool:
            return (
                len(self.tasks) >= concurrency
                and self.conn.their_state is h11.IDLE
                # Not the probes, which ask how it is.
                and data[:5] == b"POST "
                and held_bytes + len(data) <= max_held
            )

        def on_response_complete(self) -> None:
            super().on_response_complete()
            # The request counts until its task has ended: its handlers may outlast the answer.
            task = asyncio.current_task()
            if task is not None:
                task.add_done_callback(lambda _: _let_next_in(self.tasks))

        def let_in(self, asked: bytes | None = None) -> None:
            """Go on with what was held; by the timer only if it is still what the timer is for."""
            nonlocal held_bytes
            if not self.held or (asked is not None and not self.held.startswith(asked)):
                return
            while waiting and (waiting[0] is self or not waiting[0].held):
                waiting.popleft()
            data, self.held = self.held, b""
            held_bytes -= len(data)
            if not self.transport.is_closing():
                self.transport.resume_reading()
                self._feed(data)

        def _feed(self, data: bytes) -> None:
            # What follows a refused slice is not looked at any more.
            while data and not self.transport.is_closing():
                size = SLICE if self.conn.their_state is h11.IDLE else len(data)
                super().data_received(data[:size])
                data = data[size:]

    def _let_next_in(tasks: Sized) -> None:
        while waiting and (not waiting[0].held or len(tasks) < concurrency):
            waiting.popleft().let_in()

    return Bounded


def _drop_oldest(connections: Iterable[Any], most: int) -> None:
    # One that was dropped a moment ago stays in the set until the loop comes to it.
    living = [one for one in connections if not one.transport.is_closing()]
    if len(living) > most:
        idle = [one for one in living if _is_idle(one)]
        # Those that wait for their turn go last: each has sent a request.
        min(idle, key=lambda one: (bool(one.held), one.since)).transport.abort()


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
