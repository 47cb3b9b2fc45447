"""Connections to Redis that are lost without notice, as behind an address translator."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redis.exceptions import NoScriptError

from eventonce.errors import StoreUnavailable
from eventonce.stores.redis import RedisStore, connections
from eventonce.stores.redis.codec import COUNT
from eventonce.testing.cases.samples import fact, new_keys
from tests.helpers import PATIENCE
from tests.integration.test_redis_clients import at_once
from tests.servers.relay import Relay, relaying
from tests.servers.valkey import Node

MANY = connections.IDLE_CONNECTIONS + 4
"""Connections: some idle ones outside the pool, the others in it."""


@pytest.fixture
def relay(node: Node) -> Iterator[Relay]:
    with relaying(node.port) as relay:
        yield relay


def _options(store: RedisStore) -> dict[str, Any]:
    """The arguments of the store's new connections."""
    options: dict[str, Any] = store._server.nodes()[0].pool.connection_kwargs
    return options


@pytest.mark.parametrize(
    "ask",
    [lambda store: store.claim(_claims(1)), lambda store: list(store.letters())],
    ids=["claim", "letters"],
)
def test_one_time_out_drops_all_idle_connections(
    relay: Relay, ask: Callable[[RedisStore], object]
) -> None:
    store = RedisStore.from_uri(f"redis://127.0.0.1:{relay.port}?timeout={PATIENCE}")
    at_once(store, MANY)
    # Open connections wait for a second, and new connections for as long as it takes.
    for connection in _every(store):
        connection._sock.settimeout(1)
        connection.socket_timeout = 1
    relay.silence()
    with pytest.raises(StoreUnavailable, match="no answer in time"):
        ask(store)
    at_once(store, MANY)
    store.close()


def _every(store: RedisStore) -> list[Any]:
    (node,) = store._server.nodes()
    pool: Any = node.pool
    return [*(it for _, it in node._idle), *pool._available_connections]


def _claims(count: int) -> list[Any]:
    return [fact(key) for key in new_keys(count)]


def test_a_connection_that_was_idle_for_long_is_not_used_again(
    relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = RedisStore.from_uri(f"redis://127.0.0.1:{relay.port}?timeout=1")
    at_once(store, MANY)
    _options(store)["socket_timeout"] = PATIENCE
    relay.silence()
    late = connections.IDLE_LIMIT
    monkeypatch.setattr(connections, "monotonic", lambda: time.monotonic() + late)
    at_once(store, MANY)
    store.close()


def test_connections_have_tcp_keepalive_settings(node: Node) -> None:
    store = RedisStore.from_uri(node.uri)
    store.claim(_claims(1))
    (connection,) = _every(store)
    assert connection._sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    assert connection._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 30
    store.close()


def test_a_script_that_a_proxy_refuses_is_sent_only_once_more() -> None:
    """Such as by a proxy that does not support scripts."""

    class Proxy:
        sent = 0

        def send_packed_command(self, _: object) -> None:
            self.sent += 1

        def read_response(self, *, disable_decoding: bool) -> None:
            raise NoScriptError("No matching script.")

    command = connections.Command((b"EVALSHA", COUNT.sha, b"0"), script=COUNT.text)
    proxy = Proxy()
    connections.send(proxy, [command], connections.NO_WAIT)
    (reply,) = connections.receive(proxy, [command], connections.NO_WAIT)
    assert isinstance(reply, NoScriptError)
    assert proxy.sent == 2
