"""The Redis store on a cluster: its partitions, slots that move, and servers that are gone."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import redis
from redis.crc import key_slot

from eventonce.errors import StoreUnavailable
from eventonce.stores.redis import RedisStore
from eventonce.stores.redis.codec import PARTITION_TAGS, Keys, partition
from eventonce.stores.redis.uri import read
from eventonce.testing.cases.samples import fact, new_keys, new_letters, version
from eventonce.types import Claim, Settlement
from tests.helpers import PATIENCE, until
from tests.integration.granted import answered
from tests.integration.test_redis_clients import fork_and_work, works
from tests.servers.relay import relaying
from tests.servers.valkey import (
    SLOTS,
    STEADY,
    Node,
    ValkeyCluster,
    clustered,
    frozen,
    low_port,
    serving,
    valkey,
)

KEYS = Keys("eventonce")


@pytest.fixture(scope="module")
def cluster() -> Iterator[ValkeyCluster]:
    with clustered() as cluster:
        yield cluster


@pytest.fixture
def store(cluster: ValkeyCluster) -> Iterator[RedisStore]:
    store = RedisStore.from_uri(cluster.uri)
    yield store
    store.close()


def _settled(claims: list[Claim], runs: Any) -> list[Settlement]:
    return [
        Settlement(claim, run.token, "complete", claim.key)
        for claim, run in zip(claims, runs, strict=True)
    ]


def _keys_in(part: int, count: int) -> list[bytes]:
    return [key[:-1] + bytes([part + 16]) for key in new_keys(count)]


def test_a_batch_is_one_call_for_each_partition_of_its_keys(
    cluster: ValkeyCluster, store: RedisStore
) -> None:
    claims = [fact(key) for key in new_keys(1_000)]
    store.claim([fact(key) for key in new_keys(1_000)])
    before = _calls(cluster)
    runs = store.claim(claims)
    assert {run.kind for run in runs} == {"run"}
    assert _calls(cluster) - before == len(PARTITION_TAGS)
    few = [fact(key) for part in (3, 9) for key in _keys_in(part, 50)]
    before = _calls(cluster)
    store.claim(few)
    assert _calls(cluster) - before == 2


def _calls(cluster: ValkeyCluster) -> int:
    stats = [node.client().info("commandstats") for node in cluster.nodes]
    return sum(it.get("cmdstat_evalsha", {}).get("calls", 0) for it in stats)


def test_records_are_spread_over_every_primary(cluster: ValkeyCluster, store: RedisStore) -> None:
    store.claim([fact(key) for key in new_keys(1_000)])
    sizes = [node.client().dbsize() for node in cluster.nodes[:3]]
    assert min(sizes) > sum(sizes) / 5


def test_a_client_of_the_caller_may_decode_responses(cluster: ValkeyCluster) -> None:
    port = cluster.nodes[0].port
    client = redis.RedisCluster(host="127.0.0.1", port=port, decode_responses=True)
    store = RedisStore(client, prefix="mine")
    works(store)
    store.close()
    client.close()


def test_a_store_works_in_both_processes_after_a_fork(cluster: ValkeyCluster) -> None:
    fork_and_work(cluster.uri)


def test_scripts_are_sent_to_servers_that_have_lost_them(
    cluster: ValkeyCluster, store: RedisStore
) -> None:
    works(store)
    for node in cluster.nodes:
        node.client().script_flush()
    works(store)


def test_a_lost_connection_is_replaced(cluster: ValkeyCluster, store: RedisStore) -> None:
    works(store)
    for node in cluster.nodes[:3]:
        assert node.client().client_kill_filter(_type="normal", skipme=True)
    claims = [fact(key) for key in new_keys(100)]
    runs = store.claim(claims)
    assert {run.kind for run in runs} == {"run"}
    assert set(store.settle(_settled(claims, runs))) == {"kept"}


def test_a_slot_that_has_moved_is_found(cluster: ValkeyCluster, store: RedisStore) -> None:
    part = 0
    claims = [fact(key) for key in _keys_in(part, 20)]
    runs = store.claim(claims)
    _move(cluster, part, keys=[claim.key for claim in claims], finish=True)
    assert set(store.settle(_settled(claims, runs))) == {"kept"}
    assert [copy.result for copy in store.claim(claims)] == [claim.key for claim in claims]


def test_a_slot_that_is_moving_is_served_key_by_key(
    cluster: ValkeyCluster, store: RedisStore
) -> None:
    """Some keys are on the source, some on the target, some are new: all of them are answered."""
    part = 4
    facts = [fact(key) for key in _keys_in(part, 10)]
    claims = [*facts, *(version(key, 1) for key in _keys_in(part, 10))]
    runs = store.claim(claims)
    _move(cluster, part, keys=[claim.key for claim in claims[::2]], finish=False)
    others = [fact(key) for key in (*_keys_in(part, 10), *_keys_in(part + 1, 10))]
    verdicts = store.claim([*others, *claims])
    assert [verdict.kind for verdict in verdicts] == ["run"] * 40
    assert [verdict.token for verdict in verdicts[20:]] == [run.token for run in runs]
    settlements = _settled([*others, *claims], verdicts)
    assert store.settle(settlements) == ["kept"] * 40
    assert [copy.result for copy in store.claim(claims)] == [claim.key for claim in claims]
    assert store.forget([claim.key for claim in claims]) == 20


def test_one_record_is_found_on_either_side_of_a_slot_that_is_moving(
    cluster: ValkeyCluster, store: RedisStore
) -> None:
    part = 2
    here, there, new = (fact(key) for key in _keys_in(part, 3))
    runs = store.claim([here, there])
    _move(cluster, part, keys=[there.key], finish=False)
    for claim, run in zip((here, there), runs, strict=True):
        record = store.show(claim.key)
        assert record is not None
        assert record.token == run.token
        assert store.claim([claim])[0].token == run.token
        assert store.settle(_settled([claim], [run])) == ["kept"]
    assert store.show(new.key) is None
    assert store.claim([new])[0].kind == "run"


def test_dead_letters_are_kept_listed_and_dropped_while_their_slot_is_moving(
    cluster: ValkeyCluster,
) -> None:
    """Dead letters lie under two keys, and a command on both is refused while only one has
    moved."""
    store = RedisStore.from_uri(f"{cluster.uri}?prefix=moving")
    keys = Keys("moving")
    first, *others = new_letters(4)
    store.put_letters([first])
    migrate = Migration(cluster, keys.letters_slot)
    assert list(store.letters()) == [first]
    assert store.letter(first.id) == first
    migrate(keys.letters)
    refused = _refused(cluster, "TRYAGAIN")
    with ThreadPoolExecutor(1) as pool:
        putting = pool.submit(store.put_letters, others)
        # The call is refused until the second key has moved, too, and then made there.
        until(lambda: _refused(cluster, "TRYAGAIN") > refused)
        migrate(keys.letters_by_time)
        putting.result(PATIENCE)
    assert list(store.letters()) == [first, *others]
    assert store.drop_letters([first.id]) == 1
    migrate.finish()
    assert list(store.letters()) == others
    store.close()


def test_a_claim_returns_to_the_source_when_a_migration_is_given_up(
    cluster: ValkeyCluster, store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source answers ASK, and then the target does not import the slot any more."""
    claim = fact(*_keys_in(6, 1))
    migrate = Migration(cluster, key_slot(KEYS.partitions[6]))
    server: Any = store._server
    follow = server._target

    def give_up_first(*asked: object) -> object:
        target = follow(*asked)
        migrate.give_up()
        return target

    monkeypatch.setattr(server, "_target", give_up_first)
    (run,) = store.claim([claim])
    assert run.kind == "run"
    assert migrate.source.exists(*KEYS.of([claim.key])) == 1
    assert store.settle(_settled([claim], [run])) == ["kept"]


