"""Runs that a store granted, as they are completed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from eventonce.core.ports import Store
from eventonce.errors import StoreUnavailable
from eventonce.stores.postgres import PostgresStore
from eventonce.types import Claim, Settlement
from tests.helpers import until
from tests.servers.postgres import Cluster

T = TypeVar("T")


def completed(store: Store, claims: Sequence[Claim]) -> list[Settlement]:
    """The completions of these claims, which are granted first."""
    runs = store.claim(claims)
    assert {run.kind for run in runs} == {"run"}
    return [
        Settlement(claim, run.token, "complete") for claim, run in zip(claims, runs, strict=True)
    ]


@contextmanager
def opened(cluster: Cluster) -> Iterator[PostgresStore]:
    """A store on this server, with its schema."""
    store = PostgresStore(made(cluster.uri()))
    yield store
    store.close()


def made(uri: str) -> str:
    """The same URI, after its schema is created."""
    store = PostgresStore(uri)
    store.create()
    store.close()
    return uri


def answered(ask: Callable[[], T]) -> T:
    """The store's answer, as soon as it is available; asking again is safe."""
    answers: list[T] = []

    def told() -> bool:
        try:
            answers.append(ask())
        except StoreUnavailable:
            return False
        return True

    until(told)
    return answers[0]


def alone(cluster: Cluster, name: str = "eventonce", *, left: int = 0) -> None:
    """Wait until so many connections of this name are left: a server notices only after a
    moment that a client has ended, and until then its transaction lasts."""
    query = "SELECT count(*) FROM pg_stat_activity WHERE %s::text IN (application_name, usename)"
    with cluster.connect() as connection:
        until(lambda: connection.execute(query, (name,)).fetchone() == (left,))
