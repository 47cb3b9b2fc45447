"""One POST over a connection that is kept for the next, all of it within one time limit."""

from __future__ import annotations

import io
import os
import socket
import ssl
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from email.message import Message
from http.client import CONTINUE, HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from selectors import EVENT_READ, DefaultSelector
from typing import Any, Final, NamedTuple
from urllib.parse import SplitResult

READ: Final = 65_536
"""Bytes of an answer that are read: more than any says why, and a connection with more is closed
rather than kept."""

GONE: Final = (ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError)
"""What a kept connection says if the server has closed it meanwhile."""


class Answer(NamedTuple):
    """What the server said."""

    status: int
    headers: Message
    body: bytes


class Poster:
    """Posts to one URL; safe in many threads, each with a connection of its own."""

    def __init__(self, url: SplitResult, timeout: float) -> None:
        self._url = url
        self._target = (url.path or "/") + (f"?{url.query}" if url.query else "")
        self._timeout = timeout
        self._context = ssl.create_default_context() if url.scheme == "https" else None
        self._idle: deque[HTTPConnection] = deque()
        self._process = os.getpid()

    def post(self, body: bytes, headers: Mapping[str, str]) -> Answer:
        """Send this and read the answer; OSError or HTTPException if none comes in time."""
        end = time.monotonic() + self._timeout
        if self._process != os.getpid():
            # After a fork both processes would read from the same connections.
            self._idle, self._process = deque(), os.getpid()
        kept = self._kept()
        if kept is not None:
            with suppress(*GONE):
                # A server may close a kept connection at any moment. What it took before that it
                # knows again by the key in the headers, so that sending it once more is safe.
                return self._asked(kept, body, headers, end)
        return self._asked(self._opened(), body, headers, end)

    def close(self) -> None:
        """Let go of connections that nobody uses now."""
        while self._idle:
            self._idle.pop().close()

    def _kept(self) -> HTTPConnection | None:
        """A connection on which nothing has come since its last answer: what a server says unasked,
        such as that it is about to close, must not be taken for the answer to the next event."""
        with suppress(IndexError):
            while True:
                connection = self._idle.pop()
                if not _has_come(connection.sock):
                    return connection
                connection.close()
        return None

    def _opened(self) -> HTTPConnection:
        # The port is named, for without one the last part of an IPv6 address is taken for it.
        host, port = self._url.hostname or "", self._url.port
        if self._context is not None:
            return HTTPSConnection(host, port or 443, context=self._context)
        return HTTPConnection(host, port or 80)

    def _asked(
        self, connection: HTTPConnection, body: bytes, headers: Mapping[str, str], end: float
    ) -> Answer:
        try:
            connection.timeout = max(0.001, end - time.monotonic())
            if connection.sock is not None:
                connection.sock.settimeout(connection.timeout)
            connection.request("POST", self._target, body, dict(headers))
            sock = connection.sock

            def timed(_: socket.socket, **said: Any) -> HTTPResponse:
                return _Response(_Timed(sock, end), **said)  # type: ignore[arg-type]

            connection.response_class = timed  # type: ignore[assignment]
            response = connection.getresponse()
            said = b""
            with suppress(OSError, HTTPException):
                # The answer is known by now, whatever becomes of its explanation.
                said = response.read(READ)
        except BaseException:
            connection.close()
            raise
        if response.isclosed() and not response.will_close and response.status >= 200:
            self._idle.append(connection)
        else:
            response.close()
            connection.close()
        return Answer(response.status, response.headers, said)


def _has_come(sock: Any) -> bool:
    if sock is None:
        return True
    with DefaultSelector() as selector:
        selector.register(sock, EVENT_READ)
        return bool(selector.select(0))


class _Response(HTTPResponse):
    """Waits for the answer itself: of the interim ones `http.client` passes over 100 alone."""

    def _read_status(self) -> tuple[str, int, str]:
        version, status, reason = super()._read_status()  # type: ignore[misc]
        return version, CONTINUE if 101 < status < 200 else status, reason


class _Timed(io.RawIOBase):
    """Reads from a socket until the end of the time, however slowly its bytes drip."""

    def __init__(self, sock: socket.socket, end: float) -> None:
        super().__init__()
        self._sock = sock
        self._end = end
        self._bytes = sock.makefile("rb", buffering=0)

    def makefile(self, _mode: str) -> io.BufferedReader:
        """As an HTTPResponse asks a socket for it."""
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int | None:
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        self._sock.settimeout(left)
        return self._bytes.readinto(buffer)

    def close(self) -> None:
        self._bytes.close()
        super().close()
