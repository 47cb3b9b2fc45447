"""`Retry(after=…)` behind a queue: the message comes again after the time that it names."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import boto3
import pytest

from eventonce import Consumer, Job, Retry, Rule
from eventonce.aws import lambda_handler
from eventonce.aws.sqs_batch import Visibility
from eventonce.errors import ConfigError
from tests.servers.aws import emulated, ministack
from tests.unit.invoked import ARN, FIFO, event, failures, record

RULE = Rule(name="call", match="call", key=["detail.call"], attempts=100)
HIDDEN = "600"
"""Seconds that the queue itself hides a message: longer than any test."""


class Shop:
    """A function whose handler raises `Retry` for the calls in `after`, with their time."""

    def __init__(self) -> None:
        self.after: dict[str, float | None] = {}
        self.ran: list[str] = []
        self.consumer = Consumer("memory:", rules=RULE, handler=self._run)
        self.handler = lambda_handler(self.consumer)

    def _run(self, job: Job) -> None:
        call = job.event.detail["call"]
        if call in self.after:
            raise Retry(after=self.after[call])
        self.ran.append(call)


def received(client: Any, url: str, arn: str) -> list[dict[str, Any]]:
    """The messages that are visible now, as Lambda would bring them."""
    messages = client.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages", [])
    return [
        {
            "messageId": message["MessageId"],
            "receiptHandle": message["ReceiptHandle"],
            "body": message["Body"],
            "attributes": {},
            "eventSource": "aws:sqs",
            "eventSourceARN": arn,
        }
        for message in messages
    ]


@pytest.fixture
def sqs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    with emulated(), ministack() as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        client = boto3.client("sqs")
        yield client
        client.close()


def test_a_message_is_visible_again_after_the_time_that_its_handler_names(sqs: Any) -> None:
    url = sqs.create_queue(QueueName="calls", Attributes={"VisibilityTimeout": HIDDEN})["QueueUrl"]
    asked = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])
    arn = asked["Attributes"]["QueueArn"]
    for call in ("soon", "later", "as the queue does", "fine"):
        sqs.send_message(QueueUrl=url, MessageBody=json.dumps(event(call)))
    shop = Shop()
    shop.after = {"soon": 0, "later": 300.5, "as the queue does": None}
    records: list[dict[str, Any]] = []
    while len(records) < 4:
        records += received(sqs, url, arn)
    assert len(failures(shop.handler({"Records": records}, None))) == 3
    shop.after = {}
    again = received(sqs, url, arn)
    assert [json.loads(one["body"])["id"] for one in again] == ["soon"]
    assert failures(shop.handler({"Records": again}, None)) == []
    assert shop.ran == ["fine", "soon"]


class Held:
    """A queue that records the receipts to hide, and refuses the receipts in `refused`."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, float]] = []
        self.fault: Exception | None = None
        self.refused: list[str] = []

    def delay(self, receipts: Sequence[tuple[str, float]]) -> list[str]:
        self.asked += receipts
        if self.fault is not None:
            raise self.fault
        return self.refused


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Held:
    queue = Held()
    monkeypatch.setattr(Visibility, "_queue", lambda *_: queue)
    return queue


def test_the_next_messages_of_the_same_group_wait_as_long(held: Held) -> None:
    shop = Shop()
    shop.after = {"a2": 7.2, "b1": None}
    batch = [
        record(call, group=call[0], arn=FIFO) | {"receiptHandle": call}
        for call in ("a1", "a2", "a3", "b1", "b2", "c1")
    ]
    assert len(failures(shop.handler({"Records": batch}, None))) == 4
    assert held.asked == [("a2", 8), ("a3", 8)]


def test_a_failure_to_delay_a_message_is_logged_and_the_message_stays_in_the_queue(
    held: Held, caplog: pytest.LogCaptureFixture
) -> None:
    shop = Shop()
    shop.after = {"a": 5}
    batch = {"Records": [record("a") | {"receiptHandle": "r"}, record("b")]}
    held.fault = ConfigError("permission denied")
    assert failures(shop.handler(batch, None)) == ["message-a"]
    assert f"no effect for 1 records of {ARN}" in caplog.text
    assert "permission denied" in caplog.text
    assert shop.ran == ["b"]


def test_the_number_of_messages_whose_delay_the_queue_refuses_is_logged(
    held: Held, caplog: pytest.LogCaptureFixture
) -> None:
    shop = Shop()
    shop.after = {"a": 5, "b": 6}
    held.refused = ["b"]
    batch = [record(call) | {"receiptHandle": call} for call in "ab"]
    assert failures(shop.handler({"Records": batch}, None)) == ["message-a", "message-b"]
    assert held.asked == [("a", 5), ("b", 6)]
    assert f"no effect for 1 records of {ARN}" in caplog.text
    assert "the queue refused it" in caplog.text


@pytest.mark.parametrize("odd", [{}, {"receiptHandle": None}, {"eventSourceARN": 7}])
def test_a_record_without_a_receipt_or_a_valid_queue_arn_is_not_delayed(
    held: Held, odd: Any
) -> None:
    shop = Shop()
    shop.after = {"a": 5}
    assert failures(shop.handler({"Records": [record("a") | odd]}, None)) == ["message-a"]
    assert held.asked == []


def test_an_invocation_that_is_about_to_end_delays_no_message(
    held: Held, caplog: pytest.LogCaptureFixture
) -> None:
    class Context:
        def get_remaining_time_in_millis(self) -> int:
            return 3_000

    shop = Shop()
    shop.after = {"a": 5}
    batch = {"Records": [record("a") | {"receiptHandle": "r"}]}
    assert failures(shop.handler(batch, Context())) == ["message-a"]
    assert held.asked == []
    assert "too little of the invocation is left" in caplog.text


def test_a_function_whose_handlers_name_no_time_loads_no_boto3() -> None:
    code = """
import sys
from tests.integration.test_lambda_visibility import Shop, record
for name in [name for name in sys.modules if name.startswith("boto")]:
    del sys.modules[name]
shop = Shop()
shop.after = {"a": None}
shop.handler({"Records": [record("a") | {"receiptHandle": "r"}]}, None)
assert "boto3" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
