"""`eventonce serve` as a process, over real sockets: what slow, large and many clients can do to
it, what it does when its store is away, and how it ends."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from eventonce import Consumer
from tests.servers import PATIENCE, free_port
from tests.servers.receiver import JSON, Receiving, receiving
from tests.servers.valkey import serving, until

HANDLER = """
import asyncio
import time
from pathlib import Path

def handle(job):
    name = job.event.detail["call"]
    Path(f"began-{name}").touch()
    while Path(f"wait-{name}").exists():
        time.sleep(0.02)
    with open("effects", "a") as effects:
        effects.write(name + "\\n")

async def linger(job):
    Path(f"began-{job.event.detail['call']}").touch()
    try:
        await asyncio.sleep(600)
    finally:
        await asyncio.sleep(0.5)
"""
SETTINGS = """
store = "{store}"
name = "desk"
rules = ["./rules.toml"]
[[sink]]
to = "handlers:handle"
[serve]
{more}
"""
RULES = """
[[rule]]
name = "call"
match = { type = "call" }
key = ["detail.call"]
"""


class Place:
    """A folder with a handler that waits where a file says so, and notes its effects."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "handlers.py").write_text(HANDLER)
        (folder / "rules.toml").write_text(RULES)

    def serving(
        self, more: str = "", *options: str, store: str = "sqlite:///desk.db", **named: Any
    ) -> Any:
        settings = SETTINGS.format(store=store, more=more)
        return receiving(self.folder, settings, *options, **named)

    def hold(self, name: str) -> None:
        (self.folder / f"wait-{name}").touch()

    def free(self, name: str) -> None:
        (self.folder / f"wait-{name}").unlink()

    def began(self, name: str) -> None:
        until((self.folder / f"began-{name}").exists)

    def effects(self) -> list[str]:
        file = self.folder / "effects"
        return file.read_text().split() if file.exists() else []


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def call(name: str) -> dict[str, Any]:
    return {"id": name, "detail-type": "call", "source": "s", "detail": {"call": name}}


def rest(line: socket.socket) -> bytes:
    """What still comes until the server ends the connection."""
    said = b""
    try:
        while piece := line.recv(65_536):
            said += piece
    except ConnectionResetError:
        pass
    return said


HEAD = b"POST /events HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Receiving]:
    place = Place(tmp_path_factory.mktemp("patient"))
    with place.serving('max_body = 100_000\nanswer_within = "1m"') as serving:
        yield serving


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Receiving]:
    """A receiver whose clients must be quick: nothing is sent to it that must arrive."""
    place = Place(tmp_path_factory.mktemp("impatient"))
    with place.serving('header_timeout = "300ms"\nbody_timeout = "300ms"') as serving:
        yield serving


def test_events_and_their_copies_are_answered(patient: Receiving) -> None:
    assert patient.ask(call("a")).body["events"][0]["status"] == "done"
    assert patient.ask([call("a"), call("b")]).body["statuses"] == {"duplicate": 1, "done": 1}
    assert patient.ask(path="/health").status == 200
    assert patient.ask(path="/ready").body == {"status": "ok"}
    assert patient.ask(path="/openapi.json").body["openapi"] == "3.1.0"


def test_a_body_that_is_declared_too_large_is_refused_before_it_is_sent(
    patient: Receiving,
) -> None:
    with patient.connect() as line:
        line.sendall(HEAD + b"content-length: 100001\r\nexpect: 100-continue\r\n\r\n")
        assert line.recv(65_536).startswith(b"HTTP/1.1 413")


def test_a_chunked_body_that_grows_too_large_is_refused_while_it_is_sent(
    patient: Receiving,
) -> None:
    chunk = b"1000\r\n" + b" " * 0x1000 + b"\r\n"
    with patient.connect() as line:
        line.sendall(HEAD + b"transfer-encoding: chunked\r\n\r\n" + chunk * 30 + b"0\r\n\r\n")
        assert line.recv(65_536).startswith(b"HTTP/1.1 413")


def test_clients_that_do_not_finish_their_headers_are_cut_off(impatient: Receiving) -> None:
    beginnings = [b"", b"POST /ev", HEAD, HEAD + b"x-long: "]
    with ExitStack() as stack:
        lines = [stack.enter_context(impatient.connect()) for _ in beginnings]
        for line, said in zip(lines, beginnings, strict=True):
            line.sendall(said)
        assert [rest(line) for line in lines] == [b""] * len(lines)
    assert impatient.ask(path="/health").status == 200


CUT_OFF = r"reset|[Bb]roken pipe"


def _drip(line: socket.socket, piece: bytes) -> None:
    """Send a little again and again, until the server has ended the connection."""
    pause = threading.Event()
    for _ in range(PATIENCE * 20):
        line.sendall(piece)
        pause.wait(0.05)


