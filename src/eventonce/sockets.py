"""Addresses to listen on: their text, and the socket that listens."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Final

from eventonce.errors import ConfigError

PORTS: Final = 65_536
"""The end of the port numbers: the system takes a larger number modulo this."""

BACKLOG: Final = 128
"""Connections that wait to be accepted. A loop accepts that many at once before their number is
checked, and each needs a file descriptor."""


def address(said: str, setting: str = "health") -> tuple[str, int]:
    """Parse `HOST:PORT`, or a port alone, which is one of the loopback interface."""
    host, _, port = said.rpartition(":")
    if not port.isdecimal() or int(port) >= PORTS:
        raise ConfigError(
            f"{setting}: expected HOST:PORT or a port, such as 0.0.0.0:8081, not {said!r}"
        )
    return host.strip("[]") or "127.0.0.1", int(port)


def listen_at(
    host: str, port: int, setting: str, check: Callable[[str], None] | None = None
) -> socket.socket:
    """Return a socket that listens there; `check` may refuse the address of the host before."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        family, _, _, _, place = found[0]
        if check is not None:
            check(str(place[0]))
        # The protocol is named, so that asyncio sets TCP_NODELAY: short answers leave at once.
        listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(place)
            listening.listen(BACKLOG)
        except BaseException:
            listening.close()
            raise
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"{setting}: cannot listen on {host}:{port}: {error}") from error
    return listening
