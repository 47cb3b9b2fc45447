"""A user with the rights that docs/stores/redis.md names: taken from the page word for word."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from eventonce.errors import ConfigError, EventonceError, StoreUnavailable
from eventonce.stores.redis import RedisStore
from eventonce.testing.cases.samples import fact, new_keys, new_letters, version
from eventonce.types import Action, Settlement
from tests.helpers import until
from tests.integration.test_redis_clients import works
from tests.servers.valkey import Binary, Node, clustered, redis7, redis62, serving, valkey

PAGE = Path(__file__).parents[2] / "docs/stores/redis.md"
OWN = {"client", "client|setinfo", "client|maint_notifications"}
"""Commands that the driver sends on its own; the driver works without them."""
ACTIONS: tuple[Action, ...] = ("extend", "release", "bury")


def _rule() -> list[str]:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    (rule,) = [line for line in lines if line.startswith("ACL SETUSER")]
    return rule.split()


@pytest.fixture(scope="module", params=[valkey, redis7, redis62])
def node(request: pytest.FixtureRequest) -> Iterator[Node]:
    binary: Binary = request.param
    with serving(binary) as node, serving(binary, "--replicaof", "127.0.0.1", str(node.port)) as it:
        until(lambda: bool(it.client().info("replication")["master_link_status"] == "up"))
        until(lambda: bool(node.client().wait(1, 100)))
        node.client().execute_command(*_rule())
        yield node


def _everything(store: RedisStore) -> None:
    """Every kind of call that a store gets."""
    works(store)
    for action in ACTIONS:
        one, other = new_keys(2)
        claims = [fact(one), version(other, 1)]
        ended = [
            Settlement(claim, run.token, action)
            for claim, run in zip(claims, store.claim(claims), strict=True)
        ]
        assert store.settle(ended) == ["kept", "kept"]
    assert store.letter("none") is None
    store.add_name("crm")
    assert store.names() == ["crm"]
    assert store.create() == store.migrate() == []
    assert store.sweep() == 0
    assert not [it for it in store.check() if not it.fine and "restart" not in it.what]


def _denied(client: Any) -> set[str]:
    return {entry["object"] for entry in client.acl_log()}


@pytest.mark.parametrize("path", ["", "/3"])
def test_a_user_needs_no_more_rights_than_the_page_names(
    node: Node, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A replica on a busy machine may be slow; this test does not measure it.
    monkeypatch.setattr("eventonce.stores.redis.store.REPLICATION_TIMEOUT", 30.0)
    where = f"redis://eventonce:password@127.0.0.1:{node.port}{path}"
    store = RedisStore.from_uri(f"{where}?client_name=crm&wait_replicas=1&timeout=60")
    _everything(store)
    assert "crm" in {it["name"] for it in node.client().client_list()}
    store.close()
    assert _denied(node.client()) <= OWN


def test_a_user_needs_no_more_rights_at_a_server_that_is_full(node: Node) -> None:
    store = RedisStore.from_uri(f"redis://eventonce:password@127.0.0.1:{node.port}")
    claim = fact(*new_keys(1))
    (run,) = store.claim([claim])
    node.client().config_set("maxmemory", 1)
    try:
        assert store.settle([Settlement(claim, run.token, "complete")]) == ["kept"]
    finally:
        node.client().config_set("maxmemory", 0)
    store.close()


def test_a_user_of_a_cluster_needs_no_more_rights() -> None:
    with clustered() as cluster:
        for node in cluster.nodes:
            node.client().execute_command(*_rule())
        hosts = cluster.uri.removeprefix("redis+cluster://")
        uri = f"redis+cluster://eventonce:password@{hosts}?client_name=crm&wait_replicas=1"
        store = RedisStore.from_uri(uri)
        _everything(store)
        store.close()
        for node in cluster.nodes:
            assert _denied(node.client()) <= OWN


def test_a_user_may_not_use_keys_with_another_prefix(node: Node) -> None:
    uri = f"redis://eventonce:password@127.0.0.1:{node.port}?prefix=others"
    store = RedisStore.from_uri(uri)
    with pytest.raises(ConfigError, match="lacks a permission"):
        store.claim([fact(*new_keys(1))])
    store.close()
    node.client().execute_command("ACL LOG", "RESET")


def test_a_user_without_a_command_of_the_scripts_lacks_a_permission(node: Node) -> None:
    node.client().execute_command(
        "ACL", "SETUSER", "few", "on", ">password", "~eventonce:*", "+@all", "-set"
    )
    store = RedisStore.from_uri(f"redis://few:password@127.0.0.1:{node.port}")
    claim = fact(*new_keys(1))
    with pytest.raises(ConfigError, match="lacks a permission"):
        store.claim([claim])
    assert store.show(claim.key) is None
    with pytest.raises(StoreUnavailable, match="lacks a permission"):
        store.claim([claim])
    store.close()
    node.client().execute_command("ACL LOG", "RESET")


@pytest.mark.parametrize("right", ["zadd", "hsetnx"])
def test_a_dead_letter_that_a_right_was_missing_for_is_listed_once_when_it_is_put_again(
    node: Node, right: str
) -> None:
    node.client().execute_command(
        "ACL", "SETUSER", "few", "on", ">password", "~eventonce:*", "+@all", f"-{right}"
    )
    few = RedisStore.from_uri(f"redis://few:password@127.0.0.1:{node.port}")
    store = RedisStore.from_uri(f"redis://eventonce:password@127.0.0.1:{node.port}")
    (letter,) = new_letters(1)
    with pytest.raises(EventonceError, match="lacks a permission"):
        few.put_letters([letter])
    # Its event came again later.
    letter = replace(letter, at=letter.at + 1)
    store.put_letters([letter])
    assert [one for one in store.letters() if one.id == letter.id] == [letter]
    assert store.drop_letters([letter.id]) == 1
    listed = node.client().zrange("eventonce:{letters}:places", 0, -1)
    assert not [place for place in listed if place.endswith(letter.id.encode())]
    few.close()
    store.close()
    node.client().execute_command("ACL LOG", "RESET")


def test_a_dead_letter_that_may_not_be_unlisted_is_not_dropped(node: Node) -> None:
    node.client().execute_command(
        "ACL", "SETUSER", "few", "on", ">password", "~eventonce:*", "+@all", "-zrem"
    )
    few = RedisStore.from_uri(f"redis://few:password@127.0.0.1:{node.port}")
    store = RedisStore.from_uri(f"redis://eventonce:password@127.0.0.1:{node.port}")
    (letter,) = new_letters(1)
    store.put_letters([letter])
    with pytest.raises(EventonceError, match="lacks a permission"):
        few.drop_letters([letter.id])
    # Otherwise it would be listed twice when it is put again later.
    assert store.letter(letter.id) == letter
    assert store.drop_letters([letter.id]) == 1
    few.close()
    store.close()
    node.client().execute_command("ACL LOG", "RESET")


@pytest.mark.parametrize("right", ["mget", "zadd"])
def test_the_check_finds_a_missing_right_of_a_script(node: Node, right: str) -> None:
    node.client().execute_command(
        "ACL", "SETUSER", "few", "on", ">password", "~eventonce:*", "+@all", f"-{right}"
    )
    few = RedisStore.from_uri(f"redis://few:password@127.0.0.1:{node.port}")
    (found,) = few.check()
    assert "lacks a permission" in found.fix
    few.close()
    node.client().execute_command("ACL LOG", "RESET")