def _refused(cluster: ValkeyCluster, code: str) -> int:
    """How often the servers have refused with this code."""
    errors = [node.client().info("errorstats") for node in cluster.nodes]
    return sum(it.get(f"errorstat_{code}", {}).get("count", 0) for it in errors)


def test_calls_wait_for_replicas_while_a_slot_is_moving(cluster: ValkeyCluster) -> None:
    part = 8
    client = read(f"{cluster.uri}?timeout={PATIENCE}").connect_cluster()
    # A replica has a fifth of a second to confirm, and a server has all the time it needs.
    store = RedisStore(client, wait_replicas=1, timeout=0.4)
    here, there = (fact(key) for key in _keys_in(part, 2))
    runs = answered(lambda: store.claim([here, there]))
    _move(cluster, part, keys=[there.key], finish=False)
    with ExitStack() as stack:
        for replica in cluster.nodes[3:]:
            stack.enter_context(frozen(replica))
        for claims in ([here], [there], [here, there], [fact(*_keys_in(part, 1))]):
            with pytest.raises(StoreUnavailable, match="0 of 1 replicas confirmed"):
                store.claim(claims)
        with pytest.raises(StoreUnavailable, match="0 of 1 replicas confirmed"):
            store.settle(_settled([here, there], runs))
    ended = _settled([here, there], runs)
    assert answered(lambda: store.settle(ended)) == ["kept", "kept"]
    store.close()
    client.close()


