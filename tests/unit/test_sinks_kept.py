"""The sinks that store events locally: the JSON Lines file, and the table of a SQLite store."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from eventonce import Consumer, Job, Rule
from eventonce.sinks import JSONLines, Table
from tests.helpers import call
from tests.unit.test_sinks import CALL, job


def test_a_file_gets_one_whole_line_for_each_event(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    spread = b'{"id": "1",\r\n "detail-type": "call", "detail": {"call": 1}}'
    with Consumer("memory:", rules=CALL, handler=JSONLines(path)) as consumer:
        outcomes = consumer.process([spread, call(2), call(2)])
    assert [outcome.status for outcome in outcomes] == ["done", "done", "duplicate"]
    written = [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]
    assert [event["detail"]["call"] for event in written] == [1, 2]
    assert path.stat().st_mode & 0o007 == 0


@pytest.mark.parametrize("prefix", ["", "file:", "file://"])
def test_a_file_can_be_named_by_a_path_or_by_a_uri(tmp_path: Path, prefix: str) -> None:
    JSONLines(f"{prefix}{tmp_path}/events.jsonl")(job(call(1)))
    assert (tmp_path / "events.jsonl").read_bytes() == call(1) + b"\n"


def test_an_incomplete_line_is_not_joined_to_the_next_line(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(call(1) + b'\n{"id": "id-2", "det')
    sink = JSONLines(path)
    sink(job(call(2)))
    sink(job(call(3)))
    assert path.read_bytes().split(b"\n") == [
        call(1),
        b'{"id": "id-2", "det',
        call(2),
        call(3),
        b"",
    ]


def test_a_partly_written_line_is_removed_when_the_disk_is_full(tmp_path: Path) -> None:
    """A limit on the size of the file cuts the write short, as a full disk does."""
    path = tmp_path / "events.jsonl"
    sink = JSONLines(path)
    sink(job(call(1)))
    code = (
        "import resource, sys\n"
        "sys.dont_write_bytecode = True\n"
        "from tests.unit.test_sinks_kept import call, job, JSONLines\n"
        "room = len(call(1)) + 1 + 10\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))\n"
        "try:\n    JSONLines(sys.argv[1])(job(call(2)))\n"
        "except OSError as error:\n    sys.stdout.write(str(error))\n"
    )
    command = [sys.executable, "-c", code, str(path)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2]
    )
    assert "too large" in done.stdout
    sink(job(call(3)))
    assert path.read_bytes() == call(1) + b"\n" + call(3) + b"\n"


def test_a_line_is_synced_to_the_disk_before_the_sink_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "events.jsonl"
    synced: list[int] = []
    monkeypatch.setattr(
        "eventonce.sinks.json_lines.os.fsync", lambda fd: synced.append(os.fstat(fd).st_size)
    )
    JSONLines(path)(job(call(1)))
    assert len(call(1)) + 1 in synced


def test_threads_and_processes_append_whole_lines_to_one_file(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    code = (
        "import sys\n"
        "from tests.unit.test_sinks_kept import append_many\n"
        "append_many(sys.argv[1], int(sys.argv[2]))\n"
    )
    others = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(path), str(first)], cwd=Path(__file__).parents[2]
        )
        for first in (0, 100)
    ]
    threads = [threading.Thread(target=append_many, args=(path, first)) for first in (200, 300)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [other.wait(120) for other in others] == [0, 0]
    events = [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]
    numbers = sorted(event["detail"]["call"] for event in events)
    assert numbers == [first + number for first in (0, 100, 200, 300) for number in range(30)]


def append_many(path: str | Path, first: int) -> None:
    sink = JSONLines(path)
    for number in range(first, first + 30):
        sink(job(call(number, filler="x" * 20_000)))


def test_a_file_that_was_moved_away_is_created_again(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    sink = JSONLines(path)
    sink(job(call(1)))
    path.rename(tmp_path / "old.jsonl")
    sink(job(call(2)))
    assert path.read_bytes() == call(2) + b"\n"


@pytest.fixture
def database(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(tmp_path / "store.db")
    yield connection
    connection.close()


def through_table(tmp_path: Path, *events: bytes, **more: Any) -> list[Any]:
    uri = f"sqlite:///{tmp_path}/store.db"
    with Consumer(uri, rules=CALL, handler=Table("events"), **more) as consumer:
        return consumer.process(events)


def test_a_table_gets_one_row_for_each_event(tmp_path: Path, database: sqlite3.Connection) -> None:
    database.execute("CREATE TABLE events (effect_id text PRIMARY KEY, key, type, event)")
    outcomes = through_table(tmp_path, call(1), call(2), call(1))
    assert [outcome.status for outcome in outcomes] == ["done", "done", "duplicate"]
    rows = database.execute("SELECT effect_id, key, type, event FROM events").fetchall()
    assert {row[3].encode() for row in rows} == {call(1), call(2)}
    assert {row[0] for row in rows} == {outcome.key.hex() for outcome in outcomes}


def test_a_table_takes_an_event_once_for_ever(tmp_path: Path, database: sqlite3.Connection) -> None:
    """Even when the store has forgotten the event."""
    database.execute("CREATE TABLE events (effect_id text PRIMARY KEY, key, type, event)")
    (first,) = through_table(tmp_path, call(1))
    with Consumer(f"sqlite:///{tmp_path}/store.db", rules=CALL) as consumer:
        consumer.admin.forget([first.key])
    assert through_table(tmp_path, call(1))[0].status == "done"
    assert database.execute("SELECT count(*) FROM events").fetchone() == (1,)


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ("", "no such table: events"),
        ("CREATE TABLE events (effect_id text PRIMARY KEY, event)", "no column named key"),
        ("CREATE TABLE events (effect_id, key, type, event)", "ON CONFLICT"),
    ],
)
def test_a_missing_or_unsuitable_table_is_not_created_and_fails_the_event(
    tmp_path: Path, database: sqlite3.Connection, table: str, why: str
) -> None:
    database.execute(table)
    (outcome,) = through_table(tmp_path, call(1))
    assert outcome.status == "failed"
    for word in (why, "does not create it", "effect_id text PRIMARY KEY"):
        assert word in outcome.reason


def test_an_event_that_the_table_does_not_take_becomes_a_dead_letter(
    tmp_path: Path, database: sqlite3.Connection
) -> None:
    database.execute("CREATE TABLE events (effect_id text PRIMARY KEY, key, type UNIQUE, event)")
    first, second = through_table(tmp_path, call(1), call(2))
    assert (first.status, second.status) == ("done", "dead")
    assert "refuses this event" in second.reason


def test_a_table_takes_the_unguarded_events_of_a_shadow_rule(
    tmp_path: Path, database: sqlite3.Connection
) -> None:
    """A copy that is refused for lack of a transaction would be delivered again for ever."""
    database.execute("CREATE TABLE events (effect_id text PRIMARY KEY, key, type, event)")
    agent = Rule(
        name="a", match="agent", subject=["detail.a"], order="detail.v", state="id", shadow=True
    )

    def version(number: int) -> dict[str, Any]:
        return {"id": f"v{number}", "detail-type": "agent", "detail": {"a": 1, "v": number}}

    uri = f"sqlite:///{tmp_path}/store.db"
    with Consumer(uri, rules=agent, handler=Table("events")) as consumer:
        outcomes = [consumer.process([version(number)])[0] for number in (2, 2, 1)]
    assert [outcome.status for outcome in outcomes] == ["done", "unguarded", "unguarded"]
    assert database.execute("SELECT count(*) FROM events").fetchone() == (2,)


def test_the_writes_of_an_unguarded_handler_are_rolled_back_if_the_handler_fails(
    tmp_path: Path, database: sqlite3.Connection
) -> None:
    database.execute("CREATE TABLE events (effect_id text PRIMARY KEY, key, type, event)")
    shadow = msgspec.structs.replace(CALL, shadow=True)
    sink = Table("events")

    def fails(job: Job) -> None:
        sink(job)
        raise ValueError("after the row")

    uri = f"sqlite:///{tmp_path}/store.db"
    with Consumer(uri, rules=shadow, handler=lambda _: None) as consumer:
        consumer.process([call(1)])
    with Consumer(uri, rules=shadow, handler=fails) as consumer:
        assert consumer.process([call(1)])[0].status == "failed"
    assert database.execute("SELECT count(*) FROM events").fetchone() == (0,)


def test_a_table_needs_a_store_with_transactions() -> None:
    with Consumer("memory:", rules=CALL, handler=Table("events")) as consumer:
        (outcome,) = consumer.process([call(1)])
    assert outcome.status == "failed"
    assert "SQL store" in outcome.reason
