"""A Redis at its maxmemory grants no more runs, and the runs that it granted can be settled."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from eventonce import Consumer, Job, Rule
from eventonce.errors import StoreUnavailable
from eventonce.stores.probe import PROBE, new_trial_key, write_trial
from eventonce.stores.redis import RedisStore
from eventonce.testing.cases.samples import fact, new_keys, new_letters, version
from eventonce.types import Action, Claim, Settlement
from tests.servers.valkey import Binary, Node, redis7, redis62, serving, valkey

RESULT = bytes(1_000)
"""More than a record takes while its run is under way: each completion needs new memory."""
SPARE = 300_000
"""Bytes left to the store: about two thousand grants."""


@pytest.fixture(scope="module", params=[valkey, redis7, redis62])
def node(request: pytest.FixtureRequest) -> Iterator[Node]:
    binary: Binary = request.param
    with serving(binary, "--maxmemory-policy", "noeviction") as node:
        yield node


@pytest.fixture
def store(node: Node) -> Iterator[RedisStore]:
    node.client().config_set("maxmemory", 0)
    node.client().flushall()
    store = RedisStore.from_uri(node.uri)
    yield store
    store.close()


def _use_up(node: Node) -> None:
    node.client().config_set("maxmemory", 1)


def _granted(store: RedisStore, claim: Claim) -> Settlement | None:
    """The completion of the run that the claim is granted; None where the memory is full."""
    try:
        (run,) = store.claim([claim])
    except StoreUnavailable:
        return None
    assert run.kind == "run"
    return Settlement(claim, run.token, "complete", RESULT)


def test_every_granted_run_can_be_completed_and_no_other_run_is_granted(
    node: Node, store: RedisStore
) -> None:
    # The connection and the scripts take memory, too, and exist from now on.
    first = _granted(store, fact(*new_keys(1)))
    assert first is not None
    assert store.settle([first]) == ["kept"]
    client = node.client()
    client.config_set("maxmemory", client.info("memory")["used_memory"] + SPARE)
    granted: list[Settlement] = []
    while settlement := _granted(store, fact(*new_keys(1))):
        granted.append(settlement)
        assert len(granted) < SPARE
    assert granted
    half = len(granted) // 2
    for settlement in granted[:half]:
        assert store.settle([settlement]) == ["kept"]
    assert set(store.settle(granted[half:])) == {"kept"}
    assert _granted(store, fact(*new_keys(1))) is None
    copies = store.claim([replace(it.claim, nonce=1) for it in granted])
    assert {(copy.kind, copy.result) for copy in copies} == {("duplicate", RESULT)}
    # A batch of copies and new events is refused whole: no copy runs, and no new event is lost.
    with pytest.raises(StoreUnavailable, match="maxmemory"):
        store.claim([granted[0].claim, fact(*new_keys(1))])
    node.client().config_set("maxmemory", 0)
    assert _granted(store, fact(*new_keys(1))) is not None


def test_a_full_server_answers_a_probe_and_refuses_a_trial_write(
    node: Node, store: RedisStore
) -> None:
    _use_up(node)
    key = new_trial_key()
    assert store.claim([PROBE])[0].kind == "run"
    with pytest.raises(StoreUnavailable, match="maxmemory"):
        write_trial(store, key)
    node.client().config_set("maxmemory", 0)
    write_trial(store, key)
    assert store.stats().records == 0


@pytest.mark.parametrize("action", ["complete", "release", "bury", "extend"])
def test_a_full_server_stores_a_settlement_of_every_kind(
    node: Node, store: RedisStore, action: Action
) -> None:
    one, other = new_keys(2)
    claims = [fact(one), version(other, 1)]
    settlements = [
        Settlement(claim, run.token, action)
        for claim, run in zip(claims, store.claim(claims), strict=True)
    ]
    _use_up(node)
    assert store.settle(settlements) == ["kept", "kept"]
    # A server that was restarted has lost the script, too.
    node.client().script_flush()
    assert store.settle(settlements[:1]) == ["kept"]


@pytest.mark.parametrize(
    "unlike",
    [{"status": "invalid"}, {"key": b"", "rule": "", "attempt": 0}],
    ids=["input without a key", "an event that no handler takes"],
)
def test_a_full_server_stores_the_dead_letter_of_a_run_and_refuses_other_dead_letters(
    node: Node, store: RedisStore, unlike: dict[str, Any]
) -> None:
    dead, another = new_letters(2)
    other = replace(another, **unlike)
    _use_up(node)
    with pytest.raises(StoreUnavailable, match="maxmemory"):
        store.put_letters([other])
    store.put_letters([dead])
    assert list(store.letters()) == [dead]
    assert store.drop_letters([dead.id]) == 1
    node.client().config_set("maxmemory", 0)
    store.put_letters([other])
    assert list(store.letters()) == [other]


def test_an_event_during_which_the_memory_is_used_up_takes_effect_once(
    node: Node, store: RedisStore
) -> None:
    ran: list[str] = []

    def handle(job: Job) -> None:
        ran.append(job.event.detail["id"])
        _use_up(node)

    rule = Rule(name="orders", key="detail.id")
    consumer = Consumer(store, name="test", rules=rule, handler=handle)
    first, second = {"detail": {"id": "1"}}, {"detail": {"id": "2"}}
    assert [consumer.process(first)[0].status for _ in range(2)] == ["done", "duplicate"]
    (refused,) = consumer.process(second)
    assert (refused.status, refused.ack, ran) == ("failed", False, ["1"])
    node.client().config_set("maxmemory", 0)
    assert [consumer.process(second)[0].status for _ in range(2)] == ["done", "duplicate"]
    assert ran == ["1", "2"]
    consumer.close()
