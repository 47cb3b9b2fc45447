"""The whole example in one command: `python examples/fastapi_app/run.py`.

Serves the application on loopback, sends it signed webhooks as a payment service would, several
times over, and shows what was booked.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER.parent))

from needed import needed  # noqa: E402  found by the line above

needed("starlette", "uvicorn", "fastapi", install='".[web]" fastapi')

START_TIMEOUT = 60
"""Seconds the server may take to answer: one is enough on a quiet machine."""

SECRET = secrets.token_bytes(24)


def main() -> None:
    """Two payments, each delivered three times, and one that somebody made up."""
    with _served() as url:
        for id_, amount in (("msg_1", 30), ("msg_2", 12)):
            for _ in range(3):
                # A sender that got no answer tries again, with the same id and a new signature.
                print(id_, _posted(f"{url}/hooks/events", id_, amount, SECRET))
        print("msg_3", _posted(f"{url}/hooks/events", "msg_3", 1000, b"a guess"))
        with urllib.request.urlopen(f"{url}/payments") as response:
            print("booked", json.load(response))


@contextmanager
def _served() -> Iterator[str]:
    """The application on a free loopback port, in a folder of its own, until the block is left."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    secret = f"whsec_{base64.b64encode(SECRET).decode()}"
    command = ["uvicorn", "--app-dir", str(FOLDER), "main:app", "--port", str(port)]
    with tempfile.TemporaryDirectory() as folder:
        server = subprocess.Popen(
            [sys.executable, "-m", *command, "--log-level", "warning"],
            cwd=folder,
            env={**os.environ, "WEBHOOK_SECRET": secret},
        )
        try:
            _wait(server, f"{url}/hooks/ready")
            yield url
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait()


def _wait(server: subprocess.Popen[bytes], url: str) -> None:
    end = time.monotonic() + START_TIMEOUT
    while True:
        try:
            urllib.request.urlopen(url).close()
        except OSError:
            if server.poll() is not None or time.monotonic() > end:
                raise
            time.sleep(0.1)
        else:
            return


def _posted(url: str, id_: str, amount: int, secret: bytes) -> str:
    """The receiver's answer to this webhook."""
    body = json.dumps({"type": "invoice.paid", "data": {"customer": "a1", "amount": amount}})
    stamp = str(int(time.time()))
    signature = hmac.new(secret, f"{id_}.{stamp}.{body}".encode(), hashlib.sha256).digest()
    headers = {
        "content-type": "application/json",
        "webhook-id": id_,
        "webhook-timestamp": stamp,
        "webhook-signature": f"v1,{base64.b64encode(signature).decode()}",
    }
    request = urllib.request.Request(url, body.encode(), headers)
    try:
        with urllib.request.urlopen(request) as response:
            (told,) = json.load(response)["events"]
            return f"{response.status} {told['status']} {told.get('reason', '')}".strip()
    except urllib.error.HTTPError as refused:
        with refused:
            return f"{refused.code} {json.load(refused).get('reason', 'not settled yet')}"


if __name__ == "__main__":
    main()
