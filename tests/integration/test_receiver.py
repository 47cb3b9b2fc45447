"""`eventonce serve` as a process: its answers, its limits, an outage of its store, and its end. The
tests of faulty clients are in `test_receiver_clients`."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from eventonce import Consumer
from tests.helpers import PATIENCE, until
from tests.servers import free_port
from tests.servers.receiver import JSON, Receiving, receiving
from tests.servers.valkey import serving

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
presets = []
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
    """A folder with a handler that waits while a file exists, and writes down its effects."""

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


def test_events_and_their_copies_are_answered(place: Place) -> None:
    with place.serving('answer_within = "1m"') as serving:
        assert serving.ask(call("a")).body["events"][0]["status"] == "done"
        assert serving.ask([call("a"), call("b")]).body["statuses"] == {"duplicate": 1, "done": 1}
        assert serving.ask(path="/health").status == 200
        # A store that takes more than two seconds to answer counts as away.
        until(lambda: bool(serving.ask(path="/ready").body["status"] == "ok"))
        assert serving.ask(path="/openapi.json").body["openapi"] == "3.1.0"


def test_a_tap_writes_each_event_that_arrives(place: Place) -> None:
    with place.serving("", "--tap", "arrivals.jsonl") as serving:
        for name in "aab":
            serving.ask(call(name))
        serving.process.send_signal(signal.SIGTERM)
        assert serving.ended()[0] == 0
    lines = (place.folder / "arrivals.jsonl").read_text().splitlines()
    assert [json.loads(line)["channel"] for line in lines] == ["http:/events"] * 3


def test_requests_beyond_the_concurrency_limit_are_answered_503_with_retry_after(
    place: Place,
) -> None:
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


def test_a_store_outage_is_answered_503_with_retry_after_and_work_resumes_afterwards(
    place: Place,
) -> None:
    port = free_port()
    store = f"redis://:hunter2@127.0.0.1:{port}"
    with place.serving('answer_within = "1m"', store=store) as receiver:
        answer = receiver.ask([call("a"), call("b")])
        assert answer.status == 503
        assert int(answer.headers["retry-after"]) >= 1
        assert [told["reason"] for told in answer.body["events"]] == ["the store is away"] * 2
        bad = receiver.ask(b"no event")
        assert (bad.status, bad.body["statuses"]) == (503, {"failed": 1})
        ready = receiver.ask(path="/ready")
        assert (ready.status, ready.body["status"]) == (503, "the store is away")
        assert f":{port}" not in str([answer, bad, ready])
        assert place.effects() == []
        with serving(port=port) as node:
            node.client().config_set("requirepass", "hunter2")
            until(lambda: receiver.ask([call("a"), call("b")]).status == 200)
        assert sorted(place.effects()) == ["a", "b"]
        assert receiver.ask(call("c")).status == 503
        assert "hunter2" not in receiver.log.read_text()


@pytest.mark.parametrize(
    "waiting", [True, False], ids=["answered after the handler", "answered before the handler"]
)
def test_sigterm_lets_events_in_flight_finish_and_settle(place: Place, waiting: bool) -> None:
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


def test_a_handler_that_outlasts_the_drain_is_stopped_and_its_event_is_freed_at_once(
    place: Place,
) -> None:
    _ended_by(place, [signal.SIGTERM], "drain = 1")


def test_a_second_interrupt_ends_the_receiver_without_waiting_for_handlers(place: Place) -> None:
    _ended_by(place, [signal.SIGINT, signal.SIGINT], 'drain = "1h"')


def _ended_by(place: Place, signals: list[signal.Signals], settings: str) -> None:
    """A handler that never returns is stopped, its sender is answered 503, its event is free."""
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
    assert "ending; requests under way: 1, which may take up to" in serving.log.read_text()
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


def test_a_receiver_without_authentication_listens_only_on_loopback(place: Place) -> None:
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
    by_environment = served("--host", "0.0.0.0", EVENTONCE_ANYONE_MAY_SEND_EVENTS="1")
    assert by_environment.returncode == 2
    assert served("--host", "203.0.113.1", EVENTONCE_API_KEYS="k").returncode == 2


@pytest.mark.parametrize(
    ("options", "env"),
    [
        (("--host", "0.0.0.0", "--anyone-may-send-events"), {}),
        (("--host", "0.0.0.0"), {"EVENTONCE_API_KEYS": "old-hunter2 new-hunter2"}),
        (("--host", "localhost"), {}),
    ],
)
def test_a_receiver_listens_with_a_key_with_the_explicit_option_or_on_localhost(
    place: Place, options: tuple[str, ...], env: dict[str, str]
) -> None:
    with place.serving('answer_within = "1m"', *options, store="memory:", env=env) as serving:
        keys = env.get("EVENTONCE_API_KEYS", "").split()
        assert serving.ask(call("a")).status == (401 if keys else 200)
        for key in keys:
            answer = serving.ask(call(key), headers={**JSON, "x-api-key": key})
            assert answer.status == 200
        serving.process.send_signal(signal.SIGINT)
        code, said = serving.ended()
        assert code == 0
        assert "hunter2" not in serving.log.read_text() + said
