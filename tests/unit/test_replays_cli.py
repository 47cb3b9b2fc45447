"""Archive replays on the command line: what `filter` passes on, and what `explain` says of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from eventonce.cli import main

STORE = ("--store", "sqlite:///store.db")


class Result(NamedTuple):
    code: int
    passed: list[str]
    """The names of the replays whose events were passed on; empty for what came live."""
    err: str


Run = Callable[..., Result]


@pytest.fixture
def run(
    capsysbinary: pytest.CaptureFixture[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EVENTONCE_STORE", raising=False)

    def run(policy: str, events: list[dict[str, Any]], *options: str) -> Result:
        Path("rules.toml").write_text(
            f'[[rule]]\nname = "call"\nkey = ["detail.call"]\non_replay = "{policy}"\n'
        )
        Path("events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
        with pytest.raises(SystemExit) as stop:
            main(["filter", "events.jsonl", "-c", "rules.toml", "--json", *options])
        out, err = capsysbinary.readouterr()
        passed = [json.loads(line).get("replay-name", "") for line in out.splitlines()]
        return Result(int(stop.value.code or 0), passed, err.decode())

    return run


def call(replay: str = "", days: float = 0) -> dict[str, Any]:
    time = (datetime.now(UTC) - timedelta(days=days)).isoformat()
    named = {"replay-name": replay} if replay else {}
    return {"id": "1", "detail-type": "call", "time": time, "detail": {"call": 1}} | named


def test_a_replay_is_passed_on_where_it_is_missing(run: Run) -> None:
    assert run("missing", [call("a"), call("a"), call()], *STORE).passed == ["a"]
    assert run("missing", [call("b")], *STORE).passed == []


def test_a_forced_replay_is_passed_on_once_a_replay(run: Run) -> None:
    events = [call(), call("a"), call("a"), call("b", days=30)]
    assert run("force", events, *STORE).passed == ["", "a", "b"]
    assert run("force", events, *STORE).passed == []


def test_a_replay_older_than_what_the_store_remembers_is_refused_with_the_reason(run: Run) -> None:
    refused = run("missing", [call("a", days=11)], *STORE)
    assert (refused.code, refused.passed) == (1, [])
    reject, counts = map(json.loads, refused.err.splitlines())
    assert reject["status"] == "dead"
    assert "longer ago than the 10 days" in reject["reason"]
    assert counts["statuses"] == {"dead": 1}


def test_what_comes_live_is_no_copy_of_a_replay_that_was_refused_beside_it(run: Run) -> None:
    assert run("missing", [call("a", days=11), call()], *STORE).passed == [""]
    known = run("missing", [call("a", days=11)], *STORE)
    assert (known.code, json.loads(known.err)["statuses"]) == (0, {"duplicate": 1})


def test_where_nothing_is_remembered_no_replay_is_too_old(run: Run) -> None:
    assert run("missing", [call("a", days=11), call("a", days=11)]).passed == ["a"]


def test_a_reported_replay_is_not_passed_on(run: Run) -> None:
    reported = run("report", [call("a"), call(), call("a")], *STORE)
    assert (reported.code, reported.passed) == (0, [""])
    reject, counts = map(json.loads, reported.err.splitlines())
    assert reject["reason"] == "replay, reported only: it has no effect yet and would run"
    assert counts["statuses"] == {"ignored": 1, "done": 1, "duplicate": 1}


def test_explain_shows_the_replay_that_is_a_part_of_the_key(
    run: Run, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    run("force", [call()])
    Path("live.json").write_text(json.dumps(call()))
    Path("replay.json").write_text(json.dumps(call("friday")))

    def explained(*files: str) -> str:
        with pytest.raises(SystemExit):
            main(["explain", *files, "-c", "rules.toml"])
        return capsysbinary.readouterr().out.decode()

    assert "replay friday (a part of the key, for it is forced)" in explained("replay.json")
    assert "replay" not in explained("live.json")
    compared = explained("live.json", "replay.json").splitlines()
    assert compared[-1].split() == ["replay", "(none)", "friday"]
