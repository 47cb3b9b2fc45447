"""Real servers for the tests, each on a free loopback port, started and stopped by process id."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest

from tests.helpers import PATIENCE

FIRST_PORT = 10_000
"""Below it stand the ports that services of a machine have by custom."""


class NotStarted(Exception):
    """The server ended, or did not answer in time; what it printed is the message."""


def missing(what: str) -> NoReturn:
    """A server that cannot be had: a failure in CI, a skip with its reason elsewhere."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"{what}; under CI=true every server must be there", pytrace=False)
    pytest.skip(what)


def free_port(*, room: int = 0) -> int:
    """A loopback port nobody listens on now, and one that the system gives to nobody by itself.

    Another process would sooner or later be given one of those between this and the start of the
    server that it is for, or while that server is away. The port so far above it, where a server
    wants `room`, is of the same kind.
    """
    ports = range(FIRST_PORT, _given_from() - room)
    for _ in range(1_000):
        # Not from `random`, which a property test seeds: two processes must not choose alike.
        port = secrets.choice(ports) if ports else 0
        with socket.socket() as probe, socket.socket() as above:
            try:
                probe.bind(("127.0.0.1", port))
                port = int(probe.getsockname()[1])
                if room:
                    above.bind(("127.0.0.1", port + room))
            except (OSError, OverflowError):
                continue
            return port
    raise NotStarted("no loopback port is free")


def _given_from() -> int:
    """The first of the ports that the system gives to who asks for any; none may be known."""
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except OSError:
        return 0


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
            if process.poll() is not None:
                raise NotStarted(f"{process.args!r}: another answers in its place\n{said()}")
            return


def _read(descriptor: int) -> str:
    size = os.fstat(descriptor).st_size
    return os.pread(descriptor, size, 0).decode(errors="replace")[-4000:]
