"""PostgreSQL is held to the contract: 18, Debian's 15, behind PgBouncer, over a given pool."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
from psycopg_pool import ConnectionPool

from eventonce.stores.postgres import PostgresStore
from eventonce.testing.contract import Opener, StoreContract
from eventonce.testing.opener import EXAMPLES
from tests.servers import PATIENCE
from tests.servers.postgres import Cluster, bouncing, postgres15, serving

FEWER = 50
"""Programs where it is the way to the server that differs, not what it says."""


def _opener(uri: str, examples: int = EXAMPLES) -> Opener:
    patient = f"{uri}?timeout={PATIENCE}&connect_timeout={PATIENCE}"
    return Opener(partial(PostgresStore, patient), own_clock=True, examples=examples)


def _made(uri: str) -> str:
    store = PostgresStore(uri)
    store.create()
    store.close()
    return uri


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with serving() as cluster:
        _made(cluster.uri())
        yield cluster


@pytest.fixture(scope="module")
def debians_uri() -> Iterator[str]:
    with serving(postgres15) as cluster:
        yield _made(cluster.uri())


@pytest.fixture(scope="module")
def bouncer_uri(cluster: Cluster) -> Iterator[str]:
    with bouncing(cluster) as uri:
        yield uri


@pytest.fixture(scope="module")
def pool(cluster: Cluster) -> Iterator[ConnectionPool]:
    with ConnectionPool(cluster.uri(), min_size=1, max_size=10, timeout=PATIENCE) as pool:
        yield pool


class TestPostgres18(StoreContract):
    @pytest.fixture
    def opener(self, cluster: Cluster) -> Opener:
        return _opener(cluster.uri())


class TestPostgres15(StoreContract):
    @pytest.fixture
    def opener(self, debians_uri: str) -> Opener:
        return _opener(debians_uri, FEWER)


class TestPgBouncer(StoreContract):
    @pytest.fixture
    def opener(self, bouncer_uri: str) -> Opener:
        return _opener(bouncer_uri, FEWER)


class TestGivenPool(StoreContract):
    """Connections that open transactions by themselves, as psycopg's do unless told otherwise."""

    @pytest.fixture
    def opener(self, pool: ConnectionPool) -> Opener:
        return Opener(lambda: PostgresStore(pool), processes=False, own_clock=True, examples=FEWER)