def test_a_client_that_drips_its_headers_is_cut_off(impatient: Receiving) -> None:
    with impatient.connect() as line:
        line.sendall(HEAD)
        with pytest.raises(OSError, match=CUT_OFF):
            _drip(line, b"x-a: b\r\n")


def test_a_second_request_on_a_connection_has_no_more_time_than_the_first(
    impatient: Receiving,
) -> None:
    with impatient.connect() as line:
        line.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        assert line.recv(65_536).startswith(b"HTTP/1.1 200")
        with pytest.raises(OSError, match=CUT_OFF):
            _drip(line, b"x")


@pytest.mark.parametrize(
    "said",
    [HEAD + b"content-length: 50\r\n\r\n{", HEAD + b"transfer-encoding: chunked\r\n\r\n1\r\n{\r\n"],
    ids=["declared", "chunked"],
)
def test_a_client_that_does_not_finish_its_body_gets_408_and_is_cut_off(
    impatient: Receiving, said: bytes
) -> None:
    with impatient.connect() as line:
        line.sendall(said)
        assert rest(line).startswith(b"HTTP/1.1 408")


def test_a_client_that_drips_its_body_gets_no_more_time(impatient: Receiving) -> None:
    with impatient.connect() as line:
        line.sendall(HEAD + b"content-length: 90000\r\n\r\n")
        with pytest.raises(OSError, match=CUT_OFF):
            _drip(line, b" ")


def test_a_client_that_goes_on_sending_after_its_answer_is_cut_off(impatient: Receiving) -> None:
    with impatient.connect() as line:
        line.sendall(HEAD + b"content-length: 100000000\r\n\r\n")
        assert line.recv(65_536).startswith(b"HTTP/1.1 413")
        with pytest.raises(OSError, match=CUT_OFF):
            _drip(line, b" " * 100)


def test_a_client_that_does_not_read_its_answers_is_cut_off(impatient: Receiving) -> None:
    with impatient.connect() as line, pytest.raises(OSError, match=CUT_OFF):
        _drip(line, b"GET /openapi.json HTTP/1.1\r\nhost: x\r\n\r\n" * 500)


def test_headers_without_end_are_refused(patient: Receiving) -> None:
    with patient.connect() as line:
        line.sendall(HEAD)
        with pytest.raises(OSError, match=CUT_OFF):
            _drip(line, b"x-a: " + b"b" * 10_000 + b"\r\n")


def test_who_only_keeps_connections_open_shuts_nobody_out(place: Place) -> None:
    with place.serving('concurrency = 1\nheader_timeout = "10m"') as serving, ExitStack() as stack:
        lines = [stack.enter_context(serving.connect()) for _ in range(50)]
        assert serving.ask(call("a")).status == 200
        # The first ones gave way; the last are there still.
        assert rest(lines[0]) == b""
        lines[-1].sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        assert lines[-1].recv(65_536).startswith(b"HTTP/1.1 200")


def test_more_requests_than_the_bound_are_sent_away_for_a_moment(place: Place) -> None:
    place.hold("a")
    place.hold("b")
    answers: list[int] = []
    with place.serving('concurrency = 2\nanswer_within = "1m"') as serving, ExitStack() as stack:
        threads = [
            threading.Thread(
                target=lambda name=name: answers.append(serving.ask(call(name)).status)
            )
            for name in "ab"
        ]
        for thread in threads:
            thread.start()
            stack.callback(thread.join)
        place.began("a")
        place.began("b")
        answer = serving.ask(call("c"))
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        assert serving.ask(path="/health").status == 200
        place.free("a")
        place.free("b")
        for thread in threads:
            thread.join(PATIENCE)
        assert serving.ask(call("c")).status == 200
    assert answers == [200, 200]
    assert sorted(place.effects()) == ["a", "b", "c"]


def test_a_store_that_is_away_is_503_with_retry_after_and_work_goes_on_when_it_is_back(
    place: Place,
) -> None:
    port = free_port()
    store = f"redis://:hunter2@127.0.0.1:{port}"
    with place.serving(store=store) as receiver:
        answer = receiver.ask([call("a"), call("b")])
        assert answer.status == 503
        assert int(answer.headers["retry-after"]) >= 1
        assert [told["reason"] for told in answer.body["events"]] == ["the store is away"] * 2
        bad = receiver.ask(b"no event")
        assert (bad.status, bad.body["statuses"]) == (503, {"failed": 1})
        ready = receiver.ask(path="/ready")
        assert (ready.status, ready.body) == (503, {"status": "the store is away"})
        assert str(port) not in str([answer, bad, ready])
        assert place.effects() == []
        with serving(port=port) as node:
            node.client().config_set("requirepass", "hunter2")
            until(lambda: receiver.ask([call("a"), call("b")]).status == 200)
        assert sorted(place.effects()) == ["a", "b"]
        assert receiver.ask(call("c")).status == 503
        assert "hunter2" not in receiver.log.read_text()


