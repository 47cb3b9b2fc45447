"""The table as a sink on PostgreSQL: a row and its completion commit together."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from eventonce import Consumer, Job, Rule
from eventonce.config import load
from eventonce.sinks import Table
from eventonce.types import Outcome
from tests.helpers import PATIENCE, call
from tests.servers.postgres import Cluster

CALL = Rule(name="call", match="call", key=["detail.call"], lease="1s")
TABLE = """\
CREATE TABLE events (
    effect_id text PRIMARY KEY,
    key       text NOT NULL,
    type      text NOT NULL,
    event     jsonb NOT NULL,
    received  timestamptz NOT NULL DEFAULT now()
);
"""
"""The table, as docs/sinks.md shows it."""


@pytest.fixture(autouse=True)
def table(cluster: Cluster) -> None:
    cluster.execute("DROP TABLE IF EXISTS events", TABLE)


def patient(cluster: Cluster, user: str = "postgres") -> str:
    """The store's URI, with long time-outs: on a slow machine the server is not away."""
    options = f"?timeout={PATIENCE}&connect_timeout={PATIENCE}"
    return cluster.uri(user=user, options=options)


def rows(cluster: Cluster) -> list[tuple[Any, ...]]:
    with cluster.connect() as connection:
        return connection.execute("SELECT type, event FROM events ORDER BY effect_id").fetchall()


def process(cluster: Cluster, name: str, *events: bytes) -> list[Outcome]:
    with Consumer(patient(cluster), name=name, rules=CALL, handler=Table("events")) as consumer:
        return consumer.process(events)


def test_the_table_of_the_page_gets_a_row_for_each_event(cluster: Cluster) -> None:
    outcomes = process(cluster, "rows", call(1, text="ключ"), call(1), call(2))
    assert [outcome.status for outcome in outcomes] == ["done", "duplicate", "done"]
    assert {(type_, event["detail"]["call"]) for type_, event in rows(cluster)} == {
        ("call", 1),
        ("call", 2),
    }


def stall(uri: str) -> None:
    """The killed process: it inserts a row, prints that, and never commits."""
    sink = Table("events")

    def insert_and_stop(job: Job) -> None:
        sink(job)
        sys.stdout.write("inserted\n")
        sys.stdout.flush()
        time.sleep(3600)

    Consumer(uri, name="killed", rules=CALL, handler=insert_and_stop).process([call(1)])


def test_a_worker_killed_between_insert_and_commit_leaves_the_row_exactly_once(
    cluster: Cluster,
) -> None:
    worker = subprocess.Popen(
        [sys.executable, "-m", __name__, patient(cluster)],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
    )
    assert worker.stdout is not None
    assert worker.stdout.readline() == b"inserted\n"
    worker.kill()
    worker.communicate()
    assert rows(cluster) == []
    end = time.monotonic() + PATIENCE
    while (outcome := process(cluster, "killed", call(1))[0]).status == "busy":
        assert time.monotonic() < end
        time.sleep(0.05)
    assert outcome.status == "done"
    assert len(rows(cluster)) == 1
    assert process(cluster, "killed", call(1))[0].status == "duplicate"
    assert len(rows(cluster)) == 1


def test_a_missing_table_is_reported_and_not_created(cluster: Cluster) -> None:
    cluster.execute("DROP TABLE events")
    (outcome,) = process(cluster, "absent", call(1))
    assert outcome.status == "failed"
    for word in ('"events" does not exist', "does not create it", "effect_id text PRIMARY KEY"):
        assert word in outcome.reason


@pytest.mark.parametrize(
    "shape",
    [
        "CREATE TABLE events (effect_id text PRIMARY KEY, event jsonb)",
        "CREATE TABLE events (effect_id text, key text, type text, event jsonb)",
    ],
)
def test_the_error_for_a_table_of_another_shape_names_the_columns(
    cluster: Cluster, shape: str
) -> None:
    cluster.execute("DROP TABLE events", shape)
    (outcome,) = process(cluster, "other", call(1))
    assert outcome.status == "failed"
    assert "create a table with (effect_id text PRIMARY KEY" in outcome.reason


def test_an_event_that_the_column_cannot_hold_becomes_a_dead_letter(cluster: Cluster) -> None:
    """PostgreSQL's jsonb refuses a NUL, which JSON allows."""
    bad, good = process(cluster, "unfit", call(1, text="a\0b"), call(2))
    assert (bad.status, good.status) == ("dead", "done")
    assert "refuses this event" in bad.reason
    assert len(rows(cluster)) == 1


def test_an_event_whose_type_no_text_column_can_hold_becomes_a_dead_letter_at_once(
    cluster: Cluster,
) -> None:
    """A statement that the driver refuses before it is sent has no code of the server's."""
    event = {"id": "1", "detail-type": "a\0b", "detail": {"call": 1}}
    with Consumer(
        patient(cluster), name="driver", rules=Rule(name="id", key=["id"]), handler=Table("events")
    ) as consumer:
        (outcome,) = consumer.process([event])
    assert outcome.status == "dead"
    assert "refuses this event" in outcome.reason


def test_a_table_without_permission_to_write_fails_the_event_with_the_reason(
    cluster: Cluster,
) -> None:
    cluster.execute(
        "DROP ROLE IF EXISTS reader",
        "CREATE ROLE reader LOGIN",
        "GRANT USAGE ON SCHEMA eventonce TO reader",
        "GRANT ALL ON ALL TABLES IN SCHEMA eventonce TO reader",
    )
    uri = patient(cluster, user="reader")
    with Consumer(uri, name="denied", rules=CALL, handler=Table("events")) as consumer:
        (outcome,) = consumer.process([call(1)])
    cluster.execute("DROP OWNED BY reader", "DROP ROLE reader")
    assert outcome.status == "failed"
    assert "permission denied for table events" in outcome.reason


def test_a_table_works_beside_async_handlers(cluster: Cluster) -> None:
    with Consumer(patient(cluster), name="async", rules=CALL, handler=Table("events")) as consumer:
        events = [call(number) for number in range(5)]
        outcomes = asyncio.run(consumer.process_async(events))
    assert {outcome.status for outcome in outcomes} == {"done"}
    assert len(rows(cluster)) == 5


def test_the_configuration_file_names_the_table(cluster: Cluster, tmp_path: Path) -> None:
    cluster.execute(
        "CREATE SCHEMA IF NOT EXISTS crm",
        TABLE.replace("TABLE events", "TABLE IF NOT EXISTS crm.events"),
    )
    path = tmp_path / "eventonce.toml"
    path.write_text(
        f'store = "{patient(cluster)}"\nname = "filed"\n[[sink]]\nto = "table:crm.events"\n'
    )
    with load(path).consumer() as consumer:
        assert consumer.process([call(1)])[0].status == "done"


if __name__ == "__main__":
    stall(sys.argv[1])
