"""The SQS client of eventonce beside botocore's: both get the same answers from one queue."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

import pytest

from eventonce.aws.direct import ServiceClient
from eventonce.aws.sessions import Access, connect
from eventonce.aws.sqs_client import connect_sqs
from tests.integration.worker.conftest import Servers


@pytest.fixture
def both(servers: Servers) -> Iterator[tuple[Any, Any]]:
    access = Access(endpoint=servers.aws)
    ours = connect_sqs(access, read_timeout=25, attempts=1)
    botocores = connect("sqs", access, read_timeout=25, attempts=1)
    assert isinstance(ours, ServiceClient)
    yield ours, botocores
    ours.close()
    botocores.close()


@pytest.fixture
def url(both: tuple[Any, Any]) -> str:
    name = secrets.token_hex(6)
    return str(both[0].create_queue(QueueName=name)["QueueUrl"])


def without_metadata(answer: dict[str, Any], *without: str) -> dict[str, Any]:
    left_out = ("ResponseMetadata", *without)
    return {name: value for name, value in answer.items() if name not in left_out}


def test_both_clients_send_and_receive_the_same_messages(both: tuple[Any, Any], url: str) -> None:
    entries = [
        {
            "Id": "0",
            "MessageBody": '{"name": "Zoë \N{GRINNING FACE}"}\t\\',
            "MessageAttributes": {
                "text": {"DataType": "String", "StringValue": "so"},
                "bytes": {"DataType": "Binary", "BinaryValue": b"\0\xff"},
            },
        }
    ]
    for sender in both:
        sender.send_message_batch(QueueUrl=url, Entries=entries)
        received = [
            reader.receive_message(
                QueueUrl=url,
                VisibilityTimeout=0,
                MessageAttributeNames=["All"],
                MessageSystemAttributeNames=["SentTimestamp"],
            )
            for reader in both
        ]
        ours, botocores = (
            without_metadata(one, "ReceiptHandle") for it in received for one in it["Messages"]
        )
        assert ours == botocores
        assert ours["Body"] == entries[0]["MessageBody"]
        assert ours["MessageAttributes"]["bytes"]["BinaryValue"] == b"\0\xff"
        receipt = received[-1]["Messages"][0]["ReceiptHandle"]
        gone = sender.delete_message_batch(
            QueueUrl=url, Entries=[{"Id": "7", "ReceiptHandle": receipt}]
        )
        assert without_metadata(gone, "Failed") == {"Successful": [{"Id": "7"}]}
    assert [without_metadata(it.receive_message(QueueUrl=url)) for it in both] == [{}, {}]


def test_both_clients_get_the_same_error_codes(both: tuple[Any, Any], url: str) -> None:
    asked: list[tuple[str, dict[str, Any]]] = [
        ("receive_message", {"QueueUrl": url + "-none"}),
        ("delete_message", {"QueueUrl": url, "ReceiptHandle": "none"}),
        ("send_message_batch", {"QueueUrl": url, "Entries": []}),
        ("send_message", {"QueueUrl": url, "MessageBody": "half of a character: \ud83d"}),
    ]
    for operation, options in asked:
        refusals = []
        for client in both:
            try:
                getattr(client, operation)(**options)
            except Exception as error:  # noqa: BLE001  each has its own class
                refusals.append(error.response["Error"]["Code"])  # type: ignore[attr-defined]
            else:
                refusals.append("taken")
        assert refusals[0] == refusals[1], operation
    assert without_metadata(
        both[0].get_queue_attributes(QueueUrl=url, AttributeNames=["All"])
    ) == without_metadata(both[1].get_queue_attributes(QueueUrl=url, AttributeNames=["All"]))
