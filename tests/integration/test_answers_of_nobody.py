"""A 200 that is not the service's: a proxy's page, nothing at all, or JSON of something else.

Through boto3 and a real HTTP server, as an endpoint behind a captive portal would answer.
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
    "somebody's status": b'{"status": "ok", "Responses": [], "Entries": [], "Successful": []}',
    "empty receipts": b'{"Entries": [{}], "Successful": [{"Id": "0"}], "Responses": [{}], '
    b'"FailedEntryCount": 0, "ConsumedCapacity": {}}',
}
EVENT = {"id": "1", "source": "s", "detail-type": "call", "detail": {"call": 1}}
CLAIM = Claim(b"\x01" * 16, nonce=1, lease=60_000, remember=60_000, attempts=5)


class Nobody(Handler):
    """Says 200 to everything."""

    said = b""

    def reply(self) -> None:
        self.body()
        self.answer(200, self.said, [("content-type", "text/html")])


@pytest.fixture(scope="module")
def portal() -> Iterator[str]:
    with emulated(), served(Nobody) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture(params=ANSWERS)
def endpoint(portal: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(Nobody, "said", ANSWERS[request.param])
    monkeypatch.setattr(sending, "RETRY_PAUSE", 0.0)
    return portal


def queue_of(endpoint: str) -> str:
    return f"{endpoint}/111122223333/calls?region={REGION}"


def test_a_queue_that_gives_no_receipt_was_not_sent_to(endpoint: str) -> None:
    with Consumer(MemoryStore(), handler=SQSQueue(queue_of(endpoint))) as consumer:
        (outcome,) = consumer.process([EVENT])
    assert (outcome.status, outcome.ack) == ("failed", False)


def test_a_bus_that_gives_no_receipt_took_nothing(endpoint: str) -> None:
    sink = EventBus(f"events://calls?region={REGION}&endpoint={endpoint}")
    with Consumer(MemoryStore(), handler=sink) as consumer:
        (outcome,) = consumer.process([EVENT])
    assert (outcome.status, outcome.ack) == ("failed", False)


def test_an_event_whose_dead_letter_has_no_receipt_comes_again(endpoint: str) -> None:
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


def test_a_queue_is_asked_again_for_what_it_did_not_answer(endpoint: str) -> None:
    named = Queue.from_uri(f"sqs://calls?region={REGION}&endpoint={endpoint}")
    with pytest.raises(SourceUnavailable, match="is not from the service"):
        named.receive()
    found = Queue.from_uri(queue_of(endpoint))
    with pytest.raises(SourceUnavailable, match="is not from the service"):
        found.receive()


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
def test_a_message_that_lacks_what_every_message_has_is_none(
    portal: str, monkeypatch: pytest.MonkeyPatch, message: dict[str, Any]
) -> None:
    monkeypatch.setattr(Nobody, "said", json.dumps({"Messages": [message]}).encode())
    with pytest.raises(SourceUnavailable, match="is not from the service"):
        Queue.from_uri(queue_of(portal)).receive()


@pytest.mark.parametrize("endpoint", ["nothing", "an empty object"], indirect=True)
def test_a_message_is_not_deleted_or_held_without_a_receipt(endpoint: str) -> None:
    found = Queue.from_uri(queue_of(endpoint))
    assert found.delete(["a", "b"]) == ["a", "b"]
    assert found.delay([("a", 5), ("b", 5)]) == ["a", "b"]


@pytest.mark.parametrize("endpoint", ["a page", "an array", "null", "a text"], indirect=True)
def test_a_message_is_deleted_and_held_again_after_an_answer_that_is_none(endpoint: str) -> None:
    found = Queue.from_uri(queue_of(endpoint))
    with pytest.raises(SourceUnavailable, match="is not from the service"):
        found.delete(["a", "b"])
    with pytest.raises(SourceUnavailable, match="is not from the service"):
        found.delay([("a", 5), ("b", 5)])


@pytest.mark.parametrize("to", ["a bus", "a queue"])
def test_what_is_sent_to_try_it_out_is_refused_without_a_receipt(endpoint: str, to: str) -> None:
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
