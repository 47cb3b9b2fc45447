"""docs/migrate.md is true: each way has, on real stores, the results that its tables show."""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from pathlib import Path
from typing import Any

import boto3
import msgspec
import pytest

from eventonce import Consumer, Rule, presets
from eventonce.cli import main
from eventonce.stores.dynamodb import DynamoDBStore
from eventonce.stores.memory import MemoryStore
from eventonce.stores.sqlite import SQLiteStore
from tests.docs.arrivals import agent_leaves
from tests.docs.moving import PAGE, A, B, C, D, Row, Work, expected_rows
from tests.docs.pages import DOCS, broken_links
from tests.helpers import WatchedStore, away
from tests.servers.aws import REGION
from tests.servers.valkey import serving


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def client(endpoint: str) -> Any:
    return boto3.client("dynamodb", region_name=REGION, endpoint_url=endpoint)


def table(client: Any, name: str, key: str) -> None:
    client.create_table(
        TableName=name,
        BillingMode="PAY_PER_REQUEST",
        KeySchema=[{"AttributeName": key, "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": key, "AttributeType": "S"}],
    )


# --- looking ---


def test_the_commands_of_look_first_run_without_a_store(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("event.json").write_text(json.dumps(A))
    Path("capture.jsonl").write_text("\n".join(map(json.dumps, (A, B, C))))
    before = set(here.iterdir())
    run_all("Look first")
    assert "3 events, 2 new" in capsys.readouterr().err
    assert set(here.iterdir()) - before == {here / "new.jsonl"}


def run_all(section: str) -> None:
    """The commands of a section, as a shell would run them."""
    for line in PAGE[section].blocks("console")[0].splitlines():
        command, _, output = line.removeprefix("$ eventonce ").partition(" > ")
        with Path(output or os.devnull).open("w") as into, pytest.MonkeyPatch.context() as patch:
            patch.setattr("sys.stdout", into)
            with pytest.raises(SystemExit) as ended:
                main(command.split())
        assert ended.value.code in (0, None), line


# --- warm starts ---


def test_shadow_runs_every_event_names_the_copies_and_fills_the_store() -> None:
    title = "A warm start through shadow mode"
    (snippet,) = PAGE[title].blocks("python")
    old: list[str] = []
    scope: dict[str, Any] = {"old_guard": lambda event: old.append(event.id)}
    exec(snippet, scope)
    with scope["consumer"] as consumer:
        outcomes = consumer.process([A]) + consumer.process([A]) + consumer.process([B])
        assert [[it.status, it.reason] for it in outcomes] == expected_rows(title)
    assert old == ["a", "a", "b"]
    with Consumer(
        "sqlite:///calls.db", name="crm-sync", rules="genesys", handler=lambda _: None
    ) as switched:
        assert [[it.status] for it in switched.process([B, C])] == expected_rows(title, 1)


def test_in_shadow_incomplete_and_failing_events_become_dead_letters() -> None:
    def never(_: object) -> None:
        raise ConnectionError

    incomplete = agent_leaves("x")
    del incomplete["detail"]["eventBody"]["sessionId"], incomplete["id"]
    rules = [msgspec.structs.replace(rule, shadow=True) for rule in presets.resolve("genesys")]
    consumer = Consumer("memory:", name="crm-sync", rules=rules, handler=never)
    assert consumer.process([incomplete])[0].status == "invalid"
    tries = [consumer.process([A])[0].status for _ in range(5)]
    assert tries == [*["failed"] * 4, "dead"]
    assert len(list(consumer.letters())) == 2


@pytest.mark.parametrize(("policy", "status"), [("retry", "failed"), ("run", "unguarded")])
def test_in_shadow_an_unavailable_store_holds_up_work_unless_the_rule_says_run(
    policy: str, status: str
) -> None:
    rules = [
        msgspec.structs.replace(rule, shadow=True, on_store_error=policy)
        for rule in presets.resolve("genesys")
    ]
    consumer = Consumer(
        WatchedStore(away("claim")), name="crm-sync", rules=rules, handler=lambda _: None
    )
    assert consumer.process([A])[0].status == status


def test_a_capture_that_was_filtered_into_the_store_is_done() -> None:
    title = "A warm start from a capture"
    Path("done.jsonl").write_text("\n".join(map(json.dumps, (A, D))))
    run_all(title)
    with Consumer(
        "sqlite:///calls.db", name="crm-sync", rules="genesys", handler=lambda _: None
    ) as consumer:
        assert [[it.status] for it in consumer.process([A, C])] == expected_rows(title)
    with Consumer(
        "sqlite:///calls.db", name="another", rules="genesys", handler=lambda _: None
    ) as other:
        assert other.process([A])[0].status == "done"


# --- from the user's own tables and marks ---


def test_an_entry_in_the_table_of_the_old_script_counts_until_it_expires(client: Any) -> None:
    title = "From a DynamoDB table of your own"
    table(client, "GenesysEventDedup", "eventHash")

    def saw(event: dict[str, Any], seconds: int) -> None:
        text = json.dumps(event["detail"], sort_keys=True, default=str)
        digest = hashlib.sha256(text.encode()).hexdigest()
        expiry = {"N": str(int(time.time()) + 300 - seconds)}
        item = {"eventHash": {"S": digest}, "expiration": expiry}
        client.put_item(TableName="GenesysEventDedup", Item=item)

    saw(A, 60)
    saw(C, 3600)
    scope: dict[str, Any] = {}
    exec(PAGE[title].blocks("python")[0], scope)
    consumer: Consumer = scope["consumer"].over(DynamoDBStore(client, "GenesysEventDedup"))
    consumer.on()(lambda _: None)
    assert [[consumer.process([it])[0].status] for it in (A, C, B)] == expected_rows(title)


def test_a_key_made_of_one_text_is_computed_too(client: Any) -> None:
    table(client, "ById", "eventHash")
    digest = hashlib.sha256(b"i-1").hexdigest()
    client.put_item(TableName="ById", Item={"eventHash": {"S": digest}})
    rule = Rule(name="closing", key=["detail.call"], also=["sha256(detail.interaction-id)"])
    consumer = Consumer(
        DynamoDBStore(client, "ById"), name="crm", rules=rule, handler=lambda _: None
    )
    events = [
        {"id": name, "detail-type": "t", "detail": {"call": name, "interaction-id": name}}
        for name in ("i-1", "i-2")
    ]
    assert [it.status for it in consumer.process(events)] == ["duplicate", "done"]


def test_marks_of_the_old_consumer_in_redis_are_looked_for_and_not_set() -> None:
    title = "From Redis, or from anything else"
    with serving() as node:
        cache, work = node.client(), Work()
        cache.set("event:a", "1", ex=300)
        with Consumer(
            node.uri, name="crm-sync", rules="genesys", handler=lambda job: work(job.event)
        ) as consumer:
            exec(PAGE[title].blocks("python")[0], {"cache": cache, "consumer": consumer})
            row = Row(consumer, work)
            seen = row(A)
            cache.delete("event:a")
            assert [seen, row(A), row(C, down=True), row(C)] == expected_rows(title)
            assert cache.exists("event:c") == 0
        cache.close()


def test_a_table_of_seen_ids_is_asked_through_the_stores_own_connection() -> None:
    title = "From a table of seen ids"
    store, work = SQLiteStore(Path("calls.db")), Work()
    with store.transaction() as transaction:
        transaction.connection.execute("CREATE TABLE seen (id TEXT)")
        transaction.connection.execute("INSERT INTO seen VALUES ('a')")
    with Consumer(
        store, name="crm-sync", rules="genesys", handler=lambda job: work(job.event)
    ) as consumer:
        exec(PAGE[title].blocks("python")[0], {"consumer": consumer})
        row = Row(consumer, work)
        assert [row(A), row(C)] == expected_rows(title)


# --- from Powertools ---


class Context:
    """The context that Lambda gives to a function."""

    function_name = "crm-sync"

    def get_remaining_time_in_millis(self) -> int:
        return 900_000


def powertools(client: Any, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Powertools as a user's function uses it, over a table of its own."""
    from aws_lambda_powertools.utilities.idempotency import (
        DynamoDBPersistenceLayer,
        IdempotencyConfig,
        idempotent_function,
    )

    monkeypatch.setenv("AWS_LAMBDA_FUNCTION_NAME", "crm-sync")
    config = IdempotencyConfig(event_key_jmespath="detail.eventBody.sessionId")
    config.register_lambda_context(Context())  # type: ignore[arg-type]
    return {
        "__name__": "handlers",
        "idempotent_function": idempotent_function,
        "persistence": DynamoDBPersistenceLayer("Idempotency", boto3_client=client),
        "config": config,
    }


@pytest.mark.parametrize("shared", [False, True], ids=["a table each", "one table"])
def test_powertools_inside_a_handler_keeps_finished_work_from_running_again(
    shared: bool, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    title = "From Powertools"
    table(client, "Idempotency", "id")
    work = Work()
    store: Any = DynamoDBStore(client, "Idempotency", key="id") if shared else MemoryStore()
    consumer = Consumer(store, name="crm-sync", rules="genesys")
    scope = {**powertools(client, monkeypatch), "work": work, "consumer": consumer}
    exec(PAGE[title].blocks("python")[0], scope)

    scope["log_call"](event=A)
    (item,) = client.scan(TableName="Idempotency")["Items"]
    names = [row[0] for row in PAGE[title].tables()[0]]
    assert set(item) == {name.strip("`") for name in names}
    assert re.fullmatch(r"crm-sync\.handlers\.log_call#[0-9a-f]{32}", item["id"]["S"])
    md5 = hashlib.md5(json.dumps(A["detail"]["eventBody"]["sessionId"]).encode()).hexdigest()
    assert item["id"]["S"].endswith(f"#{md5}")
    assert item["status"]["S"] == "COMPLETED"
    assert 3_500 < int(item["expiration"]["N"]) - time.time() <= 3_600
    assert int(item["in_progress_expiration"]["N"]) > time.time() * 1000

    begun = hashlib.md5(json.dumps("session-c").encode()).hexdigest()
    client.put_item(
        TableName="Idempotency",
        Item={
            **item,
            "id": {"S": f"crm-sync.handlers.log_call#{begun}"},
            "status": {"S": "INPROGRESS"},
        },
    )
    rows = []
    for event in (A, A, C, D):
        before = len(work.done)
        (outcome,) = consumer.process([event])
        kept = outcome.result == {"ticket": "a"}
        rows.append([outcome.status, kept, "yes" if len(work.done) > before else "no"])
    said = [
        [re.split(",", status)[0], "with" in status, ran] for status, ran in expected_rows(title, 1)
    ]
    assert rows == said
    assert work.done == ["a", "d"]
    client.delete_table(TableName="Idempotency")


def test_no_link_is_broken() -> None:
    assert broken_links(DOCS / "migrate.md") == []
