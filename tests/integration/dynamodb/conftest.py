"""The two emulators, the two clients, a new table on each, and a proxy between."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from typing import Any

import boto3
import pytest

from eventonce.stores.dynamodb import DynamoDBStore
from tests.integration.dynamodb.between import Between, standing
from tests.servers.aws import ASKS_FOR_BOTOCORE, REGION, emulated

Open = Callable[[], DynamoDBStore]


@pytest.fixture(scope="package")
def on_ministack(ministack_url: str) -> Iterator[str]:
    with emulated():
        yield ministack_url


@pytest.fixture(scope="package")
def on_dynamodb_local(dynamodb_local_url: str) -> Iterator[str]:
    with emulated():
        yield dynamodb_local_url


@pytest.fixture
def by_botocore(on_ministack: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The emulator, and an environment in which a store uses botocore."""
    monkeypatch.setenv(*ASKS_FOR_BOTOCORE)
    return on_ministack


@pytest.fixture(params=["on_ministack", "on_dynamodb_local", "by_botocore"])
def endpoint(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(request.param))


@pytest.fixture
def client(endpoint: str) -> Any:
    """A client of the test's own."""
    return boto3.client("dynamodb", region_name=REGION, endpoint_url=endpoint)


@pytest.fixture
def new_name(client: Any) -> Iterator[str]:
    """The name of a table that is dropped afterwards: in DynamoDB Local every table that expires
    items keeps a thread busy, and with a dozen of them it makes no more indexes."""
    name = f"t-{secrets.token_hex(6)}"
    yield name
    if name in client.list_tables()["TableNames"]:
        client.delete_table(TableName=name)


@pytest.fixture
def table(endpoint: str, new_name: str) -> str:
    """A new table as `eventonce store create` makes it."""
    DynamoDBStore.from_uri(f"dynamodb://{new_name}?region={REGION}&endpoint={endpoint}").create()
    return new_name


@pytest.fixture
def seed_table(client: Any, new_name: str) -> str:
    """The table of the tutorials, as made by hand: a key, an expiry, nothing more."""
    name = new_name
    client.create_table(
        TableName=name,
        BillingMode="PAY_PER_REQUEST",
        KeySchema=[{"AttributeName": "eventHash", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "eventHash", "AttributeType": "S"}],
    )
    client.update_time_to_live(
        TableName=name,
        TimeToLiveSpecification={"Enabled": True, "AttributeName": "expiration"},
    )
    return name


@pytest.fixture
def between(endpoint: str) -> Iterator[Between]:
    with standing(endpoint) as between:
        yield between


@pytest.fixture
def opening(table: str, between: Between) -> Open:
    """A function that opens a new handle on the table, through the proxy."""
    return lambda: DynamoDBStore.from_uri(
        f"dynamodb://{table}?region={REGION}&endpoint={between.url}"
    )


@pytest.fixture
def store(opening: Open) -> Iterator[DynamoDBStore]:
    store = opening()
    yield store
    store.close()
