from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from eventonce.aws import sessions
from eventonce.aws.limits import batches
from eventonce.aws.sqs import Entry, Queue, parse, same
from eventonce.errors import ConfigError, EventonceError, SourceUnavailable


@pytest.mark.parametrize(
    ("uri", "name", "url", "region", "endpoint"),
    [
        ("sqs://orders", "orders", "", None, None),
        ("sqs://orders.fifo?region=eu-central-1", "orders.fifo", "", "eu-central-1", None),
        (
            "sqs://orders?endpoint=http://127.0.0.1:4566",
            "orders",
            "",
            None,
            "http://127.0.0.1:4566",
        ),
        (
            "https://sqs.eu-west-1.amazonaws.com/123456789012/orders",
            "orders",
            "https://sqs.eu-west-1.amazonaws.com/123456789012/orders",
            "eu-west-1",
            None,
        ),
        (
            "https://sqs.cn-north-1.amazonaws.com.cn/123456789012/orders?region=cn-north-1",
            "orders",
            "https://sqs.cn-north-1.amazonaws.com.cn/123456789012/orders",
            "cn-north-1",
            None,
        ),
        (
            "https://us-west-2.queue.amazonaws.com/123456789012/orders",
            "orders",
            "https://us-west-2.queue.amazonaws.com/123456789012/orders",
            "us-west-2",
            None,
        ),
        (
            "http://127.0.0.1:4566/000000000000/orders",
            "orders",
            "http://127.0.0.1:4566/000000000000/orders",
            None,
            "http://127.0.0.1:4566",
        ),
    ],
)
def test_a_uri_names_a_queue_by_its_name_or_its_url(
    uri: str, name: str, url: str, region: str | None, endpoint: str | None
) -> None:
    address = parse(uri)
    assert (address.name, address.url) == (name, url)
    assert (address.access.region, address.access.endpoint) == (region, endpoint)


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        ("orders", "sqs://NAME"),
        ("sqs://", "sqs://NAME"),
        ("sqs://a/b", "sqs://NAME"),
        ("sqs://or ders", "'sqs://or…'"),
        ("sqs://orders?colour=red", "no option 'colour'"),
        ("sqs://orders?endpoint=nowhere", "endpoint"),
        ("sqs://AKIA:secret@orders", "Credentials do not belong"),
        ("sqs://orders?endpoint=http://me:secret@host", "no user or password"),
    ],
)
def test_a_uri_that_names_no_queue_is_refused_and_no_secret_is_repeated(
    uri: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=said) as refused:
        Queue.from_uri(uri)
    assert "secret" not in str(refused.value)


URL = "https://sqs.eu-west-1.amazonaws.com/123456789012/orders"


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("sqs://orders", "sqs://orders?region=eu-west-1", True),
        ("sqs://orders?region=eu-west-1", "sqs://orders?profile=me&region=eu-west-1", True),
        ("sqs://orders?region=eu-west-1", URL, True),
        ("sqs://orders", URL, True),
        ("sqs://orders?endpoint=http://127.0.0.1:4566", "http://127.0.0.1:4566/0/orders", True),
        ("sqs://orders?endpoint=http://A:1/", "sqs://orders?endpoint=http://a:1", True),
        ("sqs://orders", "sqs://orders-letters", False),
        ("sqs://orders?region=eu-west-1", "sqs://orders?region=eu-west-2", False),
        ("sqs://orders?region=eu-west-2", URL, False),
        ("sqs://orders?endpoint=http://a:1", "sqs://orders?endpoint=http://a:2", False),
        (URL, URL.replace("123456789012", "210987654321"), False),
    ],
)
def test_two_uris_name_one_queue_unless_a_part_of_them_differs(
    one: str, other: str, expected: bool
) -> None:
    assert same(parse(one), parse(other)) is expected
    assert same(parse(other), parse(one)) is expected


class Answering:
    """A client with the answers of a test, for faults that an emulator does not have."""

    def __init__(self, answer: Any) -> None:
        self.asked: list[dict[str, Any]] = []
        self._answer = answer

    def __getattr__(self, name: str) -> Any:
        def call(**asked: Any) -> Any:
            self.asked.append({"operation": name, **asked})
            if isinstance(self._answer, Exception):
                raise self._answer
            return self._answer(asked) if callable(self._answer) else self._answer

        return call


def _queue(answer: Any) -> tuple[Queue, Answering]:
    client = Answering(answer)
    return Queue.from_uri("https://sqs.eu-west-1.amazonaws.com/1/orders", client), client


def test_a_missing_queue_is_a_configuration_error_unless_the_queue_is_awaited() -> None:
    client = Answering(_refusal("QueueDoesNotExist"))
    for awaited, error, said in (
        (True, SourceUnavailable, "work begins as soon as it exists"),
        (False, ConfigError, "or create it: eventonce infra apply"),
    ):
        with pytest.raises(error, match=said):
            Queue.from_uri("sqs://orders", client, awaited=awaited).receive()


def _refusal(code: str, status: int = 400) -> Exception:
    from botocore.exceptions import ClientError

    response: Any = {
        "Error": {"Code": code, "Message": "so it said"},
        "ResponseMetadata": {"HTTPStatusCode": status},
    }
    refused: Exception = ClientError(response, "ReceiveMessage")
    return refused


