"""`eventonce serve` as a process of its own, on a free loopback port."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.helpers import PATIENCE

JSON = {"content-type": "application/json"}


class Answered(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: Any


class Receiving(NamedTuple):
    """A receiver that runs."""

    process: subprocess.Popen[str]
    port: int
    log: Path

    def ask(
        self, body: Any = None, *, path: str = "/events", headers: Mapping[str, str] = JSON
    ) -> Answered:
        """Over a connection of its own, as an API destination does."""
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, dict(headers))
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as response:
                return _answered(response.status, response)
        except urllib.error.HTTPError as refused:
            with refused:
                return _answered(refused.code, refused)

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)

    def ended(self) -> tuple[int, str]:
        """How it ended, once it has, and what it said on its standard output after its start."""
        said, _ = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, said


def _answered(status: int, response: Any) -> Answered:
    headers = {name.lower(): value for name, value in response.headers.items()}
    return Answered(status, headers, json.loads(response.read()))


@contextmanager
def receiving(
    folder: Path, settings: str, *options: str, env: Mapping[str, str] | None = None
) -> Iterator[Receiving]:
    """Serve what these settings, the text of an `eventonce.toml`, say; killed at the end."""
    (folder / "eventonce.toml").write_text(settings, encoding="utf-8")
    with tempfile.NamedTemporaryFile("w", dir=folder, suffix=".log", delete=False) as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "eventonce", "serve", "--port", "0", "--json", *options],
            cwd=folder,
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    try:
        assert process.stdout is not None
        first = process.stdout.readline()
        assert first, Path(log.name).read_text(encoding="utf-8")
        port = int(json.loads(first)["url"].rpartition(":")[2].partition("/")[0])
        yield Receiving(process, port, Path(log.name))
    finally:
        process.kill()
        process.communicate()