@pytest.mark.parametrize("waiting", [True, False], ids=["answered in time", "answered before"])
def test_sigterm_lets_what_is_under_way_finish_and_settle(place: Place, waiting: bool) -> None:
    place.hold("a")
    answers: list[Any] = []
    with place.serving(f"answer_within = {60 if waiting else 0.1}") as serving:
        asking = threading.Thread(target=lambda: answers.append(serving.ask(call("a"))))
        asking.start()
        place.began("a")
        if not waiting:
            asking.join(PATIENCE)
        serving.process.send_signal(signal.SIGTERM)
        until(lambda: _refuses(serving))
        assert serving.process.poll() is None
        place.free("a")
        asking.join(PATIENCE)
        code, said = serving.ended()
    assert code == 0
    assert json.loads(said) == {"statuses": {"done": 1}}
    assert answers[0].status == (200 if waiting else 429)
    assert place.effects() == ["a"]
    with Consumer(f"sqlite:///{place.folder}/desk.db", name="desk", rules=_rules(place)) as later:
        later.on()(lambda _: None)
        assert later.process(call("a"))[0].status == "duplicate"


def test_what_outlasts_the_drain_is_stopped_and_its_event_is_free_at_once(place: Place) -> None:
    _ended_by(place, [signal.SIGTERM], "drain = 1")


def test_who_interrupts_it_twice_does_not_wait_for_its_handlers(place: Place) -> None:
    _ended_by(place, [signal.SIGINT, signal.SIGINT], 'drain = "1h"')


def _ended_by(place: Place, signals: list[signal.Signals], settings: str) -> None:
    """A handler that never returns is stopped, its sender told to come again, its event free."""
    answers: list[Any] = []
    more = f'{settings}\nanswer_within = "1m"'
    with place.serving(more, "--handler", "handlers:linger") as serving:
        asking = threading.Thread(target=lambda: answers.append(serving.ask(call("a"))))
        asking.start()
        place.began("a")
        for number in signals:
            serving.process.send_signal(number)
            until(lambda: _refuses(serving))
        code, _ = serving.ended()
        asking.join(PATIENCE)
    assert code == 0
    assert (answers[0].status, answers[0].headers["retry-after"]) == (503, "1")
    assert answers[0].body == {"reason": "the receiver is ending: send again"}
    assert "Traceback" not in serving.log.read_text()
    with Consumer(f"sqlite:///{place.folder}/desk.db", name="desk", rules=_rules(place)) as later:
        later.on()(lambda job: job.attempt)
        (outcome,) = later.process(call("a"))
    assert (outcome.status, outcome.result) == ("done", 2)


def _refuses(serving: Receiving) -> bool:
    try:
        serving.connect().close()
    except ConnectionRefusedError:
        return True
    return False


def _rules(place: Place) -> str:
    return str(place.folder / "rules.toml")


def test_without_authentication_it_listens_on_loopback_alone(place: Place) -> None:
    (place.folder / "eventonce.toml").write_text(
        SETTINGS.format(store="memory:", more='host = "0.0.0.0"\nport = 0')
    )

    def served(*options: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "eventonce", "serve", *options],
            cwd=place.folder,
            env={"PATH": "", **env},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )

    for options in ((), ("--host", ""), ("--host", "::")):
        refused = served(*options)
        assert refused.returncode == 2, refused
        assert "no authentication is set" in refused.stderr
        assert "--anyone-may-send-events" in refused.stderr
    assert served("--host", "203.0.113.1", EVENTONCE_API_KEYS="k").returncode == 2


@pytest.mark.parametrize(
    ("options", "env"),
    [
        (("--host", "0.0.0.0", "--anyone-may-send-events"), {}),
        (("--host", "0.0.0.0"), {"EVENTONCE_ANYONE_MAY_SEND_EVENTS": "1"}),
        (("--host", "0.0.0.0"), {"EVENTONCE_API_KEYS": "old-hunter2 new-hunter2"}),
        (("--host", "localhost"), {}),
    ],
)
def test_elsewhere_it_listens_only_with_a_key_or_if_told_so_at_length(
    place: Place, options: tuple[str, ...], env: dict[str, str]
) -> None:
    with place.serving("", *options, store="memory:", env=env) as serving:
        keys = env.get("EVENTONCE_API_KEYS", "").split()
        assert serving.ask(call("a")).status == (401 if keys else 200)
        for key in keys:
            answer = serving.ask(call(key), headers={**JSON, "x-api-key": key})
            assert answer.status == 200
        serving.process.send_signal(signal.SIGINT)
        code, said = serving.ended()
        assert code == 0
        assert "hunter2" not in serving.log.read_text() + said
