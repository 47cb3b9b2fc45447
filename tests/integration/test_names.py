"""The names of consumers in each store: `eventonce show` finds them from any folder, and a process
stores each name once."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from eventonce import Consumer
from eventonce.runtime import background_task
from eventonce.stores.dynamodb import DynamoDBStore
from eventonce.stores.dynamodb.table import Table
from eventonce.stores.redis import RedisStore
from tests.helpers import PATIENCE, call, ruled
from tests.integration.granted import made
from tests.integration.test_redis_records import _trips
from tests.servers.aws import REGION
from tests.servers.postgres import Cluster
from tests.servers.valkey import Node
from tests.unit.made import classic

PROGRAM = """
import sys
from eventonce import Consumer
from eventonce.runtime import background_task
background_task.EXIT_WAIT = 240  # however busy the machine is
consumer = Consumer(sys.argv[1], name="crm-x", rules="genesys", handler=lambda job: None)
print(consumer.process([sys.stdin.read()])[0].status)
"""


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name is stored before a test continues, however busy the machine is."""
    monkeypatch.setattr(background_task, "EXIT_WAIT", PATIENCE)


@pytest.fixture(params=["sqlite", "redis", "postgresql", "dynamodb"])
def uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URI of an empty store of each kind."""
    match request.param:
        case "sqlite":
            return f"sqlite:///{tmp_path}/eventonce.db"
        case "redis":
            node: Node = request.getfixturevalue("node")
            return f"{node.uri}?prefix={secrets.token_hex(4)}"
        case "postgresql":
            cluster: Cluster = request.getfixturevalue("cluster")
            return made(cluster.uri(options=f"?schema=names_{secrets.token_hex(4)}"))
        case _:
            return _table(request.getfixturevalue("endpoint"))


def _table(endpoint: str) -> str:
    uri = f"dynamodb://names-{secrets.token_hex(4)}?region={REGION}&endpoint={endpoint}"
    DynamoDBStore.from_uri(uri).create()
    return uri


def test_show_finds_an_event_whatever_name_its_consumer_has(uri: str, tmp_path: Path) -> None:
    """The name is only in the code of a program; there is no configuration file and no history."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    event = elsewhere / "event.json"
    event.write_text(json.dumps(classic({"eventBody": {"call": 1}}, id="1")))

    def ran(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, *words],
            cwd=elsewhere,
            env={**os.environ, "EVENTONCE_CONFIG": ""},
            input=event.read_text(),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert ran("-c", PROGRAM, uri) == "done\n"
    shown = ran(
        *("-m", "eventonce", "show", "event.json", "--store", uri, "--presets", "genesys"),
    )
    assert ": done under the name 'crm-x'" in shown


def _costs(count: Callable[[], int], store: Any) -> list[int]:
    """The cost of a second new event, of its copy, and of a batch of ten."""
    with Consumer(store, name="crm-x", rules=ruled(), handler=lambda _: None) as consumer:
        consumer.process([call(0)])
        consumer.runtime.flush()
        costs = [count()]
        for batch in ([call(1)], [call(1)], [call(number) for number in range(2, 12)]):
            consumer.process(batch)
            costs.append(count())
    return [after - before for before, after in pairwise(costs)]


def test_the_name_of_a_consumer_costs_a_call_to_redis_once_a_process(node: Node) -> None:
    client = node.client()
    store = RedisStore.from_uri(f"{node.uri}?prefix={secrets.token_hex(4)}")
    assert _costs(lambda: _trips(client), store) == [2, 1, 2]


def test_the_name_of_a_consumer_costs_requests_to_dynamodb_once_a_process(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []
    send = Table.call

    def noted(table: Table, operation: str, **asked: Any) -> dict[str, Any]:
        sent.append(operation)
        return send(table, operation, **asked)

    uri = _table(endpoint)
    monkeypatch.setattr(Table, "call", noted)
    assert _costs(lambda: len(sent), DynamoDBStore.from_uri(uri)) == [2, 1, 2]
    # A claim and its settlement; a read of the names, a second read in their update, and the write.
    first = ["batch_execute_statement", *["batch_get_item"] * 2, *["put_item"] * 2]
    assert sorted(sent[:5]) == first
    sent.clear()
    with Consumer(uri, name="crm-x", rules=ruled(), handler=lambda _: None) as consumer:
        consumer.process([call(99)])
    assert sorted(sent) == ["batch_execute_statement", "batch_get_item", "put_item"]
