"""The health endpoint: whether the worker lives and is ready, and its metrics, over HTTP."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, Final

import msgspec

from eventonce.errors import ConfigError
from eventonce.http_report import JSON, Answer
from eventonce.metrics.prometheus import Scrape
from eventonce.sockets import address

HEALTH_PATHS: Final = {"/health/live": "live", "/health/ready": "ready"}
"""The paths, each with the field of the state that decides between 200 and 503."""

METRICS: Final = "/metrics"

CLIENT_TIMEOUT: Final = 5.0
"""Seconds that a client may take to send its request: a slow one holds a thread."""

State = Callable[[], dict[str, Any]]


@contextmanager
def listening(said: str, state: State, scrape: Scrape | None = None) -> Iterator[int]:
    """Answer on this address until the block ends; yield the port. `scrape` is for /metrics."""

    class Requests(BaseHTTPRequestHandler):
        timeout = CLIENT_TIMEOUT
        server_version = "eventonce"
        sys_version = ""

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            answer = scrape() if scrape is not None and path == METRICS else _health(path, state)
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(answer.body)))
            self.send_header("cache-control", "no-store")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer.body)

        def do_HEAD(self) -> None:
            self.do_GET()

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing: a health check comes every few seconds."""

    host, port = address(said)
    try:
        server = ThreadingHTTPServer((host, port), Requests)
    except OSError as error:
        raise ConfigError(f"health: cannot listen on {host}:{port}: {error}") from error
    server.daemon_threads = True
    thread = Thread(target=server.serve_forever, name="eventonce-health", daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()


def _health(path: str, state: State) -> Answer:
    field = HEALTH_PATHS.get(path)
    told = state() if field is not None else {"paths": [*HEALTH_PATHS, METRICS]}
    status = 404 if field is None else 200 if told[field] else 503
    return Answer(status, JSON, msgspec.json.encode(told))
