"""PostgreSQL under contention: which calls wait, for how long, and by which clock."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest

from eventonce.clock import wall_clock
from eventonce.errors import StoreUnavailable
from eventonce.stores.postgres import PostgresStore
from eventonce.testing.cases.samples import (
    EPOCH,
    HOUR,
    SECOND,
    fact,
    new_keys,
    new_letters,
    version,
)
from eventonce.types import Action, Settlement
from tests.helpers import until
from tests.integration.granted import answered, completed, opened
from tests.servers.postgres import Cluster, postgres18, serving

TRIES = 20
"""Repetitions: a call waits half a second for a lock, and a busy machine may take longer."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    # Deadlocks are detected at once: otherwise our own time-out would end them before.
    with serving(postgres18, "-c", "deadlock_timeout=20ms") as cluster, opened(cluster):
        yield cluster


def test_concurrent_calls_on_the_same_keys_cause_no_deadlock(cluster: Cluster) -> None:
    """Claims, settlements, sweeps and forgetting of the same keys, in batches of any order."""
    keys = new_keys(60)

    def work(seed: int) -> None:
        store = PostgresStore(cluster.uri())
        chance = random.Random(seed)
        for now in range(EPOCH, EPOCH + 60 * SECOND, SECOND):
            some = chance.sample(keys, 30)
            claims = [
                fact(key, lease=5, remember=SECOND, sliding=chance.random() < 0.3)
                if key < keys[0]
                else version(key, chance.randrange(1, 100), lease=5)
                for key in some
            ]
            # A call that waits too long for a slow one fails, which is no deadlock.
            runs = answered(partial(store.claim, claims, now=now))
            ended = [
                Settlement(claim, run.token, chance.choice(("complete", "release", "extend")))
                for claim, run in zip(claims, runs, strict=True)
                if run.token
            ]
            chance.shuffle(ended)
            answered(partial(store.settle, ended, now=now))
            if chance.random() < 0.2:
                answered(partial(store.forget, chance.sample(keys, 10)))
            if chance.random() < 0.2:
                answered(partial(store.clear_results, chance.sample(keys, 10)))
            if chance.random() < 0.2:
                answered(partial(store.sweep, 100, now=now + 30 * HOUR))
            answered(partial(store.put_letters, chance.sample(letters, 10)))
            dropped = [letter.id for letter in chance.sample(letters, 10)]
            answered(partial(store.drop_letters, dropped))
        store.close()

    letters = new_letters(30)
    before = deadlocks(cluster)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(8)))
    assert deadlocks(cluster) == before


def deadlocks(cluster: Cluster) -> int:
    with cluster.connect() as connection:
        row = connection.execute("SELECT sum(deadlocks) FROM pg_stat_database").fetchone()
    assert row is not None
    return int(row[0])


