"""The dashboard as a process: beside a receiver, beside a worker, and alone. Each process ends at
a signal, though a browser still watches."""

from __future__ import annotations

import html
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import msgspec
import pytest

from eventonce import Consumer
from eventonce.history import History
from tests.helpers import PATIENCE, call, until
from tests.servers import postgres, valkey

CONFIG = """
store = "sqlite:///store.db"
name = "crm"
[[sink]]
match = "*"
to = "file:out.jsonl"
[serve]
port = 0
"""


class Process:
    """A command that runs, and its output."""

    def __init__(self, folder: Path, *words: str, **environment: str) -> None:
        self._file = folder / f"{words[0]}.log"
        with self._file.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "eventonce", *words],
                cwd=folder,
                env=os.environ | environment,
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    @property
    def output(self) -> str:
        return self._file.read_text()

    def found(self, pattern: str) -> str:
        until(lambda: re.search(pattern, self.output), lambda: self.output)
        match = re.search(pattern, self.output)
        assert match is not None
        return match[0]


@contextmanager
def running(
    folder: Path, *words: str, config: str = CONFIG, **environment: str
) -> Iterator[Process]:
    (folder / "eventonce.toml").write_text(config)
    started = Process(folder, *words, **environment)
    try:
        yield started
    finally:
        if started.process.poll() is None:
            started.process.kill()
        started.process.wait(PATIENCE)


@contextmanager
def reader(link: str) -> Iterator[httpx.Client]:
    """A browser that opened the link."""
    with httpx.Client(base_url=link.partition("/?")[0], timeout=PATIENCE) as client:
        assert client.get(link).status_code == 200
        yield client


def ended_while_watched(client: httpx.Client, started: Process, number: int) -> int:
    """The exit code after this signal, while a browser watches."""
    with client.stream("GET", "/live/overview") as watching:
        lines = watching.iter_lines()
        assert next(lines).startswith("retry")
        started.process.send_signal(number)
        return started.process.wait(PATIENCE)


JSON = {"content-type": "application/json"}
LINK = r"http://127\.0\.0\.1:\d+/\?token=\S+"


def test_a_receiver_has_its_dashboard_and_a_history_for_it(tmp_path: Path) -> None:
    with running(tmp_path, "serve", "--dashboard", "0") as started:
        events = started.found(r"http://127\.0\.0\.1:\d+/events")
        with reader(started.found(LINK)) as client:
            assert (
                httpx.post(events, content=call(1), headers=JSON, timeout=PATIENCE).status_code
                == 200
            )
            until(lambda: "1\u00a0decision." in client.get("/search?event=id-1").text)
            assert "No lease is held" in client.get("/workers").text
            assert ended_while_watched(client, started, signal.SIGTERM) == 0
        assert "it is kept in sqlite:///eventonce-history.db" in started.output
        assert (tmp_path / "eventonce-history.db").stat().st_mode & 0o077 == 0
        assert "Traceback" not in started.output


def test_a_dashboard_shows_a_worker_during_its_work(tmp_path: Path) -> None:
    capture = tmp_path / "calls.jsonl"
    capture.write_bytes(b"\n".join(call(number) for number in range(5_000)))
    words = ("run", "--from", "calls.jsonl", "--rate", "20", "--dashboard", "0")
    with running(tmp_path, *words) as started, reader(started.found(LINK)) as client:
        until(lambda: "received and not acknowledged yet" in client.get("/workers").text)
        until(lambda: "Healthy" in client.get("/").text)
        # The capture is not processed to its end.
        assert ended_while_watched(client, started, signal.SIGTERM) == 1
        assert "Traceback" not in started.output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_dashboard_alone_shows_the_decisions_of_an_earlier_worker(
    tmp_path: Path, number: int
) -> None:
    capture = tmp_path / "calls.jsonl"
    capture.write_bytes(b"\n".join(call(number) for number in range(5)))
    with running(tmp_path, "run", "--from", "calls.jsonl", "--dashboard", "0") as worked:
        assert worked.process.wait(PATIENCE) == 0, worked.output
    uri = "sqlite:///eventonce-history.db"
    words = ("dashboard", "--listen", "0", "--history", uri)
    with running(tmp_path, *words) as started, reader(started.found(LINK)) as client:
        page = client.get("/search")
        assert "5 decisions" in page.text.replace("\u00a0", " ")
        assert f"--history {uri}" in page.text
        assert "No process reports its leases" in client.get("/workers").text
        assert ended_while_watched(client, started, number) == 0
        assert "Traceback" not in started.output


