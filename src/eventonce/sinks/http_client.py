"""The HTTP client: a POST over urllib3's pool of connections, all of it within one deadline."""

from __future__ import annotations

import os
import re
import socket
import ssl
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http.client import CONTINUE, HTTPResponse, RemoteDisconnected
from math import inf
from typing import Any, Final, NamedTuple, cast
from urllib.parse import SplitResult, urlsplit

from urllib3 import BaseHTTPResponse, HTTPConnectionPool, HTTPSConnectionPool, Timeout
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError

from eventonce.errors import ConfigError

ANSWER_BYTES: Final = 65_536
"""The most bytes of an answer that are read. If the answer has more, its connection is closed."""

MOST_CONNECTIONS: Final = 1_000
"""The most connections in the pool: each thread uses one at a time."""

EXCERPT_CHARACTERS: Final = 200
"""The most characters of an answer that a reason repeats: a sentence or two."""

SECRET_CHARACTERS: Final = 8
"""The fewest characters of a part of an address or a header that is masked as a secret: shorter
parts are often ordinary words."""

_CLOSED: Final = (ConnectionError, RemoteDisconnected, ssl.SSLEOFError, ssl.SSLZeroReturnError)
"""The errors of an idle connection that the server has closed meanwhile."""

_URL: Final = re.compile(r"https?://[\x21-\x7e]+")


class NoAnswer(Exception):
    """No HTTP answer came in time; the text is the name of the error."""


class Answer(NamedTuple):
    """The answer of a server."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def parse_url(url: str, complaint: str) -> SplitResult:
    """Return the parts of a URL; ConfigError with this complaint if it cannot be called.

    The error does not repeat the URL, which may contain a secret.
    """
    try:
        parts = urlsplit(url)
        # Both raise ValueError: a port that is not a number, and a name that is too long.
        usable = parts.port != 0 and bool((parts.hostname or "").encode("idna"))
    except ValueError:
        usable = False
    if not usable or not _URL.fullmatch(url) or "@" in parts.netloc or parts.fragment:
        raise ConfigError(complaint)
    return parts


def excerpt(text: str, secrets: Iterable[str]) -> str:
    """Return the beginning of a text, on one line and without these secrets: some servers repeat
    the headers and the path of a request."""
    for secret in secrets:
        text = text.replace(secret, "***")
    printable = "".join(letter if letter.isprintable() else " " for letter in text)
    line = " ".join(printable.split())
    return line if len(line) <= EXCERPT_CHARACTERS else f"{line[:EXCERPT_CHARACTERS]}…"


class HTTPClient:
    """Posts to one URL; safe in threads and after a fork.

    The client follows no redirect and uses no proxy. A request is sent once; again only if an idle
    connection was closed meanwhile. The receiver recognises the copy by the key in the headers.
    """

    def __init__(self, url: SplitResult, timeout: float) -> None:
        self._url = url
        self._timeout = timeout
        self._context = ssl.create_default_context() if url.scheme == "https" else None
        if self._context is not None:
            self._context.sslsocket_class = _TLSSocket
        self._pool = self._opened()
        self._process = os.getpid()

    def post(self, body: bytes, headers: Mapping[str, str]) -> Answer:
        """Send this body and return the answer; NoAnswer if none comes in time."""
        end = time.monotonic() + self._timeout
        if self._process != os.getpid():
            # Replaced after a fork: both processes would read from the same connections.
            self._pool, self._process = self._opened(), os.getpid()
        try:
            return self._posted(body, headers, end)
        except _Closed:
            # The other idle connections are probably closed as well.
            self.close()
        try:
            return self._posted(body, headers, end)
        except _Closed as error:
            raise NoAnswer(type(error.__cause__).__name__) from error

    def close(self) -> None:
        """Close the connections that are not in use."""
        self._pool.close()
        self._pool = self._opened()

    def _opened(self) -> HTTPConnectionPool:
        url, context = self._url, self._context
        target = (url.path or "/") + (f"?{url.query}" if url.query else "")
        kept: dict[str, Any] = {"maxsize": MOST_CONNECTIONS, "target": target}
        # The port is given: without it, the last part of an IPv6 address is read as a port.
        if context is None:
            pool = HTTPConnectionPool(url.hostname or "", url.port or 80, **kept)
            pool.ConnectionCls = _Connection
            return pool
        over_tls = HTTPSConnectionPool(
            url.hostname or "", url.port or 443, ssl_context=context, **kept
        )
        over_tls.ConnectionCls = _TLSConnection
        return over_tls

    def _posted(self, body: bytes, headers: Mapping[str, str], end: float) -> Answer:
        try:
            response = self._pool.urlopen(
                "POST",
                "/",
                body,
                headers,
                retries=False,
                redirect=False,
                timeout=Timeout(total=max(0.001, end - time.monotonic())),
                preload_content=False,
                decode_content=False,
            )
        except (HTTPError, OSError) as error:
            raise NoAnswer(type(_root(error)).__name__) from error
        return Answer(response.status, response.headers, _read(response))


def _read(response: BaseHTTPResponse) -> bytes:
    """Return the beginning of the answer's body; the connection is reused if that is all of it."""
    said = b""
    with suppress(HTTPError, OSError):
        # Suppressed: the status, which decides, is known already.
        said = response.read(ANSWER_BYTES)
    if not response.closed:
        response.close()
    response.release_conn()
    return said


