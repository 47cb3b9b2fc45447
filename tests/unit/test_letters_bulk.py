"""Actions on many dead letters: limits, stops, reports and audit lines."""

from __future__ import annotations

import json
import os
import signal
import sys
import tracemalloc
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from stat import S_IMODE
from typing import Any

import pytest

from eventonce import Consumer
from eventonce.audit import Audit
from eventonce.aws.dlq import FoundLetter
from eventonce.errors import ConfigError
from eventonce.letters import bulk
from eventonce.letters.selection import Selection
from eventonce.stores.sqlite import SQLiteStore
from tests.helpers import Run, audit_of, call, reject, ruled
from tests.unit.test_letters_selection import letter

MANY = 50


@pytest.fixture
def run(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """`letters` in a folder whose store has fifty dead letters."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("eventonce.audit.getuser", lambda: "anna")
    Path("eventonce.toml").write_text(
        'store = "sqlite:///store.db"\nname = "crm"\naudit = "audit.jsonl"\n'
        '[[rule]]\nname = "call"\nmatch = "call"\nkey = ["detail.call"]\n'
    )
    with Consumer("sqlite:///store.db", name="crm", rules=ruled(), handler=reject) as consumer:
        consumer.process([call(number) for number in range(MANY)])
    return partial(run, "letters")


def audit() -> list[dict[str, Any]]:
    return audit_of(Path("audit.jsonl"))


def left(run: Run) -> int:
    return len(run("list", "--json").documents)


def test_a_limit_takes_the_oldest_dead_letters(run: Run) -> None:
    oldest = [one["id"] for one in run("list", "--json", "--limit", "3").documents]
    assert len(oldest) == 3
    redriven = run("redrive", "--limit", "3", "--handler", "-", "--json")
    assert json.loads(redriven.err) == {"done": 3}
    assert len(redriven.documents) == 3
    assert not [one for one in run("list", "--json").documents if one["id"] in oldest]
    assert left(run) == MANY - 3
    assert json.loads(run("drop", "--limit", "7", "--yes", "--json").out) == {"dropped": 7}
    assert json.loads(run("export", "--limit", "2", "-o", "x", "--json").err) == {"exported": 2}
    assert left(run) == MANY - 10


def test_a_dry_run_of_drop_lists_the_dead_letters_and_keeps_them(run: Run) -> None:
    dry = run("drop", "--dry-run", "--limit", "2")
    assert dry.out.startswith("2 dead letters would be dropped\n")
    assert len(dry.out.splitlines()) == 4
    document = json.loads(run("drop", "--dry-run", "--json").out)
    assert (document["would_drop"], len(document["letters"])) == (MANY, MANY)
    assert left(run) == MANY
    assert not Path("audit.jsonl").exists()


STOPPING = """
import os, signal
runs = []
def take(job):
    runs.append(job.event.id)
    if len(runs) == 30:
        os.kill(os.getpid(), signal.SIGINT)
"""


def test_ctrl_c_stops_after_the_batch_under_way_and_reports_the_number_left(run: Run) -> None:
    Path("stopping.py").write_text(STOPPING)
    # A program that a shell starts in the background ignores Ctrl-C.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    stopped = run("redrive", "--handler", "stopping:take")
    sys.modules.pop("stopping")
    assert stopped.code == 130
    assert "stopped after 40; 10 dead letters of this selection left" in stopped.err
    assert left(run) == 10
    (line,) = audit()
    assert (line["action"], line["counts"], line["ended"]) == ("redrive", {"done": 40}, "stopped")
    assert signal.signal(signal.SIGINT, before) is signal.default_int_handler
    assert json.loads(run("redrive", "--handler", "-", "--json").err) == {"done": 10}, "it goes on"


def test_every_action_leaves_its_audit_line(run: Run) -> None:
    run("redrive", "--limit", "2", "--rule", "call", "--handler", "-")
    run("export", "--limit", "1", "-o", "x")
    run("drop", "--limit", "3", "--yes")
    lines = audit()
    assert [(one["action"], one["counts"], one["selection"]) for one in lines] == [
        ("redrive", {"done": 2}, "--name=crm --rule=call --limit=2"),
        ("export", {"exported": 1}, "--name=crm --limit=1"),
        ("drop", {"dropped": 3}, "--name=crm --limit=3"),
    ]
    assert {(one["who"], one["via"], one["ended"]) for one in lines} == {
        ("anna", "cli", "finished")
    }
    assert S_IMODE(Path("audit.jsonl").stat().st_mode) == 0o600
    assert "id-" not in Path("audit.jsonl").read_text(), "nothing of an event"


def test_an_action_that_fails_leaves_its_audit_line_too(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    dropped, calls = SQLiteStore.drop_letters, iter(range(10))

    def fails_later(self: SQLiteStore, ids: list[str]) -> int:
        if next(calls):
            raise RuntimeError("+49 89 1234")
        return dropped(self, ids)

    monkeypatch.setattr(SQLiteStore, "drop_letters", fails_later)
    with pytest.raises(RuntimeError):
        run("drop", "--yes")
    (line,) = audit()
    assert (line["counts"], line["ended"]) == ({"dropped": 20}, "RuntimeError")


def full(_: Audit, line: bytes) -> None:
    """A full disk: a file can be opened, and no line can be written."""
    if line:
        raise ConfigError("audit: audit.jsonl cannot be written: No space left on device")


@pytest.mark.parametrize("action", ["redrive", "drop", "export"])
@pytest.mark.parametrize("opens", [False, True])
def test_nothing_is_done_where_its_audit_cannot_be_written(
    run: Run, monkeypatch: pytest.MonkeyPatch, action: str, opens: bool
) -> None:
    if opens:
        monkeypatch.setattr(Audit, "_append", full)
    else:
        Path("audit.jsonl").mkdir()
    options = {"drop": ["--yes"], "redrive": ["--handler", "-"]}
    refused = run(action, *options.get(action, []))
    assert (refused.code, refused.out) == (2, "")
    assert "audit: audit.jsonl cannot be written" in refused.err
    assert left(run) == MANY


def test_progress_is_shown_only_on_a_terminal(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("taking.py").write_text("def take(job): pass\n")
    assert "\r" not in run("redrive", "--limit", "21", "--handler", "taking:take").err
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    shown = run("redrive", "--limit", "21", "--handler", "taking:take").err
    sys.modules.pop("taking")
    assert [part.removesuffix("\x1b[K") for part in shown.split("\n")[0].split("\r")] == [
        "",
        "20 done",
        "21 done",
    ]


class Reading:
    """A source of dead letters that records how far it was read."""

    def __init__(self) -> None:
        self.read_so_far = 0

    def read(self, *, ordered: bool = False) -> Iterator[list[FoundLetter]]:
        assert not ordered
        for start in range(0, 10_000, 10):
            self.read_so_far = start + 10
            yield [FoundLetter(letter(start + one)) for one in range(10)]


def test_dead_letters_are_read_only_for_the_batch_under_way() -> None:
    place: Any = Reading()
    for number, some in enumerate(bulk.selected(place, Selection(), bulk.Progress()), 1):
        assert len(some) == bulk.RUN_TOGETHER
        assert place.read_so_far <= number * bulk.RUN_TOGETHER + 10
    assert number == 500


def test_a_drop_does_not_hold_the_events_of_its_dead_letters_in_memory(run: Run) -> None:
    """32 MB of events, of which no more than two pages of the store are in memory."""
    with Consumer("sqlite:///store.db", name="crm", rules=ruled(), handler=reject) as consumer:
        for start in range(1_000, 2_600, 100):
            consumer.process([call(start + one, filler="x" * 20_000) for one in range(100)])
    tracemalloc.start()
    dropped = run("drop", "--yes", "--json")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert json.loads(dropped.out) == {"dropped": MANY + 1600}
    assert peak < 16_000_000


def test_an_audit_line_truncated_by_a_full_disk_is_an_error_and_the_next_line_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "audit.jsonl"
    record = partial(
        Audit(str(file)).record, "drop", id="1", who="ann", via="cli", selection="", counts={}
    )
    write = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda file, data: write(file, data[:20]))
        with pytest.raises(ConfigError, match=r"audit: .*audit\.jsonl cannot be written: No space"):
            record(ended="begun")
    record()
    cut, whole = file.read_bytes().splitlines()
    assert len(cut) == 20
    assert json.loads(whole)["ended"] == "finished"