def test_a_slot_that_is_moving_to_a_new_server_is_served() -> None:
    """Such as when a cluster grows: the list of slots does not name a server without slots."""
    part = 12
    with _one_server_cluster() as old, serving(valkey, *ALONE, port=low_port()) as new:
        old.client().execute_command("CLUSTER MEET", "127.0.0.1", new.port)
        until(lambda: _in_order(old) and _in_order(new))
        store = RedisStore.from_uri(f"redis+cluster://127.0.0.1:{old.port}")
        claims = [fact(key) for key in _keys_in(part, 10)]
        runs = store.claim(claims)
        keys = [claim.key for claim in claims[::2]]
        _move(ValkeyCluster([old, new]), part, keys=keys, finish=False)
        others = [fact(key) for key in _keys_in(part, 10)]
        assert [verdict.kind for verdict in store.claim([*others, *claims])] == ["run"] * 20
        assert store.settle(_settled(claims, runs)) == ["kept"] * 10
        assert new.client().dbsize() == 15
        store.close()


def test_nodes_that_were_all_replaced_are_found_at_the_address_of_the_uri() -> None:
    """Such as behind a configuration endpoint, or the name of a service whose pods are new."""
    with ExitStack() as replaced, _one_server_cluster() as new:
        old = replaced.enter_context(_one_server_cluster())
        leading = replaced.enter_context(relaying(old.port))
        store = RedisStore.from_uri(f"redis+cluster://127.0.0.1:{leading.port}")
        assert store.claim([fact(*new_keys(1))])[0].kind == "run"
        old.process.kill()
        old.process.wait()
        with pytest.raises(StoreUnavailable):
            store.claim([fact(*new_keys(1))])
        leading.server = new.port
        assert store.claim([fact(*new_keys(1))])[0].kind == "run"
        works(store)
        store.close()


