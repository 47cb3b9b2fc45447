"""DynamoDB is held to the contract on two emulators, one of them Amazon's own, and through both
clients: the store's own, and botocore's."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from functools import partial

import pytest

from eventonce.stores.dynamodb import DynamoDBStore
from eventonce.testing.contract import StoreContract, StoreFactory
from tests.helpers import PATIENCE
from tests.servers.aws import ASKS_FOR_BOTOCORE, REGION, emulated, ministack

EXAMPLES = 20
"""Programs: each asks the server some hundred times. `EVENTONCE_EXAMPLES` plays more."""


def _opener(endpoint: str) -> StoreFactory:
    uri = f"dynamodb://contract-{secrets.token_hex(4)}?region={REGION}&endpoint={endpoint}"
    DynamoDBStore.from_uri(uri).create()
    return StoreFactory(
        # Said here, for other processes open it too.
        partial(DynamoDBStore.from_uri, f"{uri}&timeout={PATIENCE}"),
        sweeps=False,
        counts=False,
        own_clock=True,
        examples=EXAMPLES,
    )


@pytest.fixture(scope="module")
def on_ministack() -> Iterator[StoreFactory]:
    with emulated(), ministack() as endpoint:
        yield _opener(endpoint)


@pytest.fixture(scope="module")
def on_dynamodb_local(dynamodb_local_url: str) -> Iterator[StoreFactory]:
    with emulated():
        yield _opener(dynamodb_local_url)


@pytest.fixture(scope="class")
def by_botocore() -> Iterator[StoreFactory]:
    with emulated(), ministack() as endpoint, pytest.MonkeyPatch.context() as patch:
        patch.setenv(*ASKS_FOR_BOTOCORE)
        yield _opener(endpoint)


class TestOnMinistack(StoreContract):
    @pytest.fixture
    def factory(self, on_ministack: StoreFactory) -> StoreFactory:
        return on_ministack


class TestOnDynamoDBLocal(StoreContract):
    @pytest.fixture
    def factory(self, on_dynamodb_local: StoreFactory) -> StoreFactory:
        return on_dynamodb_local


class TestByBotocore(StoreContract):
    @pytest.fixture
    def factory(self, by_botocore: StoreFactory) -> StoreFactory:
        return by_botocore