def test_a_record_that_a_transaction_has_settled_is_busy_while_its_lease_lasts(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No claim waits for the transaction: the lease says how long it may take."""
    claim = fact(*new_keys(1), lease=HOUR)
    (ended,) = completed(store, [claim])
    ask = Mock(wraps=store._connections.ask)
    monkeypatch.setattr(store._connections, "ask", ask)
    with store.transaction() as transaction:
        assert transaction.settle(ended) == "kept"
        (verdict,) = store.claim([fact(claim.key, lease=HOUR)])
        assert verdict.kind == "busy"
        assert verdict.wait > HOUR // 2
    # A claim that waited in vain for the lock would have asked twice.
    assert ask.call_count == 1
    assert store.claim([fact(claim.key)])[0].kind == "duplicate"


def test_a_record_that_stays_locked_is_busy_and_does_not_hold_up_other_records(
    store: PostgresStore,
) -> None:
    """Its lease is over and its transaction does not end: a process that hangs, or is cut off."""
    keys = new_keys(6)
    claims = [fact(key, lease=1) for key in keys[:3]]
    ended = completed(store, claims)
    time.sleep(0.01)
    with store.transaction() as transaction:
        assert transaction.settle(ended[0]) == "kept"
        copies = [fact(key) for key in keys]
        verdicts = store.claim(copies)
        assert [verdict.kind for verdict in verdicts] == ["busy"] + ["run"] * 5
        assert (verdicts[0].wait, verdicts[0].token, verdicts[0].attempt) == (SECOND, 0, 0)
        assert [verdict.attempt for verdict in verdicts[1:]] == [2, 2, 1, 1, 1]
        extended = [Settlement(copies[n], verdicts[n].token, "extend") for n in range(1, 6)]
        with pytest.raises(StoreUnavailable, match="1 of 6 records are locked"):
            store.settle([ended[0], *extended])
        before = [store.show(key) for key in keys[1:]]
        granted = verdicts[1].token // 1000 + verdicts[1].wait
        assert all(record and record.held_until > granted for record in before)
    assert store.claim([fact(keys[0])])[0].kind == "duplicate"


def seen_waiting(cluster: Cluster, *asked: Future[Any]) -> bool:
    """Whether all of these calls come to wait for a lock; if not, a call was answered before."""

    def waiting() -> int:
        with cluster.connect() as connection:
            row = connection.execute("SELECT count(*) FROM pg_locks WHERE NOT granted").fetchone()
        assert row is not None
        return int(row[0])

    until(lambda: any(it.done() for it in asked) or waiting() >= len(asked))
    return not any(it.done() for it in asked)


def test_a_claim_waits_for_a_record_that_is_locked_for_a_moment(
    cluster: Cluster, store: PostgresStore
) -> None:
    for _ in range(TRIES):
        claim = fact(*new_keys(1), lease=1)
        (ended,) = completed(store, [claim])
        time.sleep(0.01)
        with ThreadPoolExecutor(1) as threads:
            with store.transaction() as transaction:
                assert transaction.settle(ended) == "kept"
                asked = threads.submit(store.claim, [fact(claim.key)])
                waited = seen_waiting(cluster, asked)
            (verdict,) = asked.result()
        if waited and verdict.kind != "busy":
            break
    assert waited
    assert verdict.kind == "duplicate"


def test_the_clock_is_read_after_the_lock_was_taken(cluster: Cluster, store: PostgresStore) -> None:
    """A claim that had to wait gets a whole lease from then on, and a completion a whole memory."""
    actions: tuple[Action, ...] = ("release", "extend")
    for _ in range(TRIES):
        first, last = fact(*new_keys(1), lease=1), fact(*new_keys(1), lease=HOUR)
        ends = [
            Settlement(ended.claim, ended.token, action)
            for ended, action in zip(completed(store, [first, last]), actions, strict=True)
        ]
        time.sleep(0.01)
        with ThreadPoolExecutor(2) as threads:
            with store.transaction() as transaction:
                assert [transaction.settle(ended) for ended in ends] == ["kept", "kept"]
                asked = threads.submit(store.claim, [fact(first.key)])
                done = msgspec.structs.replace(ends[1], action="complete")
                settled = threads.submit(store.settle, [done])
                waited = seen_waiting(cluster, asked, settled)
                before = wall_clock()
            (verdict,) = asked.result()
            given_up = settled.exception()
        if waited and verdict.kind != "busy" and given_up is None:
            break
    assert waited
    assert settled.result() == ["kept"]
    assert verdict.kind == "run"
    assert verdict.token // 1000 >= before
    record = store.show(last.key)
    assert record is not None
    assert record.expires - last.remember >= before


def test_a_sweep_does_not_delete_a_record_that_a_transaction_holds(store: PostgresStore) -> None:
    claim = fact(*new_keys(1), lease=1, remember=1)
    (ended,) = completed(store, [claim])
    with store.transaction() as transaction:
        assert transaction.settle(ended) == "kept"
        store.sweep(now=EPOCH + 100 * 24 * HOUR)
    assert store.forget([claim.key]) == 1
