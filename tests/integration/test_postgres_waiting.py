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
    """The half second that a lock is waited for may pass on a busy machine."""
    for function in ("claim_1", "settle_1"):
        cluster.execute(f"ALTER FUNCTION eventonce.{function} SET lock_timeout = '{PATIENCE}s'")


def waiting(cluster: Cluster) -> bool:
    with cluster.connect() as connection:
        return connection.execute("SELECT 1 FROM pg_locks WHERE NOT granted").fetchone() is not None


@pytest.mark.parametrize("later", [0, 1])
def test_what_was_forgotten_and_begun_anew_meanwhile_is_unknown(
    cluster: Cluster, store: PostgresStore, later: int
) -> None:
    """The row was not there to be locked: whatever its new run's token is, within the same
    millisecond even the same one, it is not for this settlement to write."""
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


def test_of_two_who_begin_a_key_the_second_waits_for_the_first_and_is_busy(
    cluster: Cluster, store: PostgresStore
) -> None:
    first, second, other = (fact(key, lease=HOUR) for key in [*new_keys(1) * 2, *new_keys(1)])
    with ThreadPoolExecutor(1) as threads:
        with store.transaction() as transaction:
            asked = (wire.asked([first]), None, True)
            transaction.connection.execute(store._queries.claim, asked)
            claimed = threads.submit(store.claim, [second, other])
            until(lambda: waiting(cluster))
        assert [verdict.kind for verdict in claimed.result(PATIENCE)] == ["busy", "run"]
    record = store.show(first.key)
    assert record is not None
    assert (record.nonce, record.attempt) == (first.nonce, 1)
