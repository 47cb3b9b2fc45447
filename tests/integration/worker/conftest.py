"""A queue, a store, a sink that takes notes, and workers in processes of their own."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from eventonce.aws.sqs import Entry, Queue
from eventonce.stores import open_store
from eventonce.types import Letter
from tests.helpers import PATIENCE, until
from tests.integration.dynamodb.between import Between, Forward, Reply, standing
from tests.servers.aws import emulated, ministack
from tests.servers.valkey import serving

SINKS = Path(__file__).with_name("noting.py")


class Servers(NamedTuple):
    aws: str
    redis: str


@pytest.fixture(scope="package")
def servers() -> Iterator[Servers]:
    with emulated(), ministack() as endpoint, serving() as node:
        yield Servers(endpoint, node.uri)


@pytest.fixture
def between(servers: Servers) -> Iterator[Between]:
    with standing(servers.aws) as between:
        yield between


@contextmanager
def overheard(between: Between) -> Iterator[list[int]]:
    """The seconds for which messages are postponed or held, in the order of the requests."""
    delays: list[int] = []

    def listen(operation: str, body: bytes, forward: Forward) -> Reply:
        if operation == "ChangeMessageVisibilityBatch":
            delays.extend(entry["VisibilityTimeout"] for entry in json.loads(body)["Entries"])
        return forward(body)

    with between.spoiling(listen):
        yield delays


def event(number: int | str) -> str:
    """An event of its own id, about this number."""
    return json.dumps(
        {
            "id": secrets.token_hex(8),
            "detail-type": "number",
            "source": "test",
            "detail": {"n": number},
        }
    )


class Site:
    """A folder with a configuration and sinks, a queue and a store of its own."""

    def __init__(self, folder: Path, servers: Servers, stack: ExitStack, *, fifo: bool) -> None:
        self.folder = folder
        self.store = f"{servers.redis}?prefix={secrets.token_hex(4)}&timeout={PATIENCE}"
        name = secrets.token_hex(6) + ".fifo" * fifo
        self.uri = f"sqs://{name}?endpoint={servers.aws}"
        self.queue = Queue.from_uri(self.uri)
        self._stack = stack
        self.make_queue()
        (folder / "noting.py").write_text(SINKS.read_text())

    def through(self, url: str) -> str:
        """The queue's URI by way of this endpoint."""
        return f"sqs://{self.queue.name}?endpoint={url}"

    def make_queue(self) -> None:
        fifo = {"FifoQueue": "true"} if self.queue.fifo else {}
        self.queue.client.create_queue(QueueName=self.queue.name, Attributes=fifo)

    def send(self, *bodies: str, group: str = "") -> None:
        entries = [
            Entry(body, group=group, deduplication=secrets.token_hex(8) if group else "")
            for body in bodies
        ]
        assert not self.queue.send(entries)

    def configure(self, sink: str, *, lease: str = "3s", attempts: int = 3, **worker: Any) -> None:
        worker = {"queue": self.uri, "visibility": "2s", "wait": "1s", **worker}
        table = "\n".join(f"{name} = {json.dumps(value)}" for name, value in worker.items())
        (self.folder / "eventonce.toml").write_text(
            f"""
            store = "{self.store}"
            name = "test"
            [worker]
            {table}
            [[sink]]
            to = "noting:{sink}"
            [[rule]]
            name = "numbers"
            key = ["detail.n"]
            lease = "{lease}"
            attempts = {attempts}
            """
        )

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """A worker; killed at the end of the test if it still runs."""
        process = subprocess.Popen(
            [sys.executable, "-m", "eventonce", "run", *arguments],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        self._stack.callback(_end, process)
        return process

    def go(self) -> None:
        """Let the sinks that wait continue."""
        (self.folder / "go").touch()

    def notes(self, beginning: str = "") -> list[str]:
        """The notes of the sinks, in order."""
        file = self.folder / "notes"
        lines = file.read_text().splitlines() if file.exists() else []
        return [line for line in lines if line.startswith(beginning)]

    def noted(self, *expected: str) -> None:
        """Wait until all of these are among the notes."""
        until(lambda: set(expected) <= set(self.notes()), otherwise=self.notes)

    def counts(self) -> tuple[int, int]:
        """The numbers of messages that can be received, and of messages that a worker holds."""
        asked = ("ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible")
        known = self.queue.client.get_queue_attributes(
            QueueUrl=self.queue.url, AttributeNames=list(asked)
        )["Attributes"]
        return int(known[asked[0]]), int(known[asked[1]])

    def emptied(self) -> None:
        """Wait until the queue has nothing more."""
        until(lambda: self.counts() == (0, 0), otherwise=self.counts)

    def letters(self) -> list[Letter]:
        store = open_store(self.store)
        try:
            return list(store.letters())
        finally:
            store.close()


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGKILL)
    process.communicate()


def health(port: int, what: str) -> tuple[int, dict[str, Any]]:
    """The answer of a worker's health endpoint."""
    url = f"http://127.0.0.1:{port}/health/{what}"
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, json.loads(refused.read())


def finished(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Wait for a worker to end: its exit code, and its output on both streams."""
    out, err = process.communicate(timeout=PATIENCE)
    return process.returncode, out + err


@pytest.fixture
def site(tmp_path: Path, servers: Servers) -> Iterator[Site]:
    with ExitStack() as stack:
        yield Site(tmp_path, servers, stack, fifo=False)


@pytest.fixture
def sites(tmp_path: Path, servers: Servers) -> Iterator[dict[str, Site]]:
    """A site for plain and a site for async handlers, by their sink, to wait for both at once."""
    with ExitStack() as stack:
        made = {}
        for sink in ("waiting", "awaiting"):
            folder = tmp_path / sink
            folder.mkdir()
            made[sink] = Site(folder, servers, stack, fifo=False)
        yield made


@pytest.fixture
def fifo_site(tmp_path: Path, servers: Servers) -> Iterator[Site]:
    with ExitStack() as stack:
        yield Site(tmp_path, servers, stack, fifo=True)
