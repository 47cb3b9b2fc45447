"""The servers that most modules need: one of each for a module, which may have another instead."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

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
