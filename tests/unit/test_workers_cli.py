"""`eventonce workers`: the workers, their leases, and the workers that have stopped reporting."""

from __future__ import annotations

from pathlib import Path

import pytest

from eventonce import Consumer
from eventonce.clock import wall_clock
from eventonce.history import History
from eventonce.history.leases import Lease, Load, WorkerState
from tests.helpers import Run, call, ruled

LEASE = Lease("call.ended", "calls", 2, "ab" * 16, 0, 0, 60_000)
NOW = wall_clock()


@pytest.fixture
def uri(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A history of two decisions, with the states that two processes have reported."""
    monkeypatch.setattr("eventonce.cli.workers.wall_clock", lambda: NOW)
    monkeypatch.setattr("eventonce.history.recorder.wall_clock", lambda: NOW)
    uri = f"sqlite:///{tmp_path}/history.db"
    with History(uri, worker="w1") as kept:
        crm = Consumer("memory:", name="crm", rules=ruled(), handler=lambda _: None)
        crm.observers.append(kept.observer(crm, "sqs:calls"))
        crm.process([call(1), call(2)])
    early = NOW - 180_000
    held = Lease("call.ended", "calls", 2, "ab" * 16, early - 9_000, early, 240_000, "overdue")
    states = [
        WorkerState("w1", "crm", "sqs:calls", "a:1", NOW - 60_000, NOW - 2_000, Load(0, 0, 3)),
        WorkerState("w2", "billing", "", "b:1", early, early, Load(300, 1, None, (held, LEASE))),
    ]
    with History(uri) as kept, kept._tables() as tables:
        tables.states.tell(states)
    return uri


def test_workers_are_listed_with_their_leases_and_a_silent_worker_is_named(
    run: Run, uri: str
) -> None:
    listed = run("workers", "--history", uri)
    assert listed.code == 0
    workers, leases, *said = listed.out.strip().split("\n\n")
    cells = [line.split("  ") for line in workers.splitlines()]
    head, first, second = ([cell.strip() for cell in row if cell.strip()] for row in cells)
    assert head[:4] == ["worker", "consumer", "channel", "heard of"]
    assert first[:7] == ["w1", "crm", "sqs:calls", "2 s ago", "2", "0", "0"]
    assert first[8:] == ["3", "0"]
    assert second == [*("w2", "billing", "unknown", "3 minutes ago", "0", "0", "0", "none", "300")]
    _, running, waiting = (line.split() for line in leases.splitlines())
    assert running == [
        *("w2", "call.ended", "calls", "2", "189", "s", "3", "minutes", "ago", "240", "s"),
        *("ab" * 16, "overdue"),
    ]
    assert waiting == [
        "w2",
        "call.ended",
        "calls",
        "2",
        "waits",
        "not",
        "held",
        "60",
        "s",
        "ab" * 16,
    ]
    stale, bounded = said
    assert stale.startswith("w2 was last heard of 3 minutes ago; if it was killed, its leases ")
    assert bounded == "Of 300 leases of w2, those of the 2 oldest runs are shown."


def test_json_has_the_same_workers_in_numbers(run: Run, uri: str) -> None:
    ((first, second),) = run("workers", "--history", uri, "--json").documents
    assert (first["worker"], first["events"], first["heard_of"]) == ("w1", 2, NOW - 2_000)
    assert first["last_decision"] == NOW // 60_000 * 60_000
    (process,) = first["processes"]
    assert (process["stale"], process["in_flight"], process["leases"]) == (False, 3, [])
    (process,) = second["processes"]
    assert (process["stale"], process["held"], second["last_decision"]) == (True, 300, None)
    held, waiting = process["leases"]
    assert (held["ends"], waiting["ends"]) == (NOW + 60_000, None)
    assert held["key"] == "ab" * 16
    ((only,),) = run("workers", "--history", uri, "--name", "billing", "--json").documents
    assert only == second


def test_the_absence_of_workers_or_of_a_history_is_reported(
    run: Run, uri: str, tmp_path: Path
) -> None:
    nobody = run("workers", "--history", uri, "--name", "nobody")
    assert (nobody.code, nobody.out.strip()) == (1, "")
    assert "no worker of the consumer 'nobody' has decided anything in the last hour" in nobody.err
    missing = run("workers", "--history", f"sqlite:///{tmp_path}/none.db")
    assert (missing.code, "there is no such file" in missing.err) == (2, True)
    config = tmp_path / "crm.toml"
    config.write_text('store = "memory:"\nname = "crm"\n')
    without = run("workers", "-c", config)
    assert (without.code, "no history is kept" in without.err) == (2, True)
