"""Runs that a store granted, as they are completed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from eventonce.ports import Store
from eventonce.stores.postgres import PostgresStore
from eventonce.types import Claim, Settlement
from tests.servers.postgres import Cluster


def completed(store: Store, claims: Sequence[Claim]) -> list[Settlement]:
    """Claimed, and how they would be completed."""
    runs = store.claim(claims)
    assert {run.kind for run in runs} == {"run"}
    return [
        Settlement(claim, run.token, "complete") for claim, run in zip(claims, runs, strict=True)
    ]


@contextmanager
def opened(cluster: Cluster) -> Iterator[PostgresStore]:
    """A store on this server, its schema made."""
    store = PostgresStore(cluster.uri())
    store.create()
    yield store
    store.close()
