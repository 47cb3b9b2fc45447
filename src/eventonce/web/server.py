"""Serves the receiver with uvicorn, from where it listens to the end of its last handler."""

from __future__ import annotations

import asyncio
import ipaddress
import signal
import socket
from math import ceil
from typing import Final

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from eventonce.config import Serve
from eventonce.errors import ConfigError
from eventonce.web.authentication import Gate
from eventonce.web.connections import HEAD, cut_off, protocol
from eventonce.web.limits import Limits
from eventonce.web.refusals import refuse, response

BACKLOG: Final = 128
"""Connections that wait to be accepted. The loop accepts as many at once, before it looks whether
there are too many, and there must be a file for each."""

PORTS: Final = 1 << 16
"""The system takes a larger one modulo this."""

ENDING: Final = "the receiver is ending: send again"


def listen(settings: Serve) -> socket.socket:
    """A socket where the settings say; off loopback only if somebody is asked for credentials."""
    place = f"{settings.host}:{settings.port}"
    if not 0 <= settings.port < PORTS:
        raise ConfigError(f"serve: port is {settings.port}: 0 to {PORTS - 1} was expected")
    try:
        found = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)
        family, _, _, _, address = found[0]
        loopback = ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback
        if not loopback and not settings.anyone_may_send_events and not Gate(settings).ways:
            raise ConfigError(
                f"serve: {place} can be reached from elsewhere, and no authentication is set. Set "
                "api_keys, users, sns_topics or the secrets of a webhook in [serve]; or listen on "
                "127.0.0.1; or, if anyone who reaches it may send events, say "
                "--anyone-may-send-events"
            )
        # With the protocol named: asyncio then sends at once, and not after 40 ms, what is short.
        listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.listen(BACKLOG)
        except BaseException:
            listening.close()
            raise
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"serve: cannot listen on {place}: {error}") from error
    return listening


def configured(app: ASGIApp, limits: Limits) -> uvicorn.Config:
    """How uvicorn shall serve it."""
    return uvicorn.Config(
        _ending(app),
        http=protocol(limits.concurrency, limits.max_in_flight),
        h11_max_incomplete_event_size=HEAD,
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


def serve(app: ASGIApp, listening: socket.socket, limits: Limits) -> None:
    """Serve until SIGTERM or SIGINT; what is under way then is finished and settled first."""
    config = configured(app, limits)
    server = uvicorn.Server(config)

    def stop(*_: object) -> None:
        server.should_exit = True

    # Uvicorn raises the signal again when it has ended, for whoever handled it before: this does,
    # so that the caller goes on and closes its store.
    former = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
            runner.run(_served(server, listening, limits))
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


async def _served(server: uvicorn.Server, listening: socket.socket, limits: Limits) -> None:
    state = server.server_state
    watching = asyncio.ensure_future(cut_off(state.connections, limits.header_timeout))
    try:
        await server.serve(sockets=[listening])
        if server.force_exit:
            # Who interrupts it a second time waits for no handler that can be stopped.
            for task in state.tasks:
                task.cancel()
        if state.tasks:
            # What outlasted the drain was cancelled, and frees its events now: leaving would cancel
            # it again, in the midst of that.
            await asyncio.wait(state.tasks)
    finally:
        watching.cancel()


def _ending(app: ASGIApp) -> ASGIApp:
    """The app, with an answer to what is cancelled when the server ends: its sender shall send it
    again, and nothing broke."""

    async def answered(scope: Scope, receive: Receive, send: Send) -> None:
        begun = False

        async def sent(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await app(scope, receive, sent)
        except asyncio.CancelledError:
            if not begun:
                answer = refuse(503, ENDING, {"connection": "close"})
                await response(answer)(scope, receive, send)

    return answered