SLOW = """
import pathlib, time

def handle(job):
    while not pathlib.Path("over").exists():
        time.sleep(0.01)
"""


def test_leases_of_a_worker_are_shown_by_another_process_also_after_a_kill(tmp_path: Path) -> None:
    """`run` reports its state; the page of another process, and its command, show the state."""
    (tmp_path / "slow.py").write_text(SLOW)
    (tmp_path / "calls.jsonl").write_bytes(b"\n".join(call(number) for number in range(3)))
    uri = "sqlite:///eventonce-history.db"
    words = ("run", "--from", "calls.jsonl", "--handler", "slow:handle", "--dashboard", "0")
    watching = ("dashboard", "--listen", "0", "--history", uri)
    with running(tmp_path, *words) as worked:
        worked.found(LINK)
        with running(tmp_path, *watching) as started, reader(started.found(LINK)) as client:
            until(lambda: client.get("/workers").text.count("/search?key=") == 3)
            (command,) = re.findall('<code id="command">(.*?)</code>', client.get("/workers").text)
            assert command == f"eventonce workers --history {uri}"
            worked.process.kill()
            worked.process.wait(PATIENCE)
            assert client.get("/workers").text.count("/search?key=") == 3
            said = pasted(tmp_path, command)
            assert said.returncode == 0, said.stderr
            (worker,) = msgspec.json.decode(said.stdout)
            (process,) = worker["processes"]
            assert (worker["consumer"], worker["channels"]) == ("crm", ["file"])
            assert process["process"].endswith(f":{worked.process.pid}")
            assert (process["running"], process["held"], process["in_flight"]) == (3, 3, 3)
            assert {it["type"] for it in process["leases"]} == {"call"}
            assert ended_while_watched(client, started, signal.SIGTERM) == 0
            assert "Traceback" not in started.output


def pasted(folder: Path, command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The answer of a shell to a command of a page."""
    shell = f'set -e; eventonce() {{ "{sys.executable}" -m eventonce "$@" --json; }}; {command}'
    return subprocess.run(
        ["bash", "-c", shell],
        cwd=folder,
        env=os.environ | environment,
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


@pytest.mark.parametrize("way", ["option", "environment", "option with a password"])
def test_a_command_of_a_page_finds_the_same_servers_in_a_shell(
    tmp_path: Path, node: valkey.Node, cluster: postgres.Cluster, way: str
) -> None:
    # Neither server asks for a password, and both take any.
    signed = "password" in way
    store = f"redis://{'default:s3cret@' if signed else ''}127.0.0.1:{node.port}/0"
    history = cluster.uri(user="postgres:s3cret" if signed else "postgres")
    with (
        Consumer(store, name="crm", handler=lambda _: None) as consumer,
        History(history) as kept,
    ):
        consumer.observers.append(kept.observer(consumer))
        consumer.process([call(1)])
    variables = {"EVENTONCE_STORE": store, "EVENTONCE_HISTORY": history}
    inherited = variables if way == "environment" else {}
    options = [] if inherited else ["--store", store, "--history", history]
    with (
        running(tmp_path, "dashboard", "--listen", "0", *options, **inherited) as started,
        reader(started.found(LINK)) as client,
    ):
        pages = {path: client.get(path).text for path in ("/store", "/search?event=id-1")}
    assert not any("s3cret" in page for page in pages.values())
    found = []
    for page in pages.values():
        (command,) = re.findall('<code id="command">(.*?)</code>', page)
        assert ("--store" in command or "--history" in command) == (way != "environment")
        said = pasted(tmp_path, html.unescape(command), **({} if way == "option" else variables))
        assert said.returncode == 0, (command, said.stderr)
        found.append(msgspec.json.decode(said.stdout))
        if signed:
            assert "EVENTONCE_" in pasted(tmp_path, html.unescape(command)).stderr
    stats, stories = found
    assert stats["records"] == 1
    assert stories[0]["decisions"][0]["id"] == "id-1"


def test_an_unknown_kind_of_store_is_refused_at_once(tmp_path: Path) -> None:
    said = subprocess.run(
        [sys.executable, "-m", "eventonce", "dashboard", "--listen", "0", "--store", "nowhere://x"],
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert said.returncode == 2
    assert "no store is called 'nowhere:'" in said.stderr
