"""A primary of a cluster is killed under load: no fact is lost, and only facts of the last moment
before can run again, as docs/stores/redis.md says."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import count

import pytest
from redis import Redis
from redis.crc import key_slot

from eventonce import Consumer, Job, Rule
from eventonce.errors import StoreUnavailable
from eventonce.stores.redis import RedisStore
from eventonce.stores.redis.codec import Keys, partition
from eventonce.testing.cases.samples import fact, new_keys, new_letters, version
from eventonce.types import Claim, Settlement
from tests.helpers import PATIENCE, until
from tests.integration.granted import answered
from tests.servers.valkey import (
    PRIMARIES,
    SLOTS,
    Node,
    ValkeyCluster,
    caught_up,
    clustered,
    frozen,
    serving,
)

WORKERS = 4
BATCH = 10
MANY = 100
"""Enough facts to show that no fact is lost."""
FEW = 10
"""Facts that the replica must have missed before it takes over."""
CUT_OFF = 0.4
"""Seconds for which the replica is behind; microseconds would be usual, and lose nothing."""
RULE = Rule(name="facts", key="detail.id", lease="2s")
GONE = {n for n, name in enumerate(Keys("eventonce").partitions) if key_slot(name) < SLOTS // 3}
"""The partitions of the first primary."""
PATIENT = f"timeout={PATIENCE}&connect_timeout={PATIENCE}"
"""For stores that must answer, however busy this machine is."""


class Queue:
    """A queue that delivers facts until they are acknowledged, and records the times of both."""

    def __init__(self, uri: str) -> None:
        self.ran: dict[str, list[float]] = defaultdict(list)
        self.acknowledged: dict[str, float] = {}
        self.keys: dict[str, bytes] = {}
        self.stopped = threading.Event()
        self.deadline = time.monotonic() + 2 * PATIENCE
        self.consumer = Consumer(uri, name="failover", rules=RULE, handler=self._handle)

    def _handle(self, job: Job) -> None:
        fact = job.event.detail["id"]
        self.keys[fact] = job.key
        self.ran[fact].append(time.monotonic())

    def deliver(self, facts: list[str]) -> list[str]:
        """Deliver these facts, and return the facts to deliver again."""
        outcomes = self.consumer.process([{"detail": {"id": fact}} for fact in facts])
        now = time.monotonic()
        done = {fact for fact, it in zip(facts, outcomes, strict=True) if it.ack}
        self.acknowledged.update(dict.fromkeys(done - self.acknowledged.keys(), now))
        return [fact for fact in facts if fact not in done]

    def work(self, worker: int) -> None:
        """Deliver new facts until the queue is stopped, and then the facts that are left."""
        left: list[str] = []
        numbers = count()
        while not self.stopped.is_set() or left:
            if time.monotonic() > self.deadline:
                raise TimeoutError(f"never acknowledged: {left}")
            new = [f"{worker}-{next(numbers)}" for _ in range(BATCH)]
            left = self.deliver([*left, *(() if self.stopped.is_set() else new)])

    def since(self, instant: float) -> list[str]:
        """The acknowledged facts whose first run began after this instant."""
        return [fact for fact in self.acknowledged.copy() if self.ran[fact][0] > instant]

    def gone(self, facts: list[str]) -> list[str]:
        """The facts whose keys lie on the primary that is killed."""
        return [fact for fact in facts if partition(self.keys[fact]) in GONE]

    def in_the_last_moment(self, fact: str, cut: float) -> bool:
        """Whether the fact was on the killed primary, and its replica may have missed the fact."""
        return bool(self.gone([fact])) and self.acknowledged[fact] >= cut


@pytest.fixture
def cluster() -> Iterator[ValkeyCluster]:
    with clustered() as cluster:
        yield cluster


def _cut_off(cluster: ValkeyCluster) -> float:
    """Disconnect the replica of the first primary. The facts that were acknowledged before the
    instant that is returned have reached the replica."""
    primary, replica = cluster.nodes[0], cluster.nodes[PRIMARIES]
    cut = time.monotonic()
    caught_up(replica, primary)
    client = primary.client()
    # Open connections stay; the replica is disconnected and cannot come back.
    client.config_set("requirepass", "secret")
    client.execute_command("CLIENT KILL", "TYPE", "replica")
    return cut


def _kill(cluster: ValkeyCluster) -> None:
    """Kill the first primary; no replica has its place yet."""
    primary = cluster.nodes[0]
    primary.process.kill()
    primary.process.wait()


def test_no_fact_is_lost_and_only_facts_of_the_last_moment_are_repeated(
    cluster: ValkeyCluster,
) -> None:
    queue = Queue(f"{cluster.uri}?{PATIENT}")
    with ThreadPoolExecutor(WORKERS) as pool:
        work = [pool.submit(queue.work, worker) for worker in range(WORKERS)]
        try:
            until(lambda: len(queue.acknowledged) > MANY)
            cut = _cut_off(cluster)
            alone = time.monotonic()
            until(lambda: len(queue.gone(queue.since(alone))) > FEW)
            _kill(cluster)
            cluster.let_fail()
            until(cluster.has_failed_over)
            replaced = time.monotonic()
            until(lambda: len(queue.since(replaced)) > MANY)
            until(lambda: len(queue.gone(queue.since(replaced))) > FEW)
        finally:
            queue.stopped.set()
        for it in work:
            it.result()
    facts = list(queue.ran)
    repeated = [fact for fact in facts if len(queue.ran[fact]) > 1]
    assert all(queue.in_the_last_moment(fact, cut) for fact in repeated)

    # Every fact comes once more, as a re-publish days later would.
    runs = {fact: len(queue.ran[fact]) for fact in facts}
    for start in range(0, len(facts), 100):
        # A fact of which only the completion was lost is busy while its lease lasts.
        left = facts[start : start + 100]
        while left:
            assert time.monotonic() < queue.deadline
            left = queue.deliver(left)
    forgotten = [fact for fact in facts if len(queue.ran[fact]) > runs[fact]]
    assert forgotten, "nothing was lost, and so nothing was shown"
    assert all(queue.in_the_last_moment(fact, cut) for fact in forgotten)
    queue.consumer.close()


def test_facts_that_a_replica_has_confirmed_are_not_forgotten(cluster: ValkeyCluster) -> None:
    queue = Queue(f"{cluster.uri}?wait_replicas=1&timeout=1&connect_timeout=0.5")
    with ThreadPoolExecutor(WORKERS) as pool:
        work = [pool.submit(queue.work, worker) for worker in range(WORKERS)]
        try:
            until(lambda: len(queue.acknowledged) > MANY)
            _cut_off(cluster)
            time.sleep(CUT_OFF)
            _kill(cluster)
            queue.stopped.set()
            acknowledged = queue.acknowledged.copy()
            cluster.let_fail()
            until(cluster.has_failed_over)
        finally:
            queue.stopped.set()
            # The new primary has no replica that could confirm anything, so that some facts stay
            # open.
            queue.deadline = 0.0
        for it in work:
            it.exception()
    store = RedisStore.from_uri(f"{cluster.uri}?{PATIENT}")
    claims = [Claim(queue.keys[fact], 1, 1_000, 1_000, 1, peek=True) for fact in acknowledged]
    assert {verdict.kind for verdict in store.claim(claims)} == {"duplicate"}
    store.close()
    queue.consumer.close()


def test_a_settlement_waits_for_a_failover_and_a_claim_does_not(cluster: ValkeyCluster) -> None:
    """A claim does not wait, but reports at once the partitions that are gone."""
    store = RedisStore.from_uri(f"{cluster.uri}?{PATIENT}")
    claims = [fact(key, lease=600_000) for key in new_keys(100)]
    runs = store.claim(claims)
    ended = [
        Settlement(claim, run.token, "complete") for claim, run in zip(claims, runs, strict=True)
    ]
    caught_up(cluster.nodes[PRIMARIES], cluster.nodes[0])
    _kill(cluster)
    started = time.monotonic()
    kinds = {verdict.kind for verdict in store.claim([fact(key) for key in new_keys(100)])}
    assert kinds == {"run", "error"}
    assert time.monotonic() - started < PATIENCE
    cluster.let_fail()
    assert store.settle(ended) == ["kept"] * 100
    store.close()


@contextmanager
def _waiting(primary: Node) -> Iterator[RedisStore]:
    """A store that waits a fifth of a second for a replica, and without limit for its server."""
    client = Redis(port=primary.port, socket_timeout=PATIENCE)
    store = RedisStore(client, wait_replicas=1, timeout=0.4)
    try:
        yield store
    finally:
        store.close()
        client.close()


def test_claims_settlements_and_other_writes_wait_for_replicas() -> None:
    """Even a call that changes nothing: the replica may not have the record that was read."""
    with serving() as primary, serving() as replica, _waiting(primary) as store:
        replica.client().replicaof("127.0.0.1", primary.port)
        until(lambda: bool(replica.client().info("replication")["master_link_status"] == "up"))
        one, other, forgotten = new_keys(3)
        claim, state = fact(one), version(other, 1)
        runs = answered(lambda: store.claim([claim, state]))
        answered(lambda: store.claim([fact(forgotten)]))
        letters = new_letters(1)
        ended = [
            Settlement(it, run.token, "complete")
            for it, run in zip((claim, state), runs, strict=True)
        ]
        assert answered(lambda: store.settle(ended)) == ["kept", "kept"]
        questions: list[Callable[[RedisStore], object]] = [
            lambda store: store.claim([fact(*new_keys(1))]),
            lambda store: store.claim([claim]),
            lambda store: store.claim([state]),
            lambda store: store.settle(ended[:1]),
            lambda store: store.settle(ended[1:]),
            lambda store: store.put_letters(letters),
            lambda store: store.forget([forgotten]),
        ]
        with frozen(replica):
            for ask in questions:
                # Over a connection that has written nothing before.
                with (
                    _waiting(primary) as another,
                    pytest.raises(StoreUnavailable, match="0 of 1 replicas confirmed"),
                ):
                    ask(another)
            assert store.show(claim.key) is not None
            assert store.letter(letters[0].id) == letters[0]
        for ask in questions:
            answered(partial(ask, store))
