"""PostgreSQL away, frozen, crashed or moved: nothing is lost, and the work resumes by itself."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from eventonce import Consumer, Job, Rule
from eventonce.errors import StoreUnavailable
from eventonce.stores.postgres import PostgresStore
from eventonce.stores.probe import write_trial
from eventonce.testing.cases.samples import fact, new_keys
from eventonce.types import Settlement
from tests.helpers import PATIENCE, call, until
from tests.integration.granted import alone, answered, made
from tests.servers.postgres import Cluster, prepared

RULE = Rule(name="call", match="call", key=["detail.call"])


def test_a_connection_without_an_answer_times_out_and_the_next_call_succeeds(
    cluster: Cluster,
) -> None:
    store = PostgresStore(cluster.uri(options="?timeout=1&application_name=frozen"))
    key, other = new_keys(2)
    claim = fact(key)
    (run,) = answered(lambda: store.claim([claim]))
    alone(cluster, "frozen", left=1)
    (pid,) = backends(cluster, "frozen")
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(StoreUnavailable, match="no answer within 1 s"):
            store.settle([Settlement(claim, run.token, "complete")])
        # The next call uses another connection.
        following = fact(other)
        assert answered(lambda: store.claim([following]))[0].kind == "run"
    finally:
        os.kill(pid, signal.SIGCONT)
    settlement = Settlement(claim, run.token, "complete")
    assert answered(lambda: store.settle([settlement])) == ["kept"]
    store.close()


def test_connections_that_were_closed_unnoticed_do_not_fail_the_next_call(cluster: Cluster) -> None:
    store = PostgresStore(cluster.uri())
    with store.transaction():
        assert store.claim([fact(*new_keys(1))])[0].kind == "run"
    cut_all(cluster)
    assert store.claim([fact(*new_keys(1))])[0].kind == "run"
    with store.transaction() as transaction:
        transaction.connection.execute("SELECT 1")
    store.close()


def test_work_resumes_by_itself_when_the_server_is_back() -> None:
    seen: list[int] = []

    def handler(job: Job) -> None:
        seen.append(job.event.detail["call"])

    with prepared() as cluster:
        with cluster.running():
            made(cluster.uri())
            consumer = Consumer(cluster.uri(), name="calls", rules=RULE, handler=handler)
            assert consumer.process([call(1)])[0].status == "done"
        outcomes = consumer.process([call(1), call(2)])
        assert [outcome.status for outcome in outcomes] == ["failed", "failed"]
        assert not any(outcome.ack for outcome in outcomes)
        assert isinstance(outcomes[0].error, StoreUnavailable)
        with cluster.running():
            outcomes = consumer.process([call(1), call(2)])
            assert [outcome.status for outcome in outcomes] == ["duplicate", "done"]
            consumer.close()
    assert seen == [1, 2]


def test_a_server_that_crashes_keeps_the_settlements_that_it_answered() -> None:
    with prepared() as cluster:
        with cluster.running("-c", "fsync=on") as process:
            made(cluster.uri())
            store = PostgresStore(cluster.uri())
            claims = [fact(key) for key in new_keys(50)]
            runs = store.claim(claims)
            ended = [
                Settlement(claim, run.token, "complete")
                for claim, run in zip(claims, runs, strict=True)
            ]
            assert set(store.settle(ended)) == {"kept"}
            process.send_signal(signal.SIGQUIT)  # an immediate shutdown, without a checkpoint
            process.wait(PATIENCE)
        with cluster.running():
            copies = store.claim([fact(claim.key) for claim in claims])
            assert {copy.kind for copy in copies} == {"duplicate"}
            store.close()


@contextmanager
def replicated() -> Iterator[tuple[Cluster, ExitStack, Cluster]]:
    """A primary, the stack that stops it, and its replica, which has all that it has answered."""
    together = ("-c", "synchronous_standby_names=*", "-c", "synchronous_commit=remote_apply")
    with ExitStack() as stack:
        primary = stack.enter_context(prepared())
        blank = stack.enter_context(prepared())
        replica = blank._replace(folder=blank.folder.with_name("replica"))
        running = stack.enter_context(ExitStack())
        with primary.running():
            made(primary.uri())
            subprocess.run(
                [
                    *(primary.programs / "pg_basebackup", "-D", replica.folder, "-R"),
                    *("-X", "stream", "-c", "fast", "--no-sync", "-d", primary.uri()),
                ],
                check=True,
                user=primary.user,
            )
        running.enter_context(primary.running(*together))
        stack.enter_context(replica.running())
        with primary.connect() as connection:
            # Until the replica is in sync, each commit waits for it.
            query = "SELECT state, sync_state FROM pg_stat_replication"
            until(lambda: connection.execute(query).fetchall() == [("streaming", "sync")])
        yield primary, running, replica


def test_a_replica_is_reported_as_read_only() -> None:
    with replicated() as (_, _, replica):
        store = PostgresStore(replica.uri())
        with pytest.raises(StoreUnavailable, match="target_session_attrs=read-write"):
            store.claim([fact(*new_keys(1))])
        with pytest.raises(StoreUnavailable, match="target_session_attrs=read-write"):
            write_trial(store, *new_keys(1))
        assert [it.what for it in store.check() if not it.fine] == ["the server takes writes"]
        store.close()


def test_after_a_failover_the_work_goes_on_at_the_new_primary() -> None:
    with replicated() as (primary, running, replica):
        hosts = f"127.0.0.1:{replica.port},127.0.0.1:{primary.port}"
        store = PostgresStore(
            f"postgresql://postgres@{hosts}/postgres?target_session_attrs=read-write"
        )
        claims = [fact(key) for key in new_keys(2)]
        runs = store.claim(claims)
        assert store.settle([Settlement(claims[0], runs[0].token, "complete")]) == ["kept"]
        running.close()
        with pytest.raises(StoreUnavailable):
            store.settle([Settlement(claims[1], runs[1].token, "complete")])
        replica.execute("SELECT pg_promote()")
        assert store.claim([fact(claims[0].key)])[0].kind == "duplicate"
        assert store.settle([Settlement(claims[1], runs[1].token, "complete")]) == ["kept"]
        store.close()


def test_a_connection_that_becomes_read_only_is_replaced(
    cluster: Cluster,
) -> None:
    """After a failover, the open connections lead to the old primary."""
    store = PostgresStore(cluster.uri())
    assert store.claim([fact(*new_keys(1))])[0].kind == "run"
    store._connections.do(lambda it: it.execute("SET default_transaction_read_only = on"))
    assert store.claim([fact(*new_keys(1))])[0].kind == "run"
    store.close()


def backends(cluster: Cluster, name: str) -> list[int]:
    with cluster.connect() as connection:
        query = "SELECT pid FROM pg_stat_activity WHERE application_name = %s"
        return [pid for (pid,) in connection.execute(query, (name,)).fetchall()]


def cut_all(cluster: Cluster) -> None:
    """End every connection of eventonce, as a restart or a firewall would."""
    assert backends(cluster, "eventonce")
    cluster.execute(
        "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity "
        "WHERE application_name = 'eventonce'"
    )
