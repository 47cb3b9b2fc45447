"""Queues and stores that go away and come back, and a service that refuses for a while."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from eventonce import Consumer, StoreUnavailable
from eventonce.aws import sessions
from eventonce.stores.memory import MemoryStore
from eventonce.types import Job
from eventonce.worker import availability
from eventonce.worker import worker as worker_module
from eventonce.worker.health import listening
from tests.helpers import PATIENCE, WatchedStore, away, until
from tests.integration.dynamodb.between import Between, Forward, Reply, refuse
from tests.integration.worker.conftest import Site, event, health
from tests.integration.worker.working import RULE, Ran, source, working
from tests.servers.valkey import serving


@pytest.fixture(autouse=True)
def _quick_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(availability, "LONGEST_PAUSE", 0.2)
    monkeypatch.setattr(availability, "SHORTEST_PAUSE", 0.2)
    monkeypatch.setattr(sessions, "CLIENT_AGE", 0.0)


def test_a_worker_continues_when_its_queue_was_deleted_and_is_created_again(site: Site) -> None:
    ran = Ran()
    site.send(event(1))
    with working(Consumer(MemoryStore(), rules=RULE, handler=ran), source(site.uri)) as worker:
        until(lambda: ran.numbers == [1])
        site.queue.client.delete_queue(QueueUrl=site.queue.url)
        # A request from before the deletion may still be answered after it.
        until(lambda: "no such queue" in worker.state()["queue"]["why"], otherwise=worker.state)
        until(lambda: not worker.state()["ready"], otherwise=worker.state)
        site.make_queue()
        site.send(event(2))
        until(lambda: ran.numbers == [1, 2])
        until(lambda: worker.state()["ready"], otherwise=worker.state)
    site.emptied()


def test_a_worker_waits_for_a_queue_that_does_not_exist_yet(site: Site) -> None:
    ran = Ran()
    site.queue.client.delete_queue(QueueUrl=site.queue.url)
    with working(Consumer(MemoryStore(), rules=RULE, handler=ran), source(site.uri)) as worker:
        until(lambda: worker.state()["queue"]["why"])
        assert not worker.state()["ready"]
        site.make_queue()
        site.send(event(1))
        until(lambda: ran.numbers == [1])


@pytest.mark.parametrize(
    ("code", "status"),
    [("RequestThrottled", 400), ("InternalFailure", 500)],
)
def test_events_run_after_a_service_has_throttled_or_failed_for_a_while(
    site: Site, between: Between, code: str, status: int
) -> None:
    ran = Ran()
    through = source(site.through(between.url))
    with working(Consumer(MemoryStore(), rules=RULE, handler=ran), through) as worker:
        until(lambda: worker.state()["ready"])
        with between.spoiling(refuse(code, status=status)):
            site.send(*map(event, range(3)))
            until(lambda: not worker.state()["ready"], otherwise=worker.state)
        until(lambda: sorted(ran.numbers) == [0, 1, 2])
        site.emptied()
        until(lambda: worker.state()["ready"], otherwise=worker.state)


def test_an_event_that_ran_while_the_queue_was_away_is_acknowledged_later(
    site: Site, between: Between
) -> None:
    ran = Ran()
    delete = "DeleteMessageBatch"

    def refuse_to_delete(operation: str, body: bytes, forward: Forward) -> Reply | None:
        if operation != delete:
            return forward(body)
        return refuse("ServiceUnavailable", status=503)(operation, body, forward)

    through = source(site.through(between.url), visibility=3_600)
    with working(Consumer(MemoryStore(), rules=RULE, handler=ran), through):
        with between.spoiling(refuse_to_delete):
            site.send(event(1))
            # The client itself tries twice.
            until(lambda: between.asked.count(delete) >= 4, otherwise=lambda: between.asked)
        # Not after the visibility's hour, as a copy.
        site.emptied()
    assert ran.numbers == [1]


def test_expired_credentials_are_read_again(
    site: Site, between: Between, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "credentials"
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))

    def renew(key: str) -> None:
        # In one piece: the file may be read at any moment.
        new = file.with_suffix(".new")
        new.write_text(f"[default]\naws_access_key_id={key}\naws_secret_access_key=no-secret\n")
        new.replace(file)

    renew("AKIAOLD0000000000000")
    site.queue.close()  # the next client reads the file
    ran = Ran()
    through = source(site.through(between.url))
    with working(Consumer(MemoryStore(), rules=RULE, handler=ran), through) as worker:
        until(lambda: worker.state()["ready"], otherwise=worker.state)
        assert between.keys == {"AKIAOLD0000000000000"}
        with between.spoiling(refuse("ExpiredTokenException", status=403)):
            until(lambda: "expired" in worker.state()["queue"]["why"], otherwise=worker.state)
            renew("AKIANEW0000000000000")
            until(lambda: "AKIANEW0000000000000" in between.keys, otherwise=worker.state)
        site.send(event(1))
        until(lambda: ran.numbers == [1])
        until(lambda: worker.state()["ready"], otherwise=worker.state)


def test_while_the_store_is_away_no_message_is_received_and_work_resumes_afterwards(
    site: Site, between: Between
) -> None:
    ran = Ran()
    with serving() as node:
        port = node.port
        consumer = Consumer(node.uri, name="away", rules=RULE, handler=ran)
    # The server has ended; the worker begins without it.
    site.send(*map(event, range(4)))
    with working(consumer, source(site.through(between.url))) as worker:
        until(lambda: worker.state()["store"]["why"])
        assert not worker.state()["ready"]
        # Long enough for a request, were one made.
        time.sleep(0.7)
        # Each message that is received and given back is closer to its queue's own limit.
        assert "ReceiveMessage" not in between.asked
        with serving(port=port):
            until(lambda: sorted(ran.numbers) == [0, 1, 2, 3], otherwise=worker.state)
            site.emptied()
            until(lambda: worker.state()["ready"], otherwise=worker.state)
    assert sorted(ran.numbers) == [0, 1, 2, 3]


def test_a_store_that_is_away_when_a_handler_returns_causes_no_second_run(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "SETTLE_PAUSES", (0.05,) * 1_000)
    store = WatchedStore(away())
    attempts, tries = list[int](), list[str]()

    def forgetful(verb: str, _: object) -> None:
        if verb == "settle":
            tries.append(verb)
            raise StoreUnavailable

    def handler(job: Job) -> None:
        attempts.append(job.attempt)
        store.look = forgetful

    site.send(event(1))
    with working(Consumer(store, rules=RULE, handler=handler), source(site.uri)):
        # A consumer whose transport has a deadline gives up after the fourth.
        until(lambda: len(tries) > 6)
        store.look = away()
        site.emptied()
    assert attempts == [1]


def test_the_health_endpoint_reports_ready_running_and_draining(site: Site) -> None:
    consumer = Consumer(MemoryStore(), rules=RULE, handler=Ran())
    begun, go = threading.Event(), threading.Event()

    def handler(_: Job) -> None:
        begun.set()
        go.wait(PATIENCE)

    consumer.runtime.wrap(lambda _: handler)
    with working(consumer, source(site.uri)) as worker, listening("0", worker.state) as port:
        until(lambda: health(port, "ready")[0] == 200)
        site.send(event(1))
        assert begun.wait(PATIENCE)
        assert health(port, "ready")[1]["running"] == 1
        worker.stop()
        until(lambda: health(port, "ready")[0] == 503)
        assert health(port, "ready")[1]["draining"]
        assert health(port, "live")[0] == 200
        assert health(port, "else")[0] == 404
        go.set()
