"""The server of the receiver, with uvicorn: its address, the limits of its connections, and its
end.

Uvicorn does not limit connections: its timer starts after the first answer and stops at the first
byte of a request. A client that sends nothing, sends its headers slowly, or does not read its
answers would stay for ever; and httptools takes heads of any size. This module limits all of these,
with the calls that asyncio, httptools and ASGI make to every protocol and every app.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
from collections import deque
from collections.abc import Callable
from functools import partial
from math import ceil
from typing import Any, Final

from eventonce.config import Serve
from eventonce.errors import ConfigError, install_hint
from eventonce.sockets import BACKLOG, PORTS, listen_at
from eventonce.web.admission import Limits
from eventonce.web.authentication import check_host
from eventonce.web.responses import (
    WHOLE,
    App,
    Message,
    Receive,
    Scope,
    Send,
    refuse,
    send_answer,
)

try:
    import uvicorn
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
except ModuleNotFoundError as error:
    raise ConfigError(f"serve needs: {install_hint('web')}") from error

IDLE_INTERVAL: Final = 0.5
"""Seconds between two checks for idle connections."""

LONGEST_HEAD: Final = 1 << 16
"""The most bytes of the head of a request."""

HEAD_SLICE: Final = 1 << 12
"""The most bytes of a head for one call of the parser: its length is checked only between two
calls, and a socket may deliver a quarter of a mebibyte at once."""

PER_REQUEST: Final = 8
"""Connections for each request of `concurrency`: with the usual 64 there are 512, half of the files
that a process may usually open, so that the store always has some left."""

UNREAD_WAIT: Final = 0.4
"""Seconds that a request waits unread for its turn: short, because the sender waits meanwhile."""

COLLECTED_OBJECTS: Final = 5_000
"""New objects after which Python's garbage collector runs. A request holds some dozens of objects
until it is answered: with Python's own 700, a few concurrent requests would make the collector run
in vain for a tenth of the time."""

RECEIVER_ENDING: Final = "the receiver is ending: send again"
HEAD_TOO_LONG: Final = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"content-length: 0\r\n"
    b"connection: close\r\n\r\n"
)

log = logging.getLogger("eventonce.web")


def listen(settings: Serve) -> socket.socket:
    """Return a socket that listens as the settings say; not on loopback only with credentials."""
    if not 0 <= settings.port < PORTS:
        raise ConfigError(f"serve: port is {settings.port}: it must be 0 to {PORTS - 1}")
    return listen_at(settings.host, settings.port, "serve", partial(check_host, settings))


def serve(app: App, listening: socket.socket, limits: Limits) -> None:
    """Serve until SIGTERM or SIGINT; requests under way are finished and settled first."""
    server = Server(app, limits)

    def stop(*_: object) -> None:
        server.uvicorn.should_exit = True

    # Uvicorn raises the signal again after its end, for the handler that was set before. With
    # `stop` as that handler, the caller continues and closes its store.
    former = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    usual = gc.get_threshold()
    # The objects that exist now stay: the collector need not check them again.
    gc.freeze()
    gc.set_threshold(COLLECTED_OBJECTS, *usual[1:])
    try:
        with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
            runner.run(server.serve(listening))
    finally:
        gc.set_threshold(*usual)
        gc.unfreeze()
        for number, handler in former.items():
            signal.signal(number, handler)


class Uvicorn(uvicorn.Server):
    """Uvicorn that calls a function when it ends, before it waits for the requests under way."""

    def __init__(self, config: uvicorn.Config, ending: Callable[[], None]) -> None:
        super().__init__(config)
        self._ending = ending

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End as uvicorn does, after the call of the function."""
        self._ending()
        await super().shutdown(sockets)


