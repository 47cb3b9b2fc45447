from __future__ import annotations

import time
from typing import Any

import pytest

from eventonce.aws.sqs import Queue
from eventonce.core.ports import Delivery
from eventonce.errors import ConfigError
from eventonce.sources import SQSSource


class Queued:
    """A client that logs its calls, because a test cannot wait for twelve hours."""

    def __init__(self, *messages: dict[str, Any]) -> None:
        self.messages = list(messages)
        self.asked: list[dict[str, Any]] = []

    def receive_message(self, **asked: Any) -> dict[str, Any]:
        self.asked.append(asked)
        return {"Messages": self.messages}

    def change_message_visibility_batch(self, **asked: Any) -> dict[str, Any]:
        self.asked.append(asked)
        return {}


def _source(client: Queued, name: str = "orders") -> SQSSource:
    url = f"https://sqs.eu-west-1.amazonaws.com/1/{name}"
    return SQSSource(Queue.from_uri(url, client), visibility=60, wait=7)


def _message(**attributes: str) -> dict[str, Any]:
    return {"Body": "{}", "ReceiptHandle": "r", "MessageId": "m", "Attributes": attributes}


def test_only_the_first_request_does_not_wait_for_messages() -> None:
    client = Queued()
    source = _source(client)
    source.receive(3)
    source.receive(30)
    waits = [(asked["MaxNumberOfMessages"], asked["WaitTimeSeconds"]) for asked in client.asked]
    assert waits == [(3, 0), (10, 7)]
    assert client.asked[0]["VisibilityTimeout"] == 60


def test_the_group_of_a_message_is_used_only_on_a_fifo_queue() -> None:
    client = Queued(_message(MessageGroupId="tenant", ApproximateReceiveCount="4"))
    (plain,) = _source(client).receive(1)
    (ordered,) = _source(client, "orders.fifo").receive(1)
    assert (plain.group, ordered.group) == ("", "tenant")
    assert (plain.id, plain.receipt, plain.times) == ("m", "r", 4)


def test_a_message_is_held_no_longer_than_twelve_hours_in_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = Queued()
    now = 100_000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    fresh = Delivery(b"", "fresh", since=now)
    old = Delivery(b"", "old", since=now - 43_200 + 30)
    older = Delivery(b"", "older", since=now - 43_199)
    _source(client).postpone([(fresh, 0.2), (old, 60.0), (older, 60.0), (fresh, 99_999)])
    (asked,) = client.asked
    delays = [(it["ReceiptHandle"], it["VisibilityTimeout"]) for it in asked["Entries"]]
    assert delays[0] == ("fresh", 1)
    assert delays[1:] == [("old", 25), ("fresh", 43_195)]


@pytest.mark.parametrize("visibility", [0, 1, 43_201])
def test_a_visibility_that_sqs_does_not_allow_is_refused(visibility: float) -> None:
    with pytest.raises(ConfigError, match="visibility"):
        SQSSource(Queue.from_uri("sqs://orders"), visibility=visibility)
