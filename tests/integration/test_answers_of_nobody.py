"""A status 200 that is not from the service: a proxy's page, an empty body, or foreign JSON.

The tests use boto3 and a real HTTP server, which answers as a captive portal would.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from eventonce import Consumer, Job, Reject, sending
from eventonce.aws.eventbridge import NO_RECEIPT, Bus
from eventonce.aws.sessions import Access
from eventonce.aws.sqs import Queue
from eventonce.errors import SourceUnavailable, StoreUnavailable
from eventonce.sinks import EventBus, SQSQueue
from eventonce.stores.dynamodb import DynamoDBStore
from eventonce.stores.memory import MemoryStore
from eventonce.types import Claim, Letter, Settlement
from tests.servers.aws import ASKS_FOR_BOTOCORE, REGION, emulated
from tests.servers.http import Handler, served

ANSWERS = {
    "nothing": b"",
    "a page": b"<html><body>Please sign in</body></html>",
    "an empty object": b"{}",
    "an array": b"[]",
    "null": b"null",
    "a text": b'"ok"',
    "a foreign status": b'{"status": "ok", "Responses": [], "Entries": [], "Successful": []}',
    "empty receipts": b'{"Entries": [{}], "Successful": [{"Id": "0"}], "Responses": [{}], '
    b'"FailedEntryCount": 0, "ConsumedCapacity": {}}',
}
EVENT = {"id": "1", "source": "s", "detail-type": "call", "detail": {"call": 1}}
CLAIM = Claim(b"\x01" * 16, nonce=1, lease=60_000, remember=60_000, attempts=5)


class CaptivePortal(Handler):
    """A server that answers 200 to every request."""

    said = b""

    def reply(self) -> None:
        self.body()
        self.answer(200, self.said, [("content-type", "text/html")])


@pytest.fixture(scope="module")
def portal() -> Iterator[str]:
    with emulated(), served(CaptivePortal) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture(params=ANSWERS)
def endpoint(portal: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(CaptivePortal, "said", ANSWERS[request.param])
    monkeypatch.setattr(sending, "RETRY_PAUSE", 0.0)
    return portal


def queue_of(endpoint: str) -> str:
    return f"{endpoint}/111122223333/calls?region={REGION}"


def test_an_event_fails_if_the_queue_gives_no_receipt(endpoint: str) -> None:
    with Consumer(MemoryStore(), handler=SQSQueue(queue_of(endpoint))) as consumer:
        (outcome,) = consumer.process([EVENT])
    assert (outcome.status, outcome.ack) == ("failed", False)


def test_an_event_fails_if_the_bus_gives_no_receipt(endpoint: str) -> None:
    sink = EventBus(f"events://calls?region={REGION}&endpoint={endpoint}")
    with Consumer(MemoryStore(), handler=sink) as consumer:
        (outcome,) = consumer.process([EVENT])
    assert (outcome.status, outcome.ack) == ("failed", False)


def test_an_event_fails_if_its_dead_letter_has_no_receipt(endpoint: str) -> None:
    def reject(_: Job) -> None:
        raise Reject("never")

    letters = queue_of(endpoint)
    with Consumer(MemoryStore(), handler=reject, letters=letters) as consumer:
        rejected, invalid = consumer.process([EVENT, b"no event"])
    assert (rejected.status, rejected.ack) == ("failed", False)
    assert (invalid.status, invalid.ack) == ("failed", False)


@pytest.mark.parametrize("client", ["direct", "botocore"])
def test_a_table_that_does_not_answer_as_dynamodb_does_grants_nothing(
    endpoint: str, client: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if client == "botocore":
        monkeypatch.setenv(*ASKS_FOR_BOTOCORE)
    ran: list[Job] = []
    store = DynamoDBStore.from_uri(f"dynamodb://calls?region={REGION}&endpoint={endpoint}")
    state = Claim(b"\x02" * 16, nonce=1, lease=60_000, remember=60_000, attempts=5, order=7)
    with Consumer(store, name="crm", handler=ran.append) as consumer:
        for events in ([EVENT], [EVENT | {"id": str(number)} for number in range(3)]):
            outcomes = consumer.process(events)
            assert {(one.status, one.ack) for one in outcomes} == {("failed", False)}
        assert ran == []
        for call in (
            lambda: store.claim([CLAIM]),
            lambda: store.claim([state]),
            lambda: store.settle([Settlement(CLAIM, 1, "complete")]),
            lambda: store.put_letters([Letter("l", "crm", "dead", "", "", b"", b"{}", 1, 1)]),
            lambda: list(store.letters()),
            lambda: store.show(CLAIM.key),
            lambda: store.forget([CLAIM.key]),
        ):
            with pytest.raises(StoreUnavailable, match="is not from the service"):
                call()


@pytest.mark.parametrize("named", [False, True])
def test_a_receive_with_a_foreign_answer_raises_and_can_be_repeated(
    endpoint: str, named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_name = f"sqs://calls?region={REGION}&endpoint={endpoint}"
    queue = Queue.from_uri(by_name if named else queue_of(endpoint))
    with pytest.raises(SourceUnavailable, match="is not from the service"):
        queue.receive()
    message = {"MessageId": "m", "ReceiptHandle": "r", "Body": "{}"}
    answer = {"QueueUrl": f"{endpoint}/111122223333/calls", "Messages": [message]}
    monkeypatch.setattr(CaptivePortal, "said", json.dumps(answer).encode())
    assert queue.receive() == [message]


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"MessageId": "m", "ReceiptHandle": "r"},
        {"MessageId": "m", "ReceiptHandle": "r", "Body": 5},
        {"MessageId": "m", "Body": "{}"},
        {"ReceiptHandle": "r", "Body": "{}"},
    ],
)
def test_a_message_without_an_id_a_receipt_or_a_body_is_refused(
    portal: str, monkeypatch: pytest.MonkeyPatch, message: dict[str, Any]
) -> None:
    monkeypatch.setattr(CaptivePortal, "said", json.dumps({"Messages": [message]}).encode())
    with pytest.raises(SourceUnavailable, match="is not from the service"):
        Queue.from_uri(queue_of(portal)).receive()


@pytest.mark.parametrize("endpoint", ["nothing", "an empty object"], indirect=True)
def test_a_deletion_or_a_delay_without_a_receipt_is_reported_as_failed(endpoint: str) -> None:
    found = Queue.from_uri(queue_of(endpoint))
    assert found.delete(["a", "b"]) == ["a", "b"]
    assert found.delay([("a", 5), ("b", 5)]) == ["a", "b"]


@pytest.mark.parametrize("endpoint", ["a page", "an array", "null", "a text"], indirect=True)
def test_a_deletion_or_a_delay_with_a_foreign_answer_raises_and_can_be_repeated(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Queue.from_uri(queue_of(endpoint))
    with pytest.raises(SourceUnavailable, match="is not from the service"):
        found.delete(["a", "b"])
    with pytest.raises(SourceUnavailable, match="is not from the service"):
        found.delay([("a", 5), ("b", 5)])
    monkeypatch.setattr(CaptivePortal, "said", b'{"Successful": [{"Id": "0"}, {"Id": "1"}]}')
    assert found.delete(["a", "b"]) == []
    assert found.delay([("a", 5), ("b", 5)]) == []


@pytest.mark.parametrize("to", ["a bus", "a queue"])
def test_an_event_of_the_send_command_is_refused_without_a_receipt(endpoint: str, to: str) -> None:
    going = [sending.Outgoing(1, 1, b'{"id":"1","source":"s","detail-type":"c","detail":{}}')]
    answers: Counter[str] = Counter()
    try:
        send = (
            sending.to_bus(Bus("calls", Access(REGION, endpoint)))
            if to == "a bus"
            else sending.to_queue(Queue.from_uri(queue_of(endpoint)))
        )
        refused = send(going, answers)
    except SourceUnavailable as error:
        assert "is not from the service" in str(error)  # noqa: PT017  one of two ways to say no
    else:
        assert [one.code for one in refused] == [NO_RECEIPT]
