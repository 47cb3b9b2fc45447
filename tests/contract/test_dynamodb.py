"""DynamoDB is held to the contract on two emulators, one of them Amazon's own, and through both
clients: the store's own, and botocore's. A race takes seconds: threads race on Amazon's emulator,
with a client each and with one for all; on ministack only the latter do. The histories have the
processes: in a race they ask so slow a server less often at the same moment than threads do."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from functools import partial

import pytest

from eventonce.stores.dynamodb import DynamoDBStore
from eventonce.testing.cases import races
from eventonce.testing.contract import RACES, Race, StoreContract, StoreFactory
from eventonce.testing.workers import Runner, threads, threads_on_one_handle
from tests.contract import VariantContract
from tests.helpers import PATIENCE
from tests.servers.aws import ASKS_FOR_BOTOCORE, REGION, emulated

EXAMPLES = 20
"""Programs: each asks the server some hundred times. `EVENTONCE_EXAMPLES` plays more."""


def _opener(endpoint: str) -> StoreFactory:
    uri = f"dynamodb://contract-{secrets.token_hex(4)}?region={REGION}&endpoint={endpoint}"
    DynamoDBStore.from_uri(uri).create()
    return StoreFactory(
        # In the URI, because other processes open the store, too.
        partial(DynamoDBStore.from_uri, f"{uri}&timeout={PATIENCE}"),
        sweeps=False,
        counts=False,
        own_clock=True,
        examples=EXAMPLES,
    )


@pytest.fixture(scope="module")
def on_ministack(ministack_url: str) -> Iterator[StoreFactory]:
    with emulated():
        yield _opener(ministack_url)


@pytest.fixture(scope="module")
def on_dynamodb_local(dynamodb_local_url: str) -> Iterator[StoreFactory]:
    with emulated():
        yield _opener(dynamodb_local_url)


@pytest.fixture(scope="class")
def by_botocore(ministack_url: str) -> Iterator[StoreFactory]:
    with emulated(), pytest.MonkeyPatch.context() as patch:
        patch.setenv(*ASKS_FOR_BOTOCORE)
        yield _opener(ministack_url)


class TestOnDynamoDBLocal(StoreContract):
    @pytest.fixture
    def factory(self, on_dynamodb_local: StoreFactory) -> StoreFactory:
        return on_dynamodb_local

    @pytest.mark.parametrize("runner", [threads, threads_on_one_handle])
    @pytest.mark.parametrize("race", RACES)
    def test_race(self, race: Race, runner: Runner, factory: StoreFactory) -> None:
        race(factory, runner)


class ContractOnMinistack(VariantContract):
    @pytest.fixture
    def runner(self) -> Runner:
        return threads_on_one_handle


class TestOnMinistack(ContractOnMinistack):
    @pytest.fixture
    def factory(self, on_ministack: StoreFactory) -> StoreFactory:
        return on_ministack


class TestByBotocore(ContractOnMinistack):
    @pytest.fixture
    def factory(self, by_botocore: StoreFactory) -> StoreFactory:
        return by_botocore

    # The one race with every action: what the others find is in the requests, which are the same.
    @pytest.mark.parametrize("race", [races.no_fact_completes_twice])
    def test_race(self, race: Race, runner: Runner, factory: StoreFactory) -> None:
        race(factory, runner)
