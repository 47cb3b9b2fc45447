"""Redis in its three forms is held to the contract: Valkey, Debian's Redis 7, a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from unittest import SkipTest

import pytest

from eventonce.stores.redis import RedisStore
from eventonce.testing.contract import CASES, StoreContract, StoreFactory
from eventonce.testing.factory import EXAMPLES
from tests.contract import FEWER, VariantContract
from tests.helpers import PATIENCE
from tests.servers.valkey import clustered, redis7, redis62, serving


def _opener(uri: str, examples: int = EXAMPLES) -> StoreFactory:
    patient = f"{uri}?timeout={PATIENCE}&connect_timeout={PATIENCE}"
    opens = partial(RedisStore.from_uri, patient)
    return StoreFactory(opens, sweeps=False, own_clock=True, examples=examples)


@pytest.fixture(scope="module")
def valkey_uri() -> Iterator[str]:
    with serving() as node:
        yield node.uri


@pytest.fixture(scope="module")
def redis_uri() -> Iterator[str]:
    with serving(redis7) as node:
        yield node.uri


@pytest.fixture(scope="module")
def cluster_uri() -> Iterator[str]:
    with clustered() as cluster:
        yield cluster.uri


class TestValkey(StoreContract):
    @pytest.fixture
    def factory(self, valkey_uri: str) -> StoreFactory:
        return _opener(valkey_uri)


class TestRedis7(VariantContract):
    @pytest.fixture
    def factory(self, redis_uri: str) -> StoreFactory:
        return _opener(redis_uri, FEWER)


class TestCluster(VariantContract):
    @pytest.fixture
    def factory(self, cluster_uri: str) -> StoreFactory:
        return _opener(cluster_uri, FEWER)


def test_the_oldest_redis_answers_as_the_law_does() -> None:
    """Redis 6.2 answers some commands in other words."""
    with serving(redis62) as node:
        factory = _opener(node.uri, FEWER)
        for case in CASES:
            with suppress(SkipTest):
                case(factory)
