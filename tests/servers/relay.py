"""A relay between a client and a server: it counts what passes, and can stop at any piece of it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

Passes = Callable[[int], bool]
"""Asked before each piece is passed on, by its number: False cuts the connection instead."""


class Relay:
    """Passes bytes on, in pieces as they come."""

    def __init__(self, server: int, passes: Passes) -> None:
        self._server = server
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
                server = socket.create_connection(("127.0.0.1", self._server))
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
        """From now on nothing passes on the connections there are, and neither end is told."""
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
    relay = Relay(server, passes)
    thread = threading.Thread(target=relay.accept, daemon=True)
    thread.start()
    try:
        yield relay
    finally:
        relay.close()
        thread.join(5)
