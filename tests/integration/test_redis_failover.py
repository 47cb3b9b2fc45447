"""A primary of a cluster is killed under load: no fact is lost, and copies come only from the last
moment before, as docs/stores/redis.md says."""

from __future__ import annotations

import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest
from redis.crc import key_slot

from eventonce import Consumer, Job, Rule
from eventonce.errors import StoreUnavailable
from eventonce.stores.redis import RedisStore
from eventonce.stores.redis.names import Names, partition
from eventonce.testing.cases.samples import fact, new_keys, new_letters, version
from eventonce.types import Claim, Settlement
from tests.servers import PATIENCE
from tests.servers.valkey import SLOTS, ValkeyCluster, clustered, serving, until

WORKERS = 4
BATCH = 10
CUT_OFF = 0.4
"""Seconds for which the replica is behind; it would be microseconds here, and lose nothing."""
LAST_MOMENT = 1.0
"""Seconds before the kill of which writes may be lost."""
RULE = Rule(name="facts", key="detail.id", lease="2s")
GONE = {n for n, name in enumerate(Names("eventonce").partitions) if key_slot(name) < SLOTS // 3}
"""The partitions of the first primary."""


class Queue:
    """Delivers facts until they are acknowledged, and notes what became of them and when."""

    def __init__(self, uri: str) -> None:
        self.ran: dict[str, list[float]] = defaultdict(list)
        self.acknowledged: dict[str, float] = {}
        self.keys: dict[str, bytes] = {}
        self.stopped = threading.Event()
        self.deadline = time.monotonic() + PATIENCE
        self.consumer = Consumer(uri, name="failover", rules=RULE, handler=self._handle)

    def _handle(self, job: Job) -> None:
        fact = job.event.detail["id"]
        self.keys[fact] = job.key
        self.ran[fact].append(time.monotonic())

    def deliver(self, facts: list[str]) -> list[str]:
        """Deliver these; answers with those to deliver again."""
        outcomes = self.consumer.process([{"detail": {"id": fact}} for fact in facts])
        now = time.monotonic()
        done = {fact for fact, it in zip(facts, outcomes, strict=True) if it.ack}
        self.acknowledged.update(dict.fromkeys(done - self.acknowledged.keys(), now))
        return [fact for fact in facts if fact not in done]

    def work(self, worker: int) -> None:
        """New facts until it is stopped, and then what is left."""
        left: list[str] = []
        numbers = count()
        while not self.stopped.is_set() or left:
            if time.monotonic() > self.deadline:
                raise TimeoutError(f"never acknowledged: {left}")
            new = [f"{worker}-{next(numbers)}" for _ in range(BATCH)]
            left = self.deliver([*left, *(() if self.stopped.is_set() else new)])

    def in_the_last_moment(self, fact: str, killed: float) -> bool:
        """Whether its first run was on the primary that was killed, just before or since."""
        return partition(self.keys[fact]) in GONE and self.ran[fact][0] >= killed - LAST_MOMENT


@pytest.fixture
def cluster() -> Iterator[ValkeyCluster]:
    with clustered() as cluster:
        yield cluster


def _kill(cluster: ValkeyCluster) -> float:
    """Kill the first primary, after its replica has been cut off from it for a while."""
    primary = cluster.nodes[0]
    client = primary.client()
    # Who is connected stays so; the replica is sent away and finds no way back.
    client.config_set("requirepass", "secret")
    client.execute_command("CLIENT KILL", "TYPE", "replica")
    time.sleep(CUT_OFF)
    killed = time.monotonic()
    primary.process.kill()
    primary.process.wait()
    return killed


def _replaced(cluster: ValkeyCluster) -> bool:
    return bool(cluster.nodes[3].client().role()[0] == b"master")


def test_no_fact_is_lost_and_only_the_last_moment_is_repeated(cluster: ValkeyCluster) -> None:
    queue = Queue(cluster.uri)
    with ThreadPoolExecutor(WORKERS) as pool:
        work = [pool.submit(queue.work, worker) for worker in range(WORKERS)]
        time.sleep(2)
        killed = _kill(cluster)
        until(lambda: _replaced(cluster))
        time.sleep(2)
        queue.stopped.set()
        for it in work:
            it.result()
    facts = list(queue.ran)
    before = [fact for fact in facts if queue.acknowledged[fact] < killed - LAST_MOMENT]
    since = [fact for fact in facts if queue.ran[fact][0] > killed + LAST_MOMENT]
    assert min(len(before), len(since)) > 100
    assert any(partition(queue.keys[fact]) in GONE for fact in since)

    repeated = [fact for fact in facts if len(queue.ran[fact]) > 1]
    assert all(queue.in_the_last_moment(fact, killed) for fact in repeated)

    # Every fact comes once more, as a re-publish days later would.
    runs = {fact: len(queue.ran[fact]) for fact in facts}
    for start in range(0, len(facts), 100):
        assert queue.deliver(facts[start : start + 100]) == []
    forgotten = [fact for fact in facts if len(queue.ran[fact]) > runs[fact]]
    assert forgotten, "nothing was lost, and so nothing was shown"
    assert all(queue.in_the_last_moment(fact, killed) for fact in forgotten)
    queue.consumer.close()


def test_what_a_replica_has_confirmed_is_not_forgotten(cluster: ValkeyCluster) -> None:
    queue = Queue(f"{cluster.uri}?wait_replicas=1&timeout=1&connect_timeout=0.5")
    with ThreadPoolExecutor(WORKERS) as pool:
        work = [pool.submit(queue.work, worker) for worker in range(WORKERS)]
        time.sleep(1.5)
        _kill(cluster)
        queue.stopped.set()
        acknowledged = dict(queue.acknowledged)
        until(lambda: _replaced(cluster))
        # The new primary has no replica that could confirm anything, so that some facts stay open.
        queue.deadline = 0.0
        for it in work:
            it.exception()
    assert len(acknowledged) > 100
    store = RedisStore.from_uri(cluster.uri)
    claims = [Claim(queue.keys[fact], 1, 1_000, 1_000, 1, peek=True) for fact in acknowledged]
    assert {verdict.kind for verdict in store.claim(claims)} == {"duplicate"}
    store.close()
    queue.consumer.close()


def test_a_settlement_outlasts_a_failover(cluster: ValkeyCluster) -> None:
    """A claim does not wait, but says at once which partitions are gone."""
    store = RedisStore.from_uri(f"{cluster.uri}?timeout=20")
    claims = [fact(key) for key in new_keys(100)]
    runs = store.claim(claims)
    ended = [
        Settlement(claim, run.token, "complete") for claim, run in zip(claims, runs, strict=True)
    ]
    cluster.nodes[0].client().wait(1, 1_000)
    cluster.nodes[0].process.kill()
    cluster.nodes[0].process.wait()
    started = time.monotonic()
    kinds = {verdict.kind for verdict in store.claim([fact(key) for key in new_keys(100)])}
    assert kinds == {"run", "error"}
    assert time.monotonic() - started < 5
    assert store.settle(ended) == ["kept"] * 100
    store.close()


def test_replicas_are_waited_for_whatever_was_written() -> None:
    """Also by an answer that changed nothing: what it was read from may not be there yet."""
    with serving() as primary, serving() as replica:
        replica.client().replicaof("127.0.0.1", primary.port)
        until(lambda: bool(replica.client().info("replication")["master_link_status"] == "up"))
        uri = f"{primary.uri}?wait_replicas=1&timeout=0.4"
        store = RedisStore.from_uri(uri)
        one, other = new_keys(2)
        claim, state = fact(one), version(other, 1)
        runs = store.claim([claim, state])
        letters = new_letters(1)
        ended = [
            Settlement(it, run.token, "complete")
            for it, run in zip((claim, state), runs, strict=True)
        ]
        assert store.settle(ended) == ["kept", "kept"]
        replica.process.send_signal(signal.SIGSTOP)
        questions: list[Callable[[RedisStore], object]] = [
            lambda store: store.claim([fact(*new_keys(1))]),
            lambda store: store.claim([claim]),
            lambda store: store.claim([state]),
            lambda store: store.settle(ended[:1]),
            lambda store: store.settle(ended[1:]),
            lambda store: store.put_letters(letters),
        ]
        for ask in questions:
            # Over a connection that has written nothing before.
            another = RedisStore.from_uri(uri)
            with pytest.raises(StoreUnavailable, match="0 of 1 replicas confirmed"):
                ask(another)
            another.close()
        assert store.show(claim.key) is not None
        assert store.letter(letters[0].id) == letters[0]
        replica.process.send_signal(signal.SIGCONT)
        until(lambda: all(_answered(ask, store) for ask in questions))
        store.close()


def _answered(ask: Callable[[RedisStore], object], store: RedisStore) -> bool:
    try:
        ask(store)
    except StoreUnavailable:
        return False
    return True