def test_threads_that_refresh_the_slots_share_a_refresh(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refresh may wait for a time-out of each node: several in a row would add up."""
    store.claim([fact(*new_keys(1))])
    server: Any = store._server
    threads, refreshes, arrived, lock = 8, [], [], server._refreshing

    class Counting:
        """A lock that counts the threads that ask for it."""

        def __enter__(self) -> None:
            arrived.append(1)
            lock.acquire()

        def __exit__(self, *_: object) -> None:
            lock.release()

    def initialize() -> None:
        refreshes.append(1)
        until(lambda: len(arrived) == threads)

    monkeypatch.setattr(server, "_refreshing", Counting())
    monkeypatch.setattr(server._cluster().nodes_manager, "initialize", initialize)
    with ThreadPoolExecutor(threads) as pool:
        first = pool.submit(server._refresh)
        until(lambda: bool(refreshes))
        for refreshed in [first, *(pool.submit(server._refresh) for _ in range(threads - 1))]:
            refreshed.result()
    # The first refresh, and one for all threads that came meanwhile.
    assert len(refreshes) == 2


ALONE = ("--cluster-enabled", "yes", "--cluster-node-timeout", str(STEADY))


@contextmanager
def _one_server_cluster() -> Iterator[Node]:
    """A cluster of one server, which has all slots."""
    with serving(valkey, *ALONE, port=low_port()) as node:
        node.client().execute_command("CLUSTER ADDSLOTSRANGE", 0, SLOTS - 1)
        until(lambda: _in_order(node))
        yield node


def _in_order(node: Node) -> bool:
    return bool(node.client().execute_command("CLUSTER INFO")["cluster_state"] == "ok")


def _move(cluster: ValkeyCluster, part: int, keys: list[bytes], *, finish: bool) -> None:
    """Move these keys of a partition's slot to the next server, and the slot if asked to."""
    migrate = Migration(cluster, key_slot(KEYS.partitions[part]))
    migrate(*KEYS.of(keys))
    if finish:
        migrate.finish()


class Migration:
    """A slot in MIGRATING and IMPORTING state, as during every resharding, until the migration is
    finished or given up; a call with names moves these keys."""

    def __init__(self, cluster: ValkeyCluster, slot: int) -> None:
        here, self.there = _holder(cluster, slot)
        self.slot, self.source, self.target = slot, here.client(), self.there.client()
        self.id = self.target.execute_command("CLUSTER MYID")
        _set_slot(self.target, slot, "IMPORTING", self.source.execute_command("CLUSTER MYID"))
        _set_slot(self.source, slot, "MIGRATING", self.id)

    def __call__(self, *names: bytes) -> None:
        for name in names:
            assert self.source.migrate("127.0.0.1", self.there.port, [name], 0, 60_000) == b"OK"

    def finish(self) -> None:
        self(*[name for name in self.source.scan_iter() if key_slot(name) == self.slot])
        for client in (self.target, self.source):
            _set_slot(client, self.slot, "NODE", self.id)

    def give_up(self) -> None:
        """End the migration of a slot of which no key was moved."""
        for client in (self.source, self.target):
            _set_slot(client, self.slot, "STABLE")


def _set_slot(client: Any, *words: object) -> None:
    """Set the state of a slot; Valkey refuses this while a replica has not reported for a while."""

    def done() -> bool:
        try:
            client.execute_command("CLUSTER SETSLOT", *words)
        except redis.ResponseError as error:
            if "NOREPLICAS" not in str(error):
                raise
            return False
        return True

    until(done)


def _holder(cluster: ValkeyCluster, slot: int) -> tuple[Node, Node]:
    """The primary that has this slot, and another primary."""
    for first, last, primary, *_ in cluster.nodes[0].client().execute_command("CLUSTER SLOTS"):
        if first <= slot <= last:
            here = next(node for node in cluster.nodes if node.port == primary[1])
            there = next(node for node in cluster.nodes[:3] if node is not here)
            return here, there
    raise AssertionError(slot)


def test_only_the_partitions_of_a_stopped_primary_fail() -> None:
    with clustered() as cluster:
        # A settlement looks for a new primary for a second; a server that answers may be slow.
        address = read(f"{cluster.uri}?timeout={PATIENCE}&connect_timeout={PATIENCE}")
        client = address.connect_cluster()
        store = RedisStore(client, timeout=1)
        claims = [fact(key) for key in new_keys(200)]
        runs = store.claim(claims)
        for node in (cluster.nodes[0], cluster.nodes[3]):
            node.process.kill()
            node.process.wait()
        gone = {n for n, name in enumerate(KEYS.partitions) if key_slot(name) < 16_384 // 3}
        again = [fact(key) for key in new_keys(200)]
        verdicts = store.claim(again)
        for claim, verdict in zip(again, verdicts, strict=True):
            if partition(claim.key) in gone:
                assert verdict.kind == "error"
                assert isinstance(verdict.error, StoreUnavailable)
            else:
                assert verdict.kind == "run"
        assert {verdict.kind for verdict in verdicts} == {"run", "error"}
        with pytest.raises(StoreUnavailable):
            store.settle(_settled(claims, runs))
        # The settlements of the other partitions are stored, although the call failed.
        kept = [claim for claim in claims if partition(claim.key) not in gone]
        assert [copy.result for copy in store.claim(kept)] == [claim.key for claim in kept]
        with pytest.raises(StoreUnavailable):
            store.claim([claim for claim in again if partition(claim.key) in gone])
        store.close()
        client.close()
