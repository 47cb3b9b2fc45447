"""`eventonce history`: the story of a call, from `run` to the words on the terminal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.helpers import Run, call, write_lines

CONFIG = """
store = "sqlite:///{folder}/store.db"
name = "crm"
[history]
store = "sqlite:///{folder}/history.db"
[[sink]]
match = "*"
to = "file:{folder}/out.jsonl"
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "crm.toml"
    path.write_text(CONFIG.format(folder=tmp_path))
    return path


def test_the_story_of_a_call_is_told(run: Run, config: Path, tmp_path: Path) -> None:
    spoken = {"detail-type": "call.ended", "source": "s", "detail": {"contactId": 4711}}
    other = {"detail-type": "call.ended", "source": "s", "detail": {"contactId": 4712}}
    capture = write_lines(
        tmp_path / "c.jsonl", *({"id": name, **spoken} for name in "aab"), {"id": "c", **other}
    )
    early = run("history", "-c", config, "--conversation", "4711")
    assert (early.code, early.err.count("there is no such file")) == (2, 1)
    assert run("run", "-c", config, "--from", capture).code == 0
    found = run("history", "-c", config, "--conversation", "4711")
    assert found.code == 0
    # Which of the two events was first is not said: handlers run side by side.
    head, *_, total = found.out.splitlines()
    assert head.endswith("  call.ended")
    assert found.out.count("\n  ran on worker ") == 2
    assert found.out.count("under the same transport id: delivered again") == 1
    assert total == "2 events, 3 decisions"
    (document,) = run("history", "-c", config, "--event", "c", "--json").documents[0]
    (decision,) = document["decisions"]
    assert (decision["conversation"], decision["status"]) == ("4712", "done")
    by_key = run("history", "-c", config, "--key", decision["key"], "--name", "crm", "--json")
    assert by_key.documents[0] == [document]


def test_nothing_found_is_told(run: Run, config: Path, tmp_path: Path) -> None:
    capture = tmp_path / "c.jsonl"
    capture.write_bytes(call(1))
    run("run", "-c", config, "--from", capture)
    for option in (("--conversation", "x"), ("--name", "other"), ("--status", "dead")):
        found = run("history", "-c", config, *option)
        assert (found.code, found.out) == (1, "\n")
        assert "the history has no such decision" in found.err
    assert run("history", "-c", config, "--since", "1h").code == 0
    assert run("history", "-c", config, "--until", "1970-01-01").code == 1
    for name in ("--conversation", "--event", "--key"):
        empty = run("history", "-c", config, name, "")
        assert (empty.code, "it is empty" in empty.err) == (2, True)
    wrong = run("history", "-c", config, "--key", "xyz")
    assert (wrong.code, "is not hexadecimal" in wrong.err) == (2, True)


def test_whoever_keeps_none_is_told_how(run: Run, tmp_path: Path) -> None:
    config = tmp_path / "crm.toml"
    config.write_text('store = "memory:"')
    told = run("history", "-c", config)
    assert told.code == 2
    assert "[history]" in told.err
    config.write_text('[history]\nstore = "redis://127.0.0.1"\nkeep = "0s"\nmost = 0')
    wrong = run("check", config)
    assert wrong.code == 2
    for field in ("history.store", "history.keep", "history.most"):
        assert field in wrong.err


def test_show_tells_what_was_decided_whoever_the_consumer_is(
    run: Run, config: Path, tmp_path: Path
) -> None:
    event = tmp_path / "event.json"
    event.write_bytes(call(1))
    capture = write_lines(tmp_path / "c.jsonl", *[json.loads(call(1))] * 2)
    early = run("show", "-c", config, event)
    assert early.code == 2
    run("run", "-c", config, "--from", capture, "--name", "other")
    found = run("show", "-c", config, event)
    assert found.code == 0
    assert "found under the name 'other'" in found.err
    assert "ran on worker " in found.out
    assert "1 copy since" in found.out
    document = run("show", "-c", config, event, "--json").documents[0]
    assert len(document["history"]) == 2
    (tmp_path / "store.db").unlink()
    run("store", "create", f"sqlite:///{tmp_path}/store.db")
    # The store has forgotten it, and the history has not.
    forgotten = run("show", "-c", config, document["key"])
    assert (forgotten.code, "ran on worker " in forgotten.out) == (0, True)


def test_show_tells_of_the_record_where_the_history_is_away(
    run: Run, config: Path, tmp_path: Path
) -> None:
    event = tmp_path / "event.json"
    event.write_bytes(call(1))
    run("run", "-c", config, "--from", event)
    history = tmp_path / "history.db"
    for one in tmp_path.glob("history.db*"):
        one.unlink()
    history.touch()
    found = run("show", "-c", config, event)
    assert (found.code, ": done" in found.out) == (0, True)
    assert "the history does not answer" in found.err
