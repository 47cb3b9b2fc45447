"""Connections to PostgreSQL that are lost without notice: one time-out drops all of them."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

from eventonce.errors import StoreUnavailable
from eventonce.stores.postgres import PostgresStore, connections
from eventonce.stores.postgres.guarded_connection import GuardedConnection
from eventonce.testing.cases.samples import fact, new_keys
from tests.helpers import PATIENCE
from tests.servers.postgres import Cluster
from tests.servers.relay import Relay, relaying

KEPT = 4
"""Connections of each kind that lie idle when the network goes silent."""


@pytest.fixture
def relay(cluster: Cluster) -> Iterator[Relay]:
    with relaying(cluster.port) as relay:
        yield relay


@pytest.fixture
def store(relay: Relay) -> Iterator[PostgresStore]:
    """A store with idle connections, for its own work and for handlers."""
    store = PostgresStore(f"postgresql://postgres@127.0.0.1:{relay.port}/postgres")
    together = threading.Barrier(KEPT)

    def connect(_: int) -> None:
        store._connections.do(lambda _: together.wait(PATIENCE))
        with store.transaction():
            together.wait(PATIENCE)

    with ThreadPoolExecutor(KEPT) as threads:
        list(threads.map(connect, range(KEPT)))
    yield store
    store.close()


@contextmanager
def short_timeout(store: PostgresStore) -> Iterator[None]:
    """A short time-out, for the only call that cannot be answered."""
    connections = store._connections
    usual = connections.address
    options = msgspec.structs.replace(usual.options, timeout=0.1)
    brief = msgspec.structs.replace(usual, options=options)
    used: tuple[Any, ...] = (connections, connections.work, connections.handlers)
    for one in used:
        one.address = brief
    try:
        yield
    finally:
        for one in used:
            one.address = usual


def works(store: PostgresStore) -> None:
    for _ in range(KEPT):
        assert store.claim([fact(*new_keys(1))])[0].kind == "run"
        with store.transaction() as transaction:
            transaction.connection.execute("SELECT 1")


def test_one_call_that_is_not_answered_drops_all_idle_connections(
    relay: Relay, store: PostgresStore
) -> None:
    relay.silence()
    with short_timeout(store), pytest.raises(StoreUnavailable, match="no answer"):
        store.claim([fact(*new_keys(1))])
    works(store)


def test_one_transaction_that_cannot_begin_drops_all_idle_connections(
    relay: Relay, store: PostgresStore
) -> None:
    relay.silence()
    with (
        short_timeout(store),
        pytest.raises(StoreUnavailable, match="no answer"),
        store.transaction(),
    ):
        raise AssertionError("it never began")
    works(store)


def test_one_commit_that_is_not_answered_drops_all_idle_connections(
    relay: Relay, store: PostgresStore
) -> None:
    def commit_into_silence() -> None:
        with store.transaction() as transaction:
            transaction.connection.execute("SELECT 1")
            relay.silence()

    with short_timeout(store), pytest.raises(StoreUnavailable, match="no answer"):
        commit_into_silence()
    works(store)


def test_a_connection_that_lay_idle_for_long_is_not_used_again(
    relay: Relay, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "IDLE_LIMIT", 0.0)
    relay.silence()
    works(store)


def options(connection: GuardedConnection) -> tuple[int, ...]:
    """The options of the connection's socket."""
    with socket.socket(fileno=socket.dup(connection.fileno())) as wire:
        tcp = [
            socket.TCP_KEEPIDLE,
            socket.TCP_KEEPINTVL,
            socket.TCP_KEEPCNT,
            socket.TCP_USER_TIMEOUT,
        ]
        return (
            wire.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE),
            *(wire.getsockopt(socket.IPPROTO_TCP, option) for option in tcp),
        )


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ("", (1, 30, 10, 3, 60_000)),
        ("?keepalives_idle=7&tcp_user_timeout=5000", (1, 7, 10, 3, 5_000)),
    ],
)
def test_connections_have_tcp_keepalive_settings_that_the_uri_may_change(
    cluster: Cluster, asked: str, told: tuple[int, ...]
) -> None:
    store = PostgresStore(cluster.uri(options=asked))
    assert store._connections.do(options) == told  # type: ignore[arg-type]
    with store.transaction() as transaction:
        assert options(transaction.connection) == told  # type: ignore[arg-type]
    store.close()
