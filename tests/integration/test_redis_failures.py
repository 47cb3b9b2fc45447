"""The errors of the Redis store when its server is away, slow, loading or a replica; and work that
resumes by itself once the server is back."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from eventonce import Consumer, Job, Rule
from eventonce.errors import EventonceError, StoreUnavailable
from eventonce.stores.redis import RedisStore
from eventonce.testing.cases.samples import fact, new_keys, new_letters
from eventonce.types import Action, Claim, Settlement
from tests.helpers import until
from tests.servers import free_port
from tests.servers.relay import relaying
from tests.servers.valkey import Node, frozen, serving, valkey

ACTIONS: Sequence[Action] = ("complete", "release", "bury", "extend")


@pytest.fixture
def store(node: Node) -> Iterator[RedisStore]:
    store = RedisStore.from_uri(f"{node.uri}?prefix={secrets.token_hex(4)}")
    yield store
    store.close()


def _claim() -> Claim:
    return fact(*new_keys(1))


def _runs(store: RedisStore, claim: Claim) -> bool:
    """Whether this claim is granted; False while the server cannot be reached."""
    try:
        (verdict,) = store.claim([claim])
    except StoreUnavailable:
        return False
    assert verdict.kind == "run"
    return True


def _refused(store: RedisStore, kind: type[EventonceError], *says: str) -> None:
    """Assert that a claim and a new dead letter are refused with this error and these words."""
    for ask in (lambda: store.claim([_claim()]), lambda: store.put_letters(new_letters(1))):
        with pytest.raises(kind) as refused:
            ask()
        assert type(refused.value) is kind
        assert all(word in str(refused.value) for word in says), str(refused.value)
        assert refused.value.__cause__ is not None


def test_work_goes_on_after_a_restart() -> None:
    port = free_port()
    store = RedisStore.from_uri(f"redis://127.0.0.1:{port}")
    _refused(store, StoreUnavailable, f"127.0.0.1:{port}", "cannot be reached")
    for _ in range(2):
        with serving(port=port):
            claim = _claim()
            (run,) = store.claim([claim])
            assert store.settle([Settlement(claim, run.token, "complete")]) == ["kept"]
        _refused(store, StoreUnavailable, f"127.0.0.1:{port}", "cannot be reached")
    store.close()


def test_a_lost_connection_is_replaced(node: Node, store: RedisStore) -> None:
    assert store.claim([_claim()])[0].kind == "run"
    assert node.client().client_kill_filter(_type="normal", skipme=True)
    assert store.claim([_claim()])[0].kind == "run"


def test_a_script_the_server_has_lost_is_sent_again(node: Node, store: RedisStore) -> None:
    claim = _claim()
    (run,) = store.claim([claim])
    node.client().script_flush()
    assert store.settle([Settlement(claim, run.token, "complete")]) == ["kept"]
    node.client().script_flush()
    assert store.claim([claim])[0].kind == "duplicate"
    node.client().script_flush()
    assert store.show(claim.key) is not None


def test_a_call_to_a_server_that_hangs_times_out() -> None:
    with serving() as node:
        store = RedisStore.from_uri(f"{node.uri}?timeout=0.2")
        claim = _claim()
        until(lambda: _runs(store, _claim()))
        with frozen(node), pytest.raises(StoreUnavailable, match="no answer in time"):
            store.claim([claim])
        patient = RedisStore.from_uri(node.uri)
        (run,) = patient.claim([claim])
        # The server granted the claim later, and the repeated claim gets the same grant.
        assert (run.kind, run.attempt) == ("run", 1)
        assert patient.settle([Settlement(claim, run.token, "complete")]) == ["kept"]
        until(lambda: _runs(store, _claim()))
        store.close()
        patient.close()


def test_a_replica_is_reported_and_used_once_it_is_a_primary() -> None:
    with serving() as primary, serving() as other:
        store = RedisStore.from_uri(other.uri)
        assert store.claim([_claim()])[0].kind == "run"
        other.client().replicaof("127.0.0.1", primary.port)
        _refused(store, StoreUnavailable, "read-only replica", "primary")
        other.client().replicaof("NO", "ONE")
        assert store.claim([_claim()])[0].kind == "run"
        store.close()


def test_an_address_that_leads_to_another_server_later_is_followed() -> None:
    """Such as the primary endpoint of a provider after a failover, under open connections."""
    with serving() as first, serving() as second, relaying(first.port) as leading:
        store = RedisStore.from_uri(f"redis://127.0.0.1:{leading.port}")
        assert store.claim([_claim()])[0].kind == "run"
        leading.server = second.port
        first.client().replicaof("127.0.0.1", second.port)
        assert store.claim([_claim()])[0].kind == "run"
        assert second.client().dbsize() == 1
        store.close()


def test_a_run_cannot_be_settled_on_a_replica() -> None:
    with serving() as primary, serving() as replica:
        leading, following = RedisStore.from_uri(primary.uri), RedisStore.from_uri(replica.uri)
        claim = _claim()
        (run,) = leading.claim([claim])
        replica.client().replicaof("127.0.0.1", primary.port)
        until(lambda: following.show(claim.key) is not None)
        for action in ACTIONS:
            with pytest.raises(StoreUnavailable, match="read-only replica"):
                following.settle([Settlement(claim, run.token, action)])
        leading.close()
        following.close()


def test_a_server_that_loads_its_data_is_an_outage_until_it_is_ready(tmp_path: Path) -> None:
    port, saved = free_port(), ("--dir", str(tmp_path))
    with serving(valkey, *saved, port=port) as node:
        client = node.client()
        client.mset({f"key {n}": n for n in range(60_000)})
        client.save()
    store = RedisStore.from_uri(f"redis://127.0.0.1:{port}")
    # Microseconds for each key: it would take a minute, were it not stopped before.
    slowly = ("--key-load-delay", "1000", "--loading-process-events-interval-bytes", "1024")
    with serving(valkey, *saved, *slowly, port=port) as node:
        _refused(store, StoreUnavailable, "loading")
        node.process.kill()
        node.process.wait()
    with serving(valkey, *saved, port=port):
        until(lambda: _runs(store, _claim()))
    store.close()


def test_a_refusal_for_too_few_replicas_names_the_setting(node: Node, store: RedisStore) -> None:
    client = node.client()
    client.config_set("min-replicas-to-write", 1)
    try:
        _refused(store, StoreUnavailable, "min-replicas-to-write")
    finally:
        client.config_set("min-replicas-to-write", 0)
    assert store.claim([_claim()])[0].kind == "run"


def test_a_password_that_is_wrong_for_a_while_is_an_outage() -> None:
    with serving() as node:
        store = RedisStore.from_uri(node.uri)
        assert store.claim([_claim()])[0].kind == "run"
        admin = node.client()
        admin.ping()
        admin.config_set("requirepass", "new")
        admin.client_kill_filter(_type="normal", skipme=True)
        _refused(store, StoreUnavailable, "password")
        admin.config_set("requirepass", "")
        assert store.claim([_claim()])[0].kind == "run"
        store.close()


def test_events_run_unguarded_while_the_store_is_away_if_their_rule_says_so() -> None:
    port = free_port()
    ran: list[Job] = []
    rule = Rule(name="orders", key="detail.id", on_store_error="run")
    consumer = Consumer(f"redis://127.0.0.1:{port}", name="test", rules=rule, handler=ran.append)
    (outcome,) = consumer.process({"detail": {"id": "1"}})
    assert (outcome.status, outcome.ack, len(ran)) == ("unguarded", True, 1)
    with serving(port=port):
        statuses = [consumer.process({"detail": {"id": "2"}})[0].status for _ in range(2)]
        assert statuses == ["done", "duplicate"]
    consumer.close()
