"""Changes on PostgreSQL while a claim or a settlement waits for its locks."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from eventonce.clock import wall_clock
from eventonce.stores.postgres import PostgresStore
from eventonce.stores.postgres import codec as wire
from eventonce.testing.cases.samples import HOUR, fact, new_keys
from eventonce.types import Settlement
from tests.helpers import PATIENCE, until
from tests.servers.postgres import Cluster


@pytest.fixture(scope="module")
def cluster(cluster: Cluster) -> Cluster:
    be_patient(cluster)
    return cluster


def be_patient(cluster: Cluster) -> None:
    """Wait longer for locks: on a busy machine, the usual half second may be too short."""
    for function in ("claim_1", "settle_1"):
        cluster.execute(f"ALTER FUNCTION eventonce.{function} SET lock_timeout = '{PATIENCE}s'")


def waiting(cluster: Cluster) -> bool:
    with cluster.connect() as connection:
        return connection.execute("SELECT 1 FROM pg_locks WHERE NOT granted").fetchone() is not None


@pytest.mark.parametrize("later", [0, 1])
def test_a_settlement_of_a_record_that_was_forgotten_and_claimed_again_is_unknown(
    cluster: Cluster, store: PostgresStore, later: int
) -> None:
    """The row did not exist to be locked: this settlement must not write it, even if the new run
    began in the same millisecond and has the same token."""
    now = wall_clock()
    claims = [fact(key, lease=HOUR) for key in new_keys(2)]
    runs = store.claim(claims, now)
    held, forgotten = (
        Settlement(claim, run.token, "complete") for claim, run in zip(claims, runs, strict=True)
    )
    assert store.forget([forgotten.claim.key]) == 1
    with ThreadPoolExecutor(1) as threads:
        with store.transaction() as transaction:
            assert transaction.settle(held) == "kept"
            settled = threads.submit(store.settle, [held, forgotten], now + 2)
            until(lambda: waiting(cluster))
            (anew,) = store.claim([fact(forgotten.claim.key, lease=HOUR)], now + later)
            assert (anew.kind, anew.token == forgotten.token) == ("run", later == 0)
        assert settled.result(PATIENCE) == ["kept", "unknown"]
    assert store.claim([fact(forgotten.claim.key)], now + 2)[0].kind == "busy"


def test_of_two_claims_of_a_new_key_the_second_waits_for_the_first_and_is_busy(
    cluster: Cluster, store: PostgresStore
) -> None:
    first, second, other = (fact(key, lease=HOUR) for key in [*new_keys(1) * 2, *new_keys(1)])
    with ThreadPoolExecutor(1) as threads:
        with store.transaction() as transaction:
            asked = (wire.asked([first]), None, True)
            transaction.connection.execute(store._queries["claim"], asked)
            claimed = threads.submit(store.claim, [second, other])
            until(lambda: waiting(cluster))
        assert [verdict.kind for verdict in claimed.result(PATIENCE)] == ["busy", "run"]
    record = store.show(first.key)
    assert record is not None
    assert (record.nonce, record.attempt) == (first.nonce, 1)
