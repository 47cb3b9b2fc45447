"""Real servers for the tests, each on a free loopback port, started and stopped by process id."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest

PATIENCE = 30
"""Seconds a server may take to answer: they take two on a quiet machine."""


class NotStarted(Exception):
    """The server ended, or did not answer in time; what it printed is the message."""


def missing(what: str) -> NoReturn:
    """A server that cannot be had: a failure in CI, a skip with its reason elsewhere."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"{what}; under CI=true every server must be there", pytrace=False)
    pytest.skip(what)


def free_port() -> int:
    """A loopback port nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(
    command: Sequence[str],
    answers: Callable[[], object],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    user: str | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server until the block is left; the block begins when `answers` does not raise."""
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(env or {})},
            cwd=cwd,
            user=user,
        )
        try:
            _wait(process, answers, lambda: _read(said.fileno()))
            yield process
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait(
    process: subprocess.Popen[bytes], answers: Callable[[], object], said: Callable[[], str]
) -> None:
    end = time.monotonic() + PATIENCE
    while True:
        try:
            answers()
        except Exception as error:
            if process.poll() is not None or time.monotonic() > end:
                raise NotStarted(f"{process.args!r}: {error}\n{said()}") from error
            time.sleep(0.05)
        else:
            return


def _read(descriptor: int) -> str:
    size = os.fstat(descriptor).st_size
    return os.pread(descriptor, size, 0).decode(errors="replace")[-4000:]