def _root(error: BaseException) -> BaseException:
    """Return the original error, which urllib3's errors have as their cause or as an argument."""
    inner = error.__cause__ or next((it for it in error.args if isinstance(it, Exception)), None)
    return error if inner is None else _root(inner)


class _Closed(Exception):
    """The server had closed an idle connection before it answered."""


class _Connection(HTTPConnection):
    """A connection with its own target: urllib3 gets `/` instead, because it logs the target, and
    the path of a webhook may be a secret."""

    def __init__(self, *args: Any, target: str, **options: Any) -> None:
        super().__init__(*args, **options)
        self.response_class = _Response
        self._target = target
        self._fresh = True

    def connect(self) -> None:
        end = time.monotonic() + (self.timeout or 0)
        super().connect()
        self._fresh = True
        if not isinstance(self.sock, _TLSSocket):
            self.sock = _Socket(fileno=self.sock.detach())
        self.sock.settimeout(max(0.001, end - time.monotonic()))

    def request(self, method: str, url: str, *args: Any, **options: Any) -> None:  # noqa: ARG002  see above
        with self._closed():
            super().request(method, self._target, *args, **options)

    def getresponse(self) -> Any:
        with self._closed():
            response = super().getresponse()
        self._fresh = False
        return response

    @contextmanager
    def _closed(self) -> Iterator[None]:
        try:
            yield
        except _CLOSED as error:
            if self._fresh:
                raise
            raise _Closed from error


class _TLSConnection(_Connection, HTTPSConnection):
    """The same over TLS."""


class _Response(HTTPResponse):
    """A response that skips all interim answers: `http.client` skips only 100."""

    def _read_status(self) -> tuple[str, int, str]:
        version, status, reason = super()._read_status()  # type: ignore[misc]
        return version, CONTINUE if 101 < status < 200 else status, reason


class _Deadline:
    """A socket whose timeout is a deadline for everything that is read and sent after it was set,
    however slowly the bytes arrive."""

    _end = inf

    def settimeout(self: Any, seconds: float | None) -> None:
        self._end = inf if seconds is None else time.monotonic() + seconds
        super().settimeout(seconds)  # type: ignore[misc]

    def recv_into(self: Any, *args: Any) -> int:
        self._wait()
        return cast("int", super().recv_into(*args))  # type: ignore[misc]

    def sendall(self: Any, data: Any, flags: int = 0, /) -> None:
        rest = memoryview(data)
        while rest:
            self._wait()
            rest = rest[self.send(rest, flags) :]

    def _wait(self: Any) -> None:
        """Limit the next call to the time that is left; TimeoutError if none is left."""
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        super().settimeout(None if left == inf else left)  # type: ignore[misc]


class _Socket(_Deadline, socket.socket):
    """A socket with a deadline."""


class _TLSSocket(_Deadline, ssl.SSLSocket):
    """The same over TLS."""
