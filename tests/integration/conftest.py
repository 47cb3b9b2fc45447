"""The servers that most modules need, one of each for a module, and the histories on them.

A module may have a server of its own instead."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from eventonce.history import History
from eventonce.stores.postgres import PostgresStore
from tests.integration.granted import opened
from tests.servers import postgres, valkey


@pytest.fixture(scope="module")
def node() -> Iterator[valkey.Node]:
    """A Valkey."""
    with valkey.serving() as node:
        yield node


@pytest.fixture(scope="module")
def cluster() -> Iterator[postgres.Cluster]:
    """A PostgreSQL with the store's schema."""
    with postgres.serving() as cluster, opened(cluster):
        yield cluster


@pytest.fixture
def store(cluster: postgres.Cluster) -> Iterator[PostgresStore]:
    """A store on that PostgreSQL."""
    with opened(cluster) as store:
        yield store


@pytest.fixture(params=["sqlite", "postgres"])
def uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URI of an empty history, in each database that can have one."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/history.db"
    cluster: postgres.Cluster = request.getfixturevalue("cluster")
    cluster.execute("DROP SCHEMA IF EXISTS eventonce CASCADE")
    return cluster.uri()


@pytest.fixture
def history(uri: str) -> Iterator[History]:
    """The same history, with a name for its worker."""
    with History(uri, worker="w1") as history:
        yield history
