"""The sentences of docs/can-aws-do-it.md about queues and ids, played on ministack.

The emulator shows that we read AWS' pages as its makers did, and no more: their words are linked.
"""

from __future__ import annotations

import json
from typing import Any

import boto3
import pytest

from eventonce import Consumer
from eventonce.stores.memory import MemoryStore
from tests.docs.arrivals import agent_leaves, published_again
from tests.docs.pages import DOCS, broken_links, sections
from tests.servers.aws import REGION

PAGE = sections("can-aws-do-it.md")
A, B = agent_leaves("a"), published_again("b")


def answers_of_the_page(table: int) -> list[bool]:
    return ["yes" in row[1] for row in PAGE["SQS FIFO"].tables()[table]]


@pytest.fixture
def sqs(endpoint: str) -> Any:
    return boto3.client("sqs", region_name=REGION, endpoint_url=endpoint)


@pytest.fixture
def queue(sqs: Any, request: pytest.FixtureRequest) -> str:
    """A FIFO queue as EventBridge requires it."""
    attributes = {"FifoQueue": "true", "ContentBasedDeduplication": "true"}
    name = f"{request.node.name[:70]}.fifo"
    return str(sqs.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"])


def received(sqs: Any, queue: str) -> list[dict[str, Any]]:
    """The messages that can be received now."""
    found: list[dict[str, Any]] = []
    while got := sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=10).get("Messages"):
        found += got
        for message in got:
            sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
    return found


def test_fifo_by_content_drops_the_same_bytes_and_keeps_a_second_publish(
    sqs: Any, queue: str
) -> None:
    kept = []
    for event in (A, A, B):
        sqs.send_message(QueueUrl=queue, MessageBody=json.dumps(event), MessageGroupId="g")
        kept.append(bool(received(sqs, queue)))
    assert kept == answers_of_the_page(0)
    consumer = Consumer("memory:", rules="genesys", handler=lambda _: None)
    assert [it.status for it in consumer.process([A, B])] == ["done", "duplicate"]


def test_fifo_delivers_again_a_message_that_was_not_deleted_in_time(sqs: Any, queue: str) -> None:
    sqs.send_message(QueueUrl=queue, MessageBody=json.dumps(A), MessageGroupId="g")
    (first,) = sqs.receive_message(QueueUrl=queue)["Messages"]
    # As the timeout would, without waiting for it.
    sqs.change_message_visibility(
        QueueUrl=queue, ReceiptHandle=first["ReceiptHandle"], VisibilityTimeout=0
    )
    (again,) = received(sqs, queue)
    assert [True, again["MessageId"] == first["MessageId"]] == answers_of_the_page(1)


def test_an_effect_sent_under_its_own_id_is_sent_once_though_the_worker_died(
    sqs: Any, queue: str
) -> None:
    store, lost = MemoryStore(), Consumer(MemoryStore(), rules="genesys")
    kept = []
    # The first worker has a store of its own: its completion never reaches the second store.
    for consumer in (lost, Consumer(store, rules="genesys")):
        (snippet,) = PAGE["SQS FIFO"].blocks("python")
        exec(snippet, {"consumer": consumer, "sqs": sqs, "queue": queue})
        assert consumer.process([A])[0].status == "done"
        kept.append(bool(received(sqs, queue)))
    assert kept == answers_of_the_page(2)


def test_two_identical_entries_on_a_bus_get_two_ids(endpoint: str, sqs: Any) -> None:
    events = boto3.client("events", region_name=REGION, endpoint_url=endpoint)
    entry = {"Source": "bench", "DetailType": "probe", "Detail": json.dumps({"light": "green"})}
    entries = events.put_events(Entries=[entry, entry])["Entries"]
    assert len({it["EventId"] for it in entries}) == 2


def test_no_link_is_broken() -> None:
    assert broken_links(DOCS / "can-aws-do-it.md") == []
    assert broken_links(DOCS / "recipes.md") == []
