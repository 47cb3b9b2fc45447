"""The Redis store with the user's own clients, in many threads, across forks, behind a Sentinel."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
from redis.sentinel import Sentinel

from eventonce.errors import StoreUnavailable
from eventonce.stores.redis import RedisStore, connections
from eventonce.testing.cases.samples import EVERY_BYTE, fact, new_keys, new_letters
from eventonce.types import Settlement
from tests.helpers import PATIENCE, until
from tests.servers.valkey import Node, caught_up, sentinel, serving, valkey


def works(store: RedisStore) -> None:
    """Make calls that read every kind of reply."""
    claims = [fact(key) for key in new_keys(20)]
    runs = store.claim(claims)
    settlements = [
        Settlement(claim, run.token, "complete", EVERY_BYTE)
        for claim, run in zip(claims, runs, strict=True)
    ]
    assert set(store.settle(settlements)) == {"kept"}
    assert {copy.result for copy in store.claim(claims)} == {EVERY_BYTE}
    record = store.show(claims[0].key)
    assert record is not None
    assert record.result == EVERY_BYTE
    letters = new_letters(3)
    store.put_letters(letters)
    assert list(store.letters(letters[0].consumer)) == letters
    assert store.stats().letters >= 3
    assert store.drop_letters([letter.id for letter in letters]) == 3
    assert store.forget([claim.key for claim in claims]) == 20


@pytest.mark.parametrize("decode", [False, True], ids=["bytes", "decoding"])
@pytest.mark.parametrize("protocol", [2, 3])
def test_a_client_may_decode_and_speak_either_protocol(
    node: Node, protocol: int, decode: bool
) -> None:
    client: Any = redis.Redis(port=node.port, protocol=protocol, decode_responses=decode)
    store = RedisStore(client, prefix="mine")
    works(store)
    store.close()
    assert client.ping()
    client.close()


def test_the_store_works_without_hiredis(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_pack", connections._pack_slowly)
    store = RedisStore.from_uri(node.uri)
    works(store)
    store.close()


def at_once(store: RedisStore, threads: int) -> None:
    """Make so many calls at the same moment, each over a connection of its own."""
    gate = threading.Barrier(threads)
    acquire = connections.Connections.acquire

    def slowly(owner: connections.Connections) -> Any:
        connection = acquire(owner)
        gate.wait(PATIENCE)
        return connection

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(threads) as pool:
        patch.setattr(connections.Connections, "acquire", slowly)
        verdicts = pool.map(lambda key: store.claim([fact(key)])[0].kind, new_keys(threads))
        assert set(verdicts) == {"run"}


def test_a_store_leaves_connections_of_a_small_pool_to_other_users(node: Node) -> None:
    client: Any = redis.Redis(port=node.port, max_connections=3)
    store = RedisStore(client)
    at_once(store, 3)
    assert client.ping()
    held = [client.connection_pool.get_connection() for _ in range(2)]
    # The store keeps the third connection, and the pool has no more.
    works(store)
    store.close()
    held.append(client.connection_pool.get_connection())
    with pytest.raises(StoreUnavailable, match="max_connections"):
        store.claim([fact(*new_keys(1))])
    for connection in held:
        client.connection_pool.release(connection)
    works(store)
    client.close()


def test_a_claim_works_after_all_idle_connections_were_closed(node: Node) -> None:
    store = RedisStore.from_uri(node.uri)
    at_once(store, 6)
    assert node.client().client_kill_filter(_type="normal", skipme=True) >= 6
    assert store.claim([fact(*new_keys(1))])[0].kind == "run"
    store.close()


def test_an_interrupted_call_leaves_no_reply_for_the_next_call(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = RedisStore.from_uri(node.uri)
    works(store)

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("redis.connection.AbstractConnection.read_response", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.claim([fact(key) for key in new_keys(5)])
    works(store)
    store.close()


def test_threads_share_a_store_and_each_key_runs_once(node: Node) -> None:
    store = RedisStore.from_uri(f"{node.uri}?timeout={PATIENCE}&connect_timeout={PATIENCE}")
    keys, threads = new_keys(300), 32
    gate = threading.Barrier(threads)

    def work(_: int) -> int:
        gate.wait()
        won = 0
        for key in keys:
            claim = fact(key)
            (verdict,) = store.claim([claim])
            if verdict.kind == "run":
                result = str(claim.nonce).encode()
                settlement = Settlement(claim, verdict.token, "complete", result)
                assert store.settle([settlement]) == ["kept"]
                assert store.claim([claim])[0].result == result
                won += 1
        return won

    with ThreadPoolExecutor(threads) as pool:
        assert sum(pool.map(work, range(threads))) == len(keys)
    store.close()


FORKING = """
import os, sys, threading
from eventonce.stores.redis import RedisStore
from eventonce.testing.cases.samples import fact, new_keys
from eventonce.types import Settlement

store = RedisStore.from_uri(sys.argv[1])

def work(rounds):
    for _ in range(rounds):
        claims = [fact(key) for key in new_keys(5)]
        runs = store.claim(claims)
        ended = [Settlement(c, r.token, "complete", c.key) for c, r in zip(claims, runs)]
        assert store.settle(ended) == ["kept"] * 5
        assert [copy.result for copy in store.claim(claims)] == [c.key for c in claims]

work(3)
children = []
for _ in range(4):
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work(100)
            grandchild = os.fork()
            if grandchild == 0:
                work(20)
                os._exit(0)
            work(20)
            status = os.waitpid(grandchild, 0)[1]
        finally:
            os._exit(1 if status else 0)
    children.append(child)
    work(20)
work(100)
sys.exit(any(os.waitpid(child, 0)[1] for child in children))
"""


def fork_and_work(uri: str) -> None:
    """Fork in a separate process: a fork of the tests' would copy locks that their threads hold."""
    command = [sys.executable, "-c", FORKING, uri]
    ran = subprocess.run(command, capture_output=True, timeout=600, check=False)
    assert ran.returncode == 0, ran.stderr.decode()


def test_a_store_works_in_both_processes_after_a_fork(node: Node) -> None:
    fork_and_work(node.uri)


def test_a_sentinel_leads_to_the_new_primary() -> None:
    with serving() as first, serving(valkey, "--replicaof", f"127.0.0.1 {first.port}") as second:
        until(lambda: second.client().info("replication")["master_link_status"] == "up")
        with sentinel(first.port) as port:
            watch: Callable[..., Any] = Sentinel
            watching = watch([("127.0.0.1", port)], socket_timeout=PATIENCE)
            client = watching.master_for("events", socket_timeout=PATIENCE)
            store = RedisStore(client)
            assert repr(store).startswith("RedisStore('Redis events'")
            fails_over(store, first, second, watching.sentinels[0])
            store.close()
            client.close()


def fails_over(store: RedisStore, first: Node, second: Node, sentinel: Any) -> None:
    """A run that was granted by one primary is completed at the next."""
    claim = fact(*new_keys(1), lease=600_000)
    until(lambda: len(sentinel.sentinel_slaves("events")) == 1)
    (run,) = store.claim([claim])
    until(lambda: store.show(claim.key) is not None)
    caught_up(second, first)
    first.process.kill()
    first.process.wait()
    sentinel.sentinel_set("events", "down-after-milliseconds", 500)
    until(lambda: _settles(store, Settlement(claim, run.token, "complete")))
    assert second.client().role()[0] == b"master"


def _settles(store: RedisStore, settlement: Settlement) -> bool:
    try:
        return store.settle([settlement]) == ["kept"]
    except StoreUnavailable:
        return False
