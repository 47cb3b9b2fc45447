"""The data that the Redis store leaves in Redis: its size, its lifetime and its forms."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest
from msgspec.structs import replace
from redis.crc import key_slot

from eventonce import Consumer
from eventonce.errors import StoreMismatch
from eventonce.runtime.brief_results import result_key
from eventonce.stores.redis import RedisStore
from eventonce.stores.redis.codec import PARTITION_TAGS, Keys
from eventonce.testing.cases.samples import DAY, MINUTE, fact, new_consumer, new_keys, version
from eventonce.types import Action, Claim, Settlement
from tests.helpers import call, ruled
from tests.servers.valkey import Binary, Node, redis7, serving, valkey

FACTS = 120_000
BYTES_A_FACT = 160


@pytest.fixture
def store(node: Node) -> Iterator[RedisStore]:
    store = RedisStore.from_uri(node.uri)
    yield store
    store.close()


def _name(claim: Claim) -> bytes:
    return Keys("eventonce").of([claim.key])[0]


def _complete(store: RedisStore, claims: list[Claim], now: int | None = None) -> None:
    runs = store.claim(claims, now)
    settlements = [
        Settlement(claim, run.token, "complete") for claim, run in zip(claims, runs, strict=True)
    ]
    assert set(store.settle(settlements, now)) == {"kept"}


@pytest.mark.parametrize(
    ("binary", "digest"),
    [(valkey, b""), (valkey, b"contents"), (redis7, b"")],
    ids=["valkey", "valkey, verified content", "redis7"],
)
def test_a_fact_takes_few_bytes(binary: Binary, digest: bytes) -> None:
    """Debian's Redis rounds up to steps of 16 bytes, and verified content then takes 164."""
    with serving(binary) as node:
        store, client = RedisStore.from_uri(node.uri), node.client()
        before = client.info("memory")["used_memory"]
        for _ in range(FACTS // 1_000):
            claims = [fact(key, by=key[:4], digest=digest) for key in new_keys(1_000)]
            _complete(store, claims)
        used = client.info("memory")["used_memory"] - before
        store.close()
        assert used / FACTS <= BYTES_A_FACT


@pytest.mark.parametrize("window", [500, 1_001, 65_000])
def test_redis_drops_a_record_at_its_millisecond(
    node: Node, store: RedisStore, window: int
) -> None:
    client = node.client()
    for _ in range(20):
        claim = fact(*new_keys(1), lease=10, remember=window)
        (run,) = store.claim([claim])
        # Not completed yet: its attempts are counted for a day.
        assert client.pexpiretime(_name(claim)) == run.token // 1000 + DAY
        settled = time.monotonic()
        store.settle([Settlement(claim, run.token, "complete")])
        record, expires = store.show(claim.key), client.pexpiretime(_name(claim))
        # On a busy machine the window may be over before the record was read.
        if time.monotonic() - settled < window / 1_000:
            break
    assert record is not None
    assert expires == record.expires
    if window < 1_000:
        while _instant(client) <= record.expires:
            time.sleep(0.01)
        assert client.exists(_name(claim)) == 0
        assert store.claim([fact(claim.key)])[0].kind == "run"


def _instant(client: Any) -> int:
    """Milliseconds by the server's own clock."""
    seconds, microseconds = client.time()
    return int(seconds * 1_000 + microseconds // 1_000)


def test_a_lease_longer_than_the_memory_keeps_its_record(node: Node, store: RedisStore) -> None:
    one, other = new_keys(2)
    for claim in (
        fact(one, lease=30 * DAY, remember=MINUTE),
        version(other, 1, lease=30 * DAY, remember=MINUTE),
    ):
        (run,) = store.claim([claim])
        assert node.client().pexpiretime(_name(claim)) == run.token // 1000 + run.wait
        assert store.settle([Settlement(claim, run.token, "extend")]) == ["kept"]
        record = store.show(claim.key)
        assert record is not None
        assert node.client().pexpiretime(_name(claim)) == record.held_until


def _held(store: RedisStore) -> Claim:
    claim = fact(*new_keys(1), by=b"here")
    store.claim([claim])
    return claim


def _done(store: RedisStore) -> Claim:
    claim = fact(*new_keys(1), by=b"here", digest=b"contents")
    _complete(store, [claim])
    return claim


def _brief(store: RedisStore) -> Claim:
    claim = fact(*new_keys(1), by=b"here")
    _complete(store, [claim])
    return claim


def _answered(store: RedisStore) -> Claim:
    claim = fact(*new_keys(1), by=b"here")
    (run,) = store.claim([claim])
    store.settle([Settlement(claim, run.token, "complete", b"result")])
    return claim


def _buried(store: RedisStore) -> Claim:
    claim = fact(*new_keys(1))
    (run,) = store.claim([claim])
    store.settle([Settlement(claim, run.token, "bury")])
    return claim


def _state(store: RedisStore) -> Claim:
    (key,) = new_keys(1)
    claim = version(key, 7, digest=b"A")
    _complete(store, [claim])
    return claim


MAKERS = (_held, _done, _brief, _answered, _buried, _state)
MORE = b"\x00what the next minor release adds\xff"


@pytest.mark.parametrize("make", MAKERS)
def test_bytes_that_the_next_release_adds_are_ignored_and_kept(
    node: Node, store: RedisStore, make: Callable[[RedisStore], Claim]
) -> None:
    claim, client = make(store), node.client()
    shown = store.show(claim.key)
    client.append(_name(claim), MORE)
    assert store.show(claim.key) == shown
    for change in _changes(claim):
        change(store)
        assert client.get(_name(claim)).endswith(MORE)


def _changes(claim: Claim) -> Iterator[Callable[[RedisStore], object]]:
    """Further steps in the life of this key, whatever its record is; each step is a write."""
    again = replace(claim, nonce=claim.nonce + 1, redrive=True, sliding=True, remember=20 * DAY)
    if again.order is not None:
        again = replace(again, order=again.order + 1, digest=b"B")
    runs: list[Settlement] = []

    def ask(store: RedisStore) -> None:
        (verdict,) = store.claim([again])
        runs.append(Settlement(again, verdict.token, "complete"))

    def end(action: Action) -> Callable[[RedisStore], object]:
        return lambda store: store.settle([replace(runs[-1], action=action)])

    yield ask
    yield end("extend")
    yield end("release")
    yield ask
    yield end("bury")
    yield ask
    yield end("complete")
    yield ask


@pytest.mark.parametrize("make", MAKERS)
def test_a_record_of_a_newer_format_is_refused_and_not_changed(
    node: Node, store: RedisStore, make: Callable[[RedisStore], Claim]
) -> None:
    claim, other, client = make(store), fact(*new_keys(1)), node.client()
    newer = b"\x05" + client.get(_name(claim))[1:]
    client.set(_name(claim), newer, keepttl=True)
    refused, run = store.claim([replace(claim, nonce=1), other])
    assert refused.kind == "error"
    assert isinstance(refused.error, StoreMismatch)
    assert run.kind == "run"
    with pytest.raises(StoreMismatch, match="newer eventonce"):
        store.settle([Settlement(claim, 1, "complete")])
    with pytest.raises(StoreMismatch, match="newer eventonce"):
        store.show(claim.key)
    assert client.get(_name(claim)) == newer


@pytest.mark.parametrize("size", [1, 10, 100, 1_000])
def test_a_batch_is_one_round_trip_for_its_claims_and_one_for_its_settlements(
    node: Node, store: RedisStore, size: int
) -> None:
    _complete(store, [fact(*new_keys(1))])
    client = node.client()
    claims = [fact(key) for key in new_keys(size)]
    trips = [_trips(client)]
    _complete(store, claims)
    trips.append(_trips(client))
    assert {copy.kind for copy in store.claim(claims)} == {"duplicate"}
    trips.append(_trips(client))
    assert [after - before for before, after in pairwise(trips)] == [2, 1]


def _trips(client: Any) -> int:
    """The number of commands from clients, without `info`, which asks for this number."""
    stats = client.info("commandstats")
    inside = ("get", "getex", "set", "mget", "time", "info")
    return sum(it["calls"] for name, it in stats.items() if name[8:] not in inside)


def test_keys_are_spread_evenly_over_any_number_of_shards() -> None:
    slots = [key_slot(f"any:{{{tag}}}".encode()) for tag in PARTITION_TAGS]
    assert len(set(slots)) == len(PARTITION_TAGS) == 16
    for shards in range(1, 17):
        held = Counter(slot * shards // 16_384 for slot in slots)
        assert len(held) == shards
        assert max(held.values()) - min(held.values()) <= 1
    names = Keys("eventonce").of(new_keys(16_000))
    partitions = Counter(name[:-16] for name in names)
    assert len(partitions) == 16
    assert max(partitions.values()) < 1_200


def test_two_prefixes_are_two_stores(node: Node) -> None:
    claim = fact(*new_keys(1))
    for prefix in ("one", "two", "one*", "[t]wo"):
        store = RedisStore(node.client(), prefix=prefix)
        assert store.claim([claim])[0].attempt == 1
        assert store.stats().records == 1
        assert store.forget([claim.key]) == 1
        assert store.stats().records == 0


def test_a_brief_result_has_an_expiry_of_its_own_on_the_server(
    node: Node, store: RedisStore
) -> None:
    rule = ruled(keep_result="1h")
    with Consumer(store, name=new_consumer(), rules=rule, handler=lambda _: "words") as consumer:
        (done,) = consumer.process([call(1)])
        assert consumer.process([call(1)])[0].result == "words"
        client = node.client()
        record, result = Keys("eventonce").of([done.key, result_key(done.key)])
        assert 0 < client.pttl(result) <= 60 * MINUTE < client.pttl(record)
        assert b"words" in client.get(result)
        assert b"words" not in client.get(record)
