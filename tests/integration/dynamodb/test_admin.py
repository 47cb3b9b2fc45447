"""`eventonce store create|migrate|check` on DynamoDB, and their dry runs."""

from __future__ import annotations

from typing import Any

import pytest

from eventonce.errors import ConfigError, StoreMismatch, StoreUnavailable
from eventonce.stores.dynamodb import DynamoDBStore
from eventonce.stores.probe import PROBE, new_trial_key, write_trial
from tests.integration.dynamodb.asks import completed, facts
from tests.integration.dynamodb.between import Between, dated, refuse
from tests.servers.aws import REGION


def _findings(store: DynamoDBStore) -> dict[str, str]:
    return {it.what: it.fix for it in store.check() if not it.fine}


def test_create_shows_its_steps_in_a_dry_run_and_does_them_once(
    endpoint: str, client: Any, new_name: str
) -> None:
    store = DynamoDBStore.from_uri(f"dynamodb://{new_name}?region={REGION}&endpoint={endpoint}")
    would = store.create(dry_run=True)
    assert all(step.startswith("would ") for step in would)
    assert new_name not in client.list_tables()["TableNames"]
    assert _findings(store) != {}
    done = store.create()
    assert [f"would {step}" for step in done] == would
    assert _findings(store) == {}
    described = client.describe_table(TableName=new_name)["Table"]
    assert described["BillingModeSummary"]["BillingMode"] == "PAY_PER_REQUEST"
    assert store.create() == store.migrate() == [], "there is nothing left to do"
    claims = facts(2)
    assert store.settle(completed(claims, store.claim(claims))) == ["kept", "kept"]


def test_migrate_adds_the_missing_index_to_a_hand_made_table(
    endpoint: str, client: Any, seed_table: str
) -> None:
    store = DynamoDBStore.from_uri(f"dynamodb://{seed_table}?region={REGION}&endpoint={endpoint}")
    assert list(_findings(store)) == ["the index letters lists dead letters"]
    claims = facts(2)
    runs = store.claim(claims)
    (would,) = store.migrate(dry_run=True)
    assert would.startswith("would create the index letters")
    assert _findings(store) != {}
    assert store.migrate() == [would.removeprefix("would ")]
    assert _findings(store) == {}
    assert store.settle(completed(claims, runs)) == ["kept", "kept"]


def test_migrate_switches_expiry_on(endpoint: str, client: Any, new_name: str) -> None:
    client.create_table(
        TableName=new_name,
        BillingMode="PAY_PER_REQUEST",
        KeySchema=[{"AttributeName": "eventHash", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "eventHash", "AttributeType": "S"}],
    )
    store = DynamoDBStore.from_uri(f"dynamodb://{new_name}?region={REGION}&endpoint={endpoint}")
    assert "items expire by expiration" in _findings(store)
    store.migrate()
    assert _findings(store) == {}


def test_a_table_with_a_wrong_key_is_reported_and_cannot_be_migrated(
    endpoint: str, client: Any, new_name: str
) -> None:
    client.create_table(
        TableName=new_name,
        BillingMode="PAY_PER_REQUEST",
        KeySchema=[
            {"AttributeName": "eventHash", "KeyType": "HASH"},
            {"AttributeName": "at", "KeyType": "RANGE"},
        ],
        AttributeDefinitions=[
            {"AttributeName": "eventHash", "AttributeType": "S"},
            {"AttributeName": "at", "AttributeType": "N"},
        ],
    )
    store = DynamoDBStore.from_uri(f"dynamodb://{new_name}?region={REGION}&endpoint={endpoint}")
    # No other finding: the table of another program needs no advice and no trial.
    (found,) = store.check()
    assert (found.what, found.fine) == ("its key is eventHash, a string", False)
    assert "eventHash and at" in found.fix
    assert client.scan(TableName=new_name)["Count"] == 0
    with pytest.raises(StoreMismatch, match="cannot be changed"):
        store.migrate()


def test_a_missing_table_is_reported_with_the_command_that_creates_it(
    endpoint: str, new_name: str
) -> None:
    store = DynamoDBStore.from_uri(f"dynamodb://{new_name}?region={REGION}&endpoint={endpoint}")
    assert "eventonce store create" in next(iter(_findings(store).values()))
    with pytest.raises(StoreMismatch, match="eventonce store create"):
        store.migrate()


def test_another_expiry_attribute_is_named(endpoint: str, table: str) -> None:
    store = DynamoDBStore.from_uri(
        f"dynamodb://{table}?region={REGION}&endpoint={endpoint}&expiry=ttl"
    )
    assert "expiry=expiration" in _findings(store)["items expire by ttl"]


def test_check_reports_a_missing_permission_and_leaves_no_item_behind(
    store: DynamoDBStore, between: Between, client: Any, table: str
) -> None:
    said = "not authorized to perform: dynamodb:PutItem"
    between.spoil("PutItem", refuse("AccessDeniedException", said))
    assert said in _findings(store)["dynamodb:PutItem is allowed"]
    assert client.scan(TableName=table)["Count"] == 0


def test_a_trial_reports_a_missing_permission_to_write(
    store: DynamoDBStore, between: Between, client: Any, table: str
) -> None:
    key = new_trial_key()
    between.spoil("PutItem", refuse("AccessDeniedException", "dynamodb:PutItem"))
    assert store.claim([PROBE])[0].kind == "run"
    with pytest.raises(ConfigError, match="dynamodb:PutItem"):
        write_trial(store, key)
    write_trial(store, key)
    assert client.scan(TableName=table)["Count"] == 0


def test_check_raises_if_the_table_cannot_be_described(
    store: DynamoDBStore, between: Between
) -> None:
    denied = refuse("AccessDeniedException", "dynamodb:DescribeTable")
    unknown = refuse("UnrecognizedClientException", "who is this?")
    for trick, error in (
        (denied, ConfigError),
        (unknown, ConfigError),
        (refuse("ThrottlingException", "slow down"), StoreUnavailable),
    ):
        with between.spoiling(trick), pytest.raises(error):
            store.check()


def test_check_reports_a_wrong_clock(store: DynamoDBStore, between: Between) -> None:
    with between.spoiling(dated(400)):
        assert "behind DynamoDB's" in _findings(store)["this machine's clock is right"]
