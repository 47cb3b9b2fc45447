"""The table of the tutorials, `GenesysEventDedup` with `eventHash` and `expiration`, as it is."""

from __future__ import annotations

import hashlib
import json
import time
from typing import Any

import pytest

from eventonce import Consumer
from eventonce.errors import StoreMismatch
from eventonce.rules import Rule
from eventonce.stores.dynamodb import DynamoDBStore, letters
from eventonce.types import Claim, Letter, Settlement
from tests.integration.dynamodb.asks import DAY, MINUTE, completed, copies, facts
from tests.servers.aws import REGION

EVENT = {
    "id": "0f3ad1a2-31aa-4d0e-8a7c-5f6e21f3b001",
    "source": "aws.partner/genesys.com/cloud/o/1",
    "detail-type": "v2.detail.events.conversation.{id}.user.end",
    "detail": {"eventBody": {"conversationId": "c-1", "eventTime": 5}},
}


def _old_script_saw(client: Any, table: str, event: dict[str, Any], seconds: float) -> str:
    """The item of the tutorial's script: the hash of the detail, and when it expires."""
    text = json.dumps(event["detail"], sort_keys=True, default=str)
    digest = hashlib.sha256(text.encode()).hexdigest()
    client.put_item(
        TableName=table,
        Item={
            "eventHash": {"S": digest},
            "expiration": {"N": str(int(time.time() + seconds))},
        },
    )
    return digest


@pytest.fixture
def store(endpoint: str, seed_table: str) -> DynamoDBStore:
    return DynamoDBStore.from_uri(f"dynamodb://{seed_table}?region={REGION}&endpoint={endpoint}")


def test_the_table_of_the_tutorials_is_used_unchanged(store: DynamoDBStore) -> None:
    claims = facts(12)
    runs = store.claim(claims)
    assert {run.kind for run in runs} == {"run"}
    assert store.settle(completed(claims, runs)) == ["kept"] * 12
    assert {copy.kind for copy in store.claim(copies(claims))} == {"duplicate"}


def test_an_event_that_the_old_script_saw_is_a_duplicate_until_its_item_expires(
    store: DynamoDBStore, client: Any, seed_table: str
) -> None:
    ran = []
    rule = Rule(name="ends", key=["detail.eventBody.conversationId"], also=["sha256(detail)"])
    consumer = Consumer(store, name="crm", rules=rule, handler=lambda job: ran.append(job.event.id))
    _old_script_saw(client, seed_table, EVENT, seconds=300)
    (outcome,) = consumer.process([EVENT])
    assert (outcome.status, ran) == ("duplicate", [])

    other = {**EVENT, "detail": {"eventBody": {"conversationId": "c-2", "eventTime": 5}}}
    _old_script_saw(client, seed_table, other, seconds=-1)
    (outcome,) = consumer.process([other])
    assert (outcome.status, ran) == ("done", [EVENT["id"]])


@pytest.mark.parametrize("redrive", [False, True])
def test_an_expired_item_of_the_old_script_is_taken_over_and_keeps_its_other_attributes(
    redrive: bool, store: DynamoDBStore, client: Any, seed_table: str
) -> None:
    # Expired by the instant of the claim, not by the table's clock: its TTL would delete the item.
    later = int((time.time() + 600) * 1000)
    digest = _old_script_saw(client, seed_table, EVENT, seconds=300)
    client.update_item(
        TableName=seed_table,
        Key={"eventHash": {"S": digest}},
        UpdateExpression="SET processedAt = :now",
        ExpressionAttributeValues={":now": {"N": "1700000000.25"}},
    )
    claim = Claim(digest.encode(), 7, MINUTE, DAY, 3, redrive=redrive)
    (run,) = store.claim([claim], now=later)
    assert (run.kind, run.attempt) == ("run", 1)
    assert store.settle([Settlement(claim, run.token, "complete", b"r")], now=later) == ["kept"]
    item = client.get_item(TableName=seed_table, Key={"eventHash": {"S": digest}})["Item"]
    assert item["processedAt"] == {"N": "1700000000.25"}
    assert int(item["expiration"]["N"]) > time.time() + DAY / 1000 - 60


def test_an_item_with_no_expiry_is_done_for_ever(
    store: DynamoDBStore, client: Any, seed_table: str
) -> None:
    digest = hashlib.sha256(b"").hexdigest()
    client.put_item(TableName=seed_table, Item={"eventHash": {"S": digest}})
    claim = Claim(digest.encode(), 7, MINUTE, DAY, 3)
    assert store.claim([claim], now=10**15)[0].kind == "duplicate"


def test_an_item_expires_only_after_its_lease_and_its_memory(
    store: DynamoDBStore, client: Any, seed_table: str
) -> None:
    def expiration() -> int:
        item = client.get_item(TableName=seed_table, Key={"eventHash": {"S": "0" * 32}})["Item"]
        return int(item["expiration"]["N"])

    claim = Claim(bytes(16), 7, 3 * DAY, 1_500, 3)
    now = 2_000_000_000_400
    (run,) = store.claim([claim], now=now)
    assert expiration() == 2_000_000_001 + 3 * DAY // 1000, "not while the lease lives"
    store.settle([Settlement(claim, run.token, "complete")], now=now)
    # 1.9 s after the full second, and a TTL in whole seconds may not come before that.
    assert expiration() == 2_000_000_002


def test_dead_letters_are_listed_without_the_index_while_the_table_is_small(
    store: DynamoDBStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = [
        Letter(f"l{place}", "crm" if place % 2 else "erp", "dead", "why", "r", b"k", b"{}", place)
        for place in range(30)
    ]
    store.put_letters(kept[::-1])
    assert list(store.letters()) == kept
    assert list(store.letters("crm")) == kept[1::2]
    assert store.stats().letters == 30
    monkeypatch.setattr(letters, "SCAN_BYTES", 10)
    with pytest.raises(StoreMismatch, match=r'has no index .* migrate "dynamodb://t-'):
        list(store.letters())
    store.migrate()
    assert list(store.letters()) == kept


def test_other_names_for_the_two_attributes_are_options(
    endpoint: str, client: Any, new_name: str
) -> None:
    uri = f"dynamodb://{new_name}?region={REGION}&endpoint={endpoint}&key=pk&expiry=expires"
    store = DynamoDBStore.from_uri(uri)
    store.create()
    claims = facts(2)
    store.settle(completed(claims, store.claim(claims)))
    items = client.scan(TableName=new_name)["Items"]
    assert {item["pk"]["S"] for item in items} == {claim.key.hex() for claim in claims}
    assert all("expires" in item and "eventHash" not in item for item in items)
    assert [it.kind for it in store.claim(copies(claims))] == ["duplicate", "duplicate"]