class Server:
    """Uvicorn with at most `PER_REQUEST` connections for each request that may be under way.

    If there are too many connections, the oldest idle one is dropped, so that a client that only
    keeps connections open cannot keep others out. A request beyond `concurrency` stays unread for
    `UNREAD_WAIT` seconds, up to `max_in_flight` bytes in all: a refusal costs half as much as an
    event, so that a receiver under four times its load would spend most of its time on refusals. A
    request that had no turn in that time is read, and the app refuses it.
    """

    def __init__(self, app: App, limits: Limits) -> None:
        self.config = uvicorn.Config(
            partial(self._run, app),
            http=partial(Connection, self),  # type: ignore[arg-type] # uvicorn only calls it
            interface="asgi3",
            lifespan="off",
            ws="none",
            backlog=BACKLOG,
            timeout_keep_alive=ceil(limits.header_timeout),
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=ceil(limits.drain),
        )
        self.uvicorn = Uvicorn(self.config, self._say_ending)
        self.connections: dict[tuple[str, int], Connection] = {}
        """Connections by the address of the client: an app knows no more of its connection."""
        self.waiting: deque[Connection] = deque()
        self._limits = limits
        self._tasks: set[asyncio.Task[Any]] = set()
        self._begun = 0
        """The number of requests whose head is read, and whose task has not begun."""
        self._held = 0

    async def serve(self, listening: socket.socket) -> None:
        """Serve until uvicorn is told to exit, and wait for the requests under way."""
        self.loop = asyncio.get_running_loop()
        looking = asyncio.ensure_future(self._cut_off())
        try:
            await self.uvicorn.serve(sockets=[listening])
            if self.uvicorn.force_exit:
                # After a second signal, requests that can be cancelled are not waited for.
                for task in self._tasks:
                    task.cancel()
            if self._tasks:
                # A request that outlasted the drain was cancelled, and releases its events now: a
                # return would cancel it again before that is done.
                await asyncio.wait(self._tasks)
        finally:
            looking.cancel()

    def _say_ending(self) -> None:
        if self._tasks:
            log.info(
                "ending; requests under way: %d, which may take up to %gs; a second Ctrl-C cancels "
                "them",
                len(self._tasks),
                self._limits.drain,
            )

    async def _run(self, app: App, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the app for one request, until its handlers have ended."""
        connection = self.connections.get(scope["client"])
        if connection is not None and connection.begun:
            connection.begun -= 1
            self._begun -= 1
        # The loop is given, because Python 3.11 makes a system call to find the running one.
        task = asyncio.current_task(self.loop)
        assert task is not None
        self._tasks.add(task)
        begun = False

        async def sent(message: Message) -> None:
            nonlocal begun
            begun = True
            if WHOLE in message and connection is not None:
                connection.wire.hold()
            await send(message)
            if connection is not None and message["type"] == "http.response.body":
                connection.wire.let_go()
                connection.answered(more=message.get("more_body", False))

        try:
            await app(scope, receive, sent)
        except asyncio.CancelledError:
            # The server ends, which is no error: the sender must send the request again.
            if not begun:
                await send_answer(refuse(503, RECEIVER_ENDING, {"connection": "close"}), sent)
        finally:
            self._tasks.discard(task)
            self._let_in()

    @property
    def is_full(self) -> bool:
        """Whether `concurrency` requests are under way."""
        return len(self._tasks) + self._begun >= self._limits.concurrency

    def made(self, connection: Connection) -> None:
        """Count a new connection; drop the oldest idle one if there are too many."""
        self.connections[connection.client_address] = connection
        most = self._limits.concurrency * PER_REQUEST
        if len(self.connections) > most:
            idle = [one for one in self.connections.values() if one.is_idle and not one.is_closing]
            # Connections that wait for their turn go last: each has sent a request.
            oldest = min(idle, key=lambda one: (bool(one.held), one.since))
            oldest.abort()

    def lost(self, connection: Connection) -> None:
        """Forget a connection that has ended."""
        self.connections.pop(connection.client_address, None)
        self._begun -= connection.begun
        connection.begun = 0
        self.take(connection)
        self._let_in()

    def began(self, connection: Connection) -> None:
        """Count a request whose head has been read."""
        connection.begun += 1
        self._begun += 1

    def hold(self, connection: Connection, data: bytes) -> bool:
        """Hold this data unread until its turn; False if too much is held already."""
        if self._held + len(data) > self._limits.max_in_flight:
            return False
        self._held += len(data)
        connection.held += data
        return True

    def take(self, connection: Connection) -> bytes:
        """Return the bytes that were held, and release them."""
        data, connection.held = connection.held, b""
        self._held -= len(data)
        return data

    def _let_in(self) -> None:
        while self.waiting and (not self.waiting[0].held or not self.is_full):
            self.waiting.popleft().go_on()

    async def _cut_off(self) -> None:
        """Drop connections that have been idle for too long."""
        clock = self.loop.time
        while True:
            await asyncio.sleep(IDLE_INTERVAL)
            late = clock() - self._limits.header_timeout
            for connection in list(self.connections.values()):
                if connection.is_idle and not connection.held and connection.since < late:
                    connection.abort()


class Wire:
    """The transport of a connection for uvicorn: the head of an answer can be held until its body
    is there, and both are written at once. A write to a socket costs as much as an event with a
    plain handler."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._held: list[bytes] = []
        self.write = transport.write
        self.is_closing = transport.is_closing

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def hold(self) -> None:
        """Hold everything that is written from now on."""
        self.write = self._held.append  # type: ignore[assignment]  # uvicorn writes only bytes

    def let_go(self) -> None:
        """Write the held bytes."""
        if self._held:
            self._transport.write(b"".join(self._held))
            self._held.clear()
        self.write = self._transport.write

    def close(self) -> None:
        """Write the held bytes, and close the connection."""
        self.let_go()
        self._transport.close()


class Connection(HttpToolsProtocol):
    """One connection: counts the calls of asyncio and httptools, and passes them to uvicorn."""

    def __init__(self, server: Server, **given: Any) -> None:
        super().__init__(**given)
        self._server = server
        self._clock = server.loop.time
        self._asked = 0
        """The number of requests whose head is read, and whose answer is not complete."""
        self._in_body = False
        self._head = 0
        """The bytes of a head that is not complete; 0 outside a head."""
        self._must_read = False
        """Whether the client must read its answers before it gets more."""
        self.begun = 0
        self.held = b""
        self.since = 0.0
        """The time since which the server waits for the client."""

    @property
    def is_idle(self) -> bool:
        """Whether the server waits for the client: for a request, for the rest of a request that is
        answered already, or until the client reads its answers."""
        return not self._asked or self._must_read

    @property
    def is_closing(self) -> bool:
        return self._wire.is_closing()

    def abort(self) -> None:
        """End the connection at once."""
        self._wire.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._wire = transport
        self.wire = Wire(transport)
        super().connection_made(self.wire)  # type: ignore[arg-type]  # has all that uvicorn uses
        self.client_address: tuple[str, int] = transport.get_extra_info("peername")[:2]
        self.since = self._clock()
        self._server.made(self)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._server.lost(self)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._must_read, self.since = True, self._clock()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._must_read, self.since = False, self._clock()

    def data_received(self, data: bytes) -> None:
        server = self._server
        if self.held:
            # Paused only now: most requests come in one piece, and a pause costs two system calls.
            self._wire.pause_reading()
            if not server.hold(self, data):
                self.go_on(data)
        elif (
            server.is_full
            and not self._asked
            and not self._head
            # Probes of health, which are GETs, do not wait.
            and data[:5] == b"POST "
            and server.hold(self, data)
        ):
            server.waiting.append(self)
            self._turn = server.loop.call_later(UNREAD_WAIT, self.go_on)
        else:
            self._feed(data)

    def go_on(self, more: bytes = b"") -> None:
        """Read the held bytes, and go on reading."""
        data = self._server.take(self)
        if data and not self._wire.is_closing():
            self._turn.cancel()
            self._wire.resume_reading()
            self._feed(data + more)

    def _feed(self, data: bytes) -> None:
        # After a refusal the connection is closing, and the rest is not parsed.
        while data and not self._wire.is_closing():
            piece = data if self._in_body or len(data) <= HEAD_SLICE else data[:HEAD_SLICE]
            data = data[len(piece) :]
            super().data_received(piece)
            if self._head:
                self._head += len(piece)
                if self._head > LONGEST_HEAD:
                    self._wire.write(HEAD_TOO_LONG)
                    self._wire.close()

    def on_message_begin(self) -> None:
        self._head = 1
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._head, self._in_body = 0, True
        self._asked += 1
        self._server.began(self)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_body = False
        super().on_message_complete()

    def answered(self, *, more: bool) -> None:
        """Note that a part of an answer was sent; `more` is False for the last part."""
        if not more:
            self._asked -= 1
            self.since = self._clock()
