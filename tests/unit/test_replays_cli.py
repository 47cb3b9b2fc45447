"""Archive replays on the command line: the events that `filter` passes on, and `explain`."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.helpers import Run, write_lines

STORE = ("--store", "sqlite:///store.db")


class Passed(NamedTuple):
    code: int
    passed: list[str]
    """The names of the replays whose events were passed on; empty for live events."""
    err: str


Filter = Callable[..., Passed]


@pytest.fixture
def filtered(run: Run) -> Filter:
    def filtered(policy: str, events: list[dict[str, Any]], *options: str) -> Passed:
        Path("rules.toml").write_text(
            f'[[rule]]\nname = "call"\nkey = ["detail.call"]\non_replay = "{policy}"\n'
        )
        write_lines(Path("events.jsonl"), *events)
        done = run("filter", "events.jsonl", "-c", "rules.toml", "--json", *options)
        passed = [event.get("replay-name", "") for event in done.documents]
        return Passed(done.code, passed, done.err)

    return filtered


def call(replay: str = "", days: float = 0) -> dict[str, Any]:
    time = (datetime.now(UTC) - timedelta(days=days)).isoformat()
    named = {"replay-name": replay} if replay else {}
    return {"id": "1", "detail-type": "call", "time": time, "detail": {"call": 1}} | named


def test_a_missing_event_of_a_replay_is_passed_on_once(filtered: Filter) -> None:
    assert filtered("missing", [call("a"), call("a"), call()], *STORE).passed == ["a"]
    assert filtered("missing", [call("b")], *STORE).passed == []


def test_a_forced_replay_passes_an_event_on_once_for_each_replay(filtered: Filter) -> None:
    events = [call(), call("a"), call("a"), call("b", days=30)]
    assert filtered("force", events, *STORE).passed == ["", "a", "b"]
    assert filtered("force", events, *STORE).passed == []


def test_a_replay_older_than_the_remembered_time_is_refused_with_the_reason(
    filtered: Filter,
) -> None:
    refused = filtered("missing", [call("a", days=11)], *STORE)
    assert (refused.code, refused.passed) == (1, [])
    reject, counts = map(json.loads, refused.err.splitlines())
    assert reject["status"] == "dead"
    assert "longer ago than the 10 days" in reject["reason"]
    assert counts["statuses"] == {"dead": 1}


def test_a_live_event_is_no_copy_of_a_replay_that_was_refused_before(
    filtered: Filter,
) -> None:
    assert filtered("missing", [call("a", days=11), call()], *STORE).passed == [""]
    known = filtered("missing", [call("a", days=11)], *STORE)
    assert (known.code, json.loads(known.err)["statuses"]) == (0, {"duplicate": 1})


def test_without_a_store_no_replay_is_too_old(filtered: Filter) -> None:
    assert filtered("missing", [call("a", days=11), call("a", days=11)]).passed == ["a"]


def test_a_reported_replay_is_not_passed_on(filtered: Filter) -> None:
    reported = filtered("report", [call("a"), call(), call("a")], *STORE)
    assert (reported.code, reported.passed) == (0, [""])
    reject, counts = map(json.loads, reported.err.splitlines())
    assert reject["reason"] == "replay, reported only: it has no effect yet and would run"
    assert counts["statuses"] == {"ignored": 1, "done": 1, "duplicate": 1}


def test_explain_shows_a_forced_replay_as_a_part_of_the_key(filtered: Filter, run: Run) -> None:
    filtered("force", [call()])
    Path("live.json").write_text(json.dumps(call()))
    Path("replay.json").write_text(json.dumps(call("friday")))

    def explained(*files: str) -> str:
        return run("explain", *files, "-c", "rules.toml").out

    told = " ".join(explained("replay.json").split())
    assert "replay friday (a part of the key, because it is forced)" in told
    assert "replay" not in explained("live.json")
    compared = [line.split() for line in explained("live.json", "replay.json").splitlines()]
    assert ["replay", "(none)", "friday"] in compared
