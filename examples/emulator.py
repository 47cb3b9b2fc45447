"""AWS for the examples without an AWS account: ministack, on a free loopback port."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

START_TIMEOUT = 240
"""Seconds that the emulator has to start: one is enough on a quiet machine."""


@contextmanager
def emulated_aws() -> Iterator[str]:
    """Its endpoint; in this process and those it starts, boto3 talks to it and to nobody else."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    endpoint = f"http://127.0.0.1:{port}"
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        del os.environ[name]
    os.environ.update(
        AWS_ENDPOINT_URL=endpoint,
        AWS_ACCESS_KEY_ID="example",
        AWS_SECRET_ACCESS_KEY="not-a-secret",
        AWS_DEFAULT_REGION="eu-central-1",
        AWS_EC2_METADATA_DISABLED="true",
    )
    settings = {
        "BIND_HOST": "127.0.0.1",
        "MINISTACK_HOST": "127.0.0.1",
        "GATEWAY_PORT": str(port),
        "LOG_LEVEL": "ERROR",
    }
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            [sys.executable, "-m", "ministack"],
            env={**os.environ, **settings},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            _wait(process, endpoint)
            yield endpoint
        finally:
            process.terminate()
            process.wait()


def _wait(process: subprocess.Popen[bytes], endpoint: str) -> None:
    end = time.monotonic() + START_TIMEOUT
    while True:
        try:
            urllib.request.urlopen(endpoint, timeout=2).close()
        except urllib.error.HTTPError:
            return
        except OSError as error:
            if process.poll() is not None or time.monotonic() > end:
                sys.exit(f"ministack did not start: {error}")
            time.sleep(0.1)
        else:
            return


def eventonce(*arguments: str) -> None:
    """Run the command line, and show it."""
    print(f"$ eventonce {' '.join(arguments)}", flush=True)
    subprocess.run([sys.executable, "-m", "eventonce", *arguments], check=True)


def drained(client: object, queue: str) -> None:
    """Wait until nothing is left in this queue, seen or unseen."""
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    end = time.monotonic() + START_TIMEOUT
    while True:
        found = client.get_queue_attributes(QueueUrl=queue, AttributeNames=names)["Attributes"]  # type: ignore[attr-defined]
        if not any(int(found[name]) for name in names):
            return
        if time.monotonic() > end:
            sys.exit(f"{queue} is not empty: {found}")
        time.sleep(0.1)