@pytest.mark.parametrize(
    ("fault", "ours", "said"),
    [
        (_refusal("RequestThrottled"), SourceUnavailable, "throttling"),
        (_refusal("AnythingAtAll", 503), SourceUnavailable, "throttling"),
        (_refusal("Slow", 429), SourceUnavailable, "throttling"),
        (_refusal("AWS.SimpleQueueService.NonExistentQueue"), SourceUnavailable, "no such queue"),
        (_refusal("QueueDoesNotExist"), SourceUnavailable, "no such queue"),
        (_refusal("ExpiredToken", 403), SourceUnavailable, "expired"),
        (_refusal("AccessDenied", 403), ConfigError, "permission denied"),
        (_refusal("InvalidClientTokenId", 403), ConfigError, "does not accept the credentials"),
        (_refusal("InvalidParameterValue"), EventonceError, "InvalidParameterValue: so it said"),
        (ConnectionError("http://me:hidden@proxy"), SourceUnavailable, "not reached"),
    ],
)
def test_an_error_names_the_queue_and_the_cause_and_its_class_tells_whether_to_retry(
    fault: Exception, ours: type[Exception], said: str
) -> None:
    queue, _ = _queue(fault)
    with pytest.raises(EventonceError, match=said) as raised:
        queue.receive()
    assert type(raised.value) is ours
    assert "SQS queue orders (eu-west-1)" in str(raised.value)
    assert raised.value.__cause__ is fault
    assert "hidden" not in str(raised.value)


def test_missing_credentials_are_a_configuration_error() -> None:
    from botocore.exceptions import NoCredentialsError

    queue, _ = _queue(NoCredentialsError())
    with pytest.raises(ConfigError, match="no AWS credentials"):
        queue.receive()


def test_receipts_are_deleted_and_delayed_ten_at_a_time_and_refused_receipts_returned() -> None:
    def answer(asked: dict[str, Any]) -> dict[str, Any]:
        *others, last = asked["Entries"]
        failed = {"Id": last["Id"], "SenderFault": True, "Code": "InvalidId"}
        return {"Successful": [{"Id": one["Id"]} for one in others], "Failed": [failed]}

    queue, client = _queue(answer)
    receipts = [f"receipt {number}" for number in range(12)]
    assert queue.delete(receipts) == ["receipt 9", "receipt 11"]
    assert queue.delay([(receipt, 90_000.7) for receipt in receipts[:3]]) == ["receipt 2"]
    assert [len(asked["Entries"]) for asked in client.asked] == [10, 2, 3]
    # Twelve hours are the longest time that SQS accepts.
    assert client.asked[2]["Entries"][0]["VisibilityTimeout"] == 43_200


def test_one_request_carries_as_many_entries_as_sqs_allows() -> None:
    queue, client = _queue(_taken)
    assert not queue.send([Entry("x")] * 23 + [Entry("ü" * 200_000)] * 4)
    assert [len(asked["Entries"]) for asked in client.asked] == [10, 10, 5, 2]
    assert Entry("ü", {"name": "value"}).size == 2 + len("name" + "String" + "value")


def test_a_batch_is_full_by_its_count_or_by_its_bytes() -> None:
    assert list(batches("abcde", 2)) == [["a", "b"], ["c", "d"], ["e"]]
    assert list(batches([3, 3, 9, 1, 4], 10, size=int, most_bytes=6)) == [[3, 3], [9], [1, 4]]
    assert list(batches([], 10)) == []


def _taken(asked: dict[str, Any]) -> dict[str, Any]:
    return {"Successful": [{"Id": one["Id"], "MessageId": "m"} for one in asked["Entries"]]}


def test_an_entry_larger_than_sqs_takes_is_refused_and_the_others_are_sent() -> None:
    queue, client = _queue(_taken)
    (refused,) = queue.send([Entry("a"), Entry("x" * (1 << 20) + "x"), Entry("b")])
    assert refused.code == "TooLarge"
    assert not refused.again
    sent = [entry["MessageBody"] for asked in client.asked for entry in asked["Entries"]]
    assert sent == ["a", "b"]


def test_an_entry_that_fails_a_request_is_found_by_sending_the_entries_one_by_one() -> None:
    def answer(asked: dict[str, Any]) -> dict[str, Any]:
        if any(entry["MessageBody"] == "bad" for entry in asked["Entries"]):
            raise _refusal("InvalidMessageContents")
        return _taken(asked)

    queue, client = _queue(answer)
    (refused,) = queue.send([Entry("a"), Entry("bad"), Entry("b")])
    assert (refused.entry.body, refused.code) == ("bad", "InvalidMessageContents")
    assert len(client.asked) == 4


def test_a_message_has_its_group_its_deduplication_id_and_its_attributes() -> None:
    queue, client = _queue({})
    queue.send([Entry("a", {"why": "so", "empty": ""}, "g", "d")])
    assert client.asked[0]["Entries"] == [
        {
            "Id": "0",
            "MessageBody": "a",
            "MessageAttributes": {"why": {"DataType": "String", "StringValue": "so"}},
            "MessageGroupId": "g",
            "MessageDeduplicationId": "d",
        }
    ]


def test_a_queue_without_its_extra_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "botocore", None)
    with pytest.raises(ConfigError, match=r'pip install -e "\.\[sqs\]"'):
        Queue.from_uri("sqs://orders").receive()


def test_a_client_without_credentials_is_replaced_until_credentials_are_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sessions, "CLIENT_AGE", 0.0)
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    file = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    queue = Queue.from_uri("sqs://orders?region=eu-west-1&endpoint=http://127.0.0.1:1")
    with pytest.raises(ConfigError, match="no AWS credentials"):
        queue.receive()
    file.write_text("[default]\naws_access_key_id=AKIA\naws_secret_access_key=no-secret\n")
    with pytest.raises(SourceUnavailable, match="not reached"):
        queue.receive()
    queue.close()
