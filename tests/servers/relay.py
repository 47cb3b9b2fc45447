"""A relay between a client and a server: it counts what passes, and can stop at any piece of it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

Passes = Callable[[int], bool]
"""Asked before each piece is passed on, by its number: False cuts the connection instead."""


R = TypeVar("R", bound="Relay")


class Relay:
    """Passes bytes on, in pieces as they come."""

    def __init__(self, server: int, passes: Passes = lambda _: True) -> None:
        self.server = server
        """The port that new connections are led to; it may change."""
        self._passes = passes
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._lines: list[socket.socket] = []
        self.port = int(self._listener.getsockname()[1])
        self.pieces = 0
        self.questions = 0
        """How often it was the client's turn: its round trips."""
        self._last: socket.socket | None = None
        self._silent: set[socket.socket] = set()

    def accept(self) -> None:
        """Until closed, connect whoever comes to the server."""
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                first = self.admit(client)
                if first is None:
                    client.close()
                    continue
                server = socket.create_connection(("127.0.0.1", self.server))
                server.sendall(first)
            except OSError:
                # The server is away: whoever comes is sent away too, and the next one is let in.
                client.close()
                continue
            self._lines += [client, server]
            for source, sink in ((client, server), (server, client)):
                asks = source is client
                threading.Thread(
                    target=self._pass_on, args=(source, sink, asks), daemon=True
                ).start()

    def admit(self, client: socket.socket) -> bytes | None:
        """The first bytes for the server from a client that is let in; None for one that is not."""
        return b""

    def _pass_on(self, source: socket.socket, sink: socket.socket, asks: bool) -> None:
        with suppress(OSError):
            while piece := source.recv(1 << 20):
                with self._lock:
                    number = self.pieces
                    self.pieces += 1
                    self.questions += asks and self._last is not source
                    self._last = source
                    if not self._passes(number):
                        break
                    if source in self._silent:
                        continue
                sink.sendall(piece)
        for line in (source, sink):
            with suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)

    def silence(self) -> None:
        """Swallow, from now on, all that comes over the connections there are, and end none of
        them: a host that was lost, or a firewall that forgot. New ones are served."""
        with self._lock:
            self._silent.update(self._lines)

    def close(self) -> None:
        for line in (self._listener, *self._lines):
            with suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
            line.close()


@contextmanager
def relaying(server: int, passes: Passes = lambda _: True) -> Iterator[Relay]:
    """A relay to this port, on a loopback port of its own."""
    with accepting(Relay(server, passes)) as relay:
        yield relay


@contextmanager
def accepting(relay: R) -> Iterator[R]:
    """The server accepts connections until the block is left."""
    thread = threading.Thread(target=relay.accept, daemon=True)
    thread.start()
    try:
        yield relay
    finally:
        relay.close()
        thread.join(5)
