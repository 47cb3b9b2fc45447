"""`eventonce send` to a bus and to a queue of an emulator, with copies."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.client import BaseClient

from eventonce import sending
from eventonce.aws.direct import ServiceClient
from eventonce.aws.limits import EVENTBRIDGE_BATCH_BYTES
from tests.integration.sending.sent import Send, event
from tests.servers.aws import REGION

VOICE = Path(__file__).parents[2] / "shapes" / "genesys_acd_end_voice.json"


@pytest.fixture(scope="module")
def client(endpoint: str) -> Callable[[str], Any]:
    return cache(lambda service: boto3.client(service, region_name=REGION, endpoint_url=endpoint))


@pytest.fixture
def aws(endpoint: str) -> tuple[str, ...]:
    return ("--region", REGION, "--endpoint", endpoint)


@pytest.fixture
def queue(client: Callable[[str], Any]) -> str:
    """A new queue's URL."""
    name = f"q-{secrets.token_hex(4)}"
    return str(client("sqs").create_queue(QueueName=name)["QueueUrl"])


@pytest.fixture
def bus(client: Callable[[str], Any], queue: str) -> str:
    """A new bus, all of whose events go into the queue."""
    name = queue.rpartition("/")[2]
    client("events").create_event_bus(Name=name)
    client("events").put_rule(
        Name="all", EventBusName=name, EventPattern='{"source": [{"prefix": ""}]}'
    )
    arn = f"arn:aws:sqs:{REGION}:000000000000:{name}"
    client("events").put_targets(Rule="all", EventBusName=name, Targets=[{"Id": "q", "Arn": arn}])
    return name


def received(sqs: Any, url: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while True:
        answer = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10)
        if not answer.get("Messages"):
            return found
        found += [json.loads(message["Body"]) for message in answer["Messages"]]


def test_events_are_put_on_a_bus_unchanged_three_times(
    send: Send, aws: tuple[str, ...], bus: str, queue: str, client: Callable[[str], Any]
) -> None:
    result = send("--bus", bus, "--copies", "3", *aws, events=[event(1), event(2)])
    assert (result.code, result.out) == (0, "2 events, 3 copies: 6 accepted\n")
    found = received(client("sqs"), queue)
    assert sorted(one["detail"]["number"] for one in found) == [1, 1, 1, 2, 2, 2]
    assert len({one["id"] for one in found}) == 6, "a bus gives every copy an id of its own"
    for one in found:
        assert one["source"] == "com.example"
        assert one["detail-type"] == "call.ended"
        assert one["resources"] == ["arn:aws:example:1"]


def test_the_entries_keep_time_and_detail_exactly(
    send: Send, aws: tuple[str, ...], bus: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The emulator gives every event the present time, so the test looks at the request."""
    asked: list[Any] = []
    call = BaseClient._make_api_call

    def noting(self: Any, operation: str, params: Any) -> Any:
        asked.append((operation, params))
        return call(self, operation, params)

    monkeypatch.setattr(BaseClient, "_make_api_call", noting)
    assert send("--bus", bus, *aws, events=[event(1)]).code == 0
    (entry,) = dict(asked)["PutEvents"]["Entries"]
    assert entry["Time"].isoformat() == "2026-11-15T12:00:00+00:00"
    assert entry["Detail"] == '{"number": 1, "amount": 10.0}'


def test_an_object_that_is_no_eventbridge_event_is_given_a_source_and_a_type(
    send: Send, aws: tuple[str, ...], bus: str, queue: str, client: Callable[[str], Any]
) -> None:
    plain = {"orderId": 7}
    told = send("--bus", bus, "--source", "shop", "--type", "paid", *aws, events=[plain])
    assert told.code == 0
    (found,) = received(client("sqs"), queue)
    assert (found["source"], found["detail-type"], found["detail"]) == ("shop", "paid", plain)


def test_the_source_of_a_partner_is_refused_with_the_remedy(
    send: Send, aws: tuple[str, ...], bus: str, queue: str, client: Callable[[str], Any]
) -> None:
    events = [json.loads(VOICE.read_text()), event(2)]
    refused = send("--bus", bus, "--copies", "2", "--json", *aws, events=events)
    assert refused.code == 1
    assert (refused.report["sent"], refused.report["refused"]) == (2, 2)
    assert refused.report["answers"] == {"NotAuthorizedForSourceException": 2}
    assert [(it["number"], it["copy"]) for it in refused.report["refusals"]] == [(1, 1), (1, 2)]
    assert "--source" in refused.report["refusals"][0]["reason"]
    received(client("sqs"), queue)
    again = send("--bus", bus, "--source", "com.example.trial", *aws, events=events)
    assert again.code == 0
    found = received(client("sqs"), queue)
    assert {one["source"] for one in found} == {"com.example.trial"}
    types = {one["detail-type"] for one in found}
    assert "v2.detail.events.conversation.{id}.acd.end" in types


@pytest.mark.parametrize("place", ["bus", "queue"])
def test_invalid_input_is_reported_and_the_other_events_are_sent(
    send: Send, aws: tuple[str, ...], bus: str, queue: str, client: Callable[[str], Any], place: str
) -> None:
    good = json.dumps(event(1)).encode()
    Path("events.jsonl").write_bytes(good + b'\n{"broken\n[1]\n{"caf\xe9": 1}\n')
    result = send(f"--{place}", {"bus": bus, "queue": queue}[place], *aws)
    assert result.code == 1
    assert "1 accepted, 3 refused" in result.out
    assert result.out.count("NotAnEvent") == 4, "each of them, and how many"
    assert len(received(client("sqs"), queue)) == 1


def test_a_missing_bus_is_reported(send: Send, aws: tuple[str, ...]) -> None:
    """EventBridge itself accepts such events without an error."""
    result = send("--bus", "nowhere", *aws, events=[event(1)])
    assert result.code == 2
    assert "there is no such bus" in result.err


def test_a_missing_region_is_reported_with_its_option(
    send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    result = send("--bus", "b", events=[event(1)])
    assert result.code == 2
    assert "--region" in result.err


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[int]]:
    """A substitute for EventBridge, because the emulator is never busy: gives the answers that AWS
    documents, and notes the number of entries of each request."""
    monkeypatch.setattr(sending, "RETRY_PAUSE", 0.0)
    asked: list[int] = []

    def answering(*answers: Any) -> list[int]:
        left = list(answers)

        def call(_: Any, operation: str, params: Any) -> Any:
            if operation != "PutEvents":
                return {}
            asked.append(len(params["Entries"]))
            codes = left.pop(0) if left else []
            if codes is KeyboardInterrupt:
                raise KeyboardInterrupt
            codes = [*codes, *[None] * (len(params["Entries"]) - len(codes))]
            told = [
                {"ErrorCode": code, "ErrorMessage": "m"} if code else {"EventId": "e"}
                for code in codes
            ]
            return {"FailedEntryCount": len(codes), "Entries": told}

        monkeypatch.setattr(BaseClient, "_make_api_call", call)
        return asked

    return answering


def test_only_the_throttled_entries_are_put_again(
    send: Send, answering: Callable[..., list[int]]
) -> None:
    asked = answering(
        ["ThrottlingException", None, "InternalFailure"], ["ThrottlingException", None]
    )
    result = send("--bus", "b", "--region", REGION, events=[event(n) for n in range(12)])
    assert (result.code, result.out) == (0, "12 events, 1 copy: 12 accepted\n")
    assert asked == [10, 2, 1, 2]


def test_the_number_of_sent_events_is_printed_after_an_interrupt(
    send: Send, answering: Callable[..., list[int]]
) -> None:
    answering([], [], [], KeyboardInterrupt)
    result = send(
        *("--bus", "b", "--region", REGION, "--copies", "3"), events=[event(n) for n in range(12)]
    )
    assert (result.code, result.out) == (130, "12 events, 2 copies: 22 accepted\n")


def test_an_entry_that_stays_throttled_is_refused_in_the_end(
    send: Send, answering: Callable[..., list[int]]
) -> None:
    asked = answering(*[["ThrottlingException"]] * sending.SEND_ATTEMPTS)
    result = send("--bus", "b", "--region", REGION, "--json", events=[event(1)])
    assert result.code == 1
    assert result.report["answers"] == {"ThrottlingException": 1}
    assert len(asked) == sending.SEND_ATTEMPTS


def test_large_events_are_sent_in_several_requests(
    send: Send, answering: Callable[..., list[int]]
) -> None:
    asked = answering()
    note = "x" * (EVENTBRIDGE_BATCH_BYTES // 3)
    large = [event(n, detail={"note": note}) for n in range(5)]
    assert send("--bus", "b", "--region", REGION, events=large).code == 0
    assert asked == [2, 2, 1]


def test_only_the_entries_that_failed_in_sqs_are_sent_again(
    send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQS as its documentation describes it, because the emulator never fails."""
    monkeypatch.setattr(sending, "RETRY_PAUSE", 0.0)
    asked: list[int] = []

    def call(_: Any, __: str, **params: Any) -> Any:
        asked.append(len(params["Entries"]))
        fault = {"Id": "1", "SenderFault": False, "Code": "InternalError", "Message": "m"}
        failed = [fault] if len(asked) < 3 and len(asked) % 2 else []
        taken = [
            {"Id": one["Id"], "MessageId": "m"}
            for one in params["Entries"]
            if not failed or one["Id"] != fault["Id"]
        ]
        return {"Successful": taken, "Failed": failed}

    monkeypatch.setattr(ServiceClient, "_call", call)
    url = f"https://sqs.{REGION}.amazonaws.com/000000000000/q"
    result = send("--queue", url, events=[event(1), event(2), event(3)])
    assert (result.code, result.out) == (0, "3 events, 1 copy: 3 accepted\n")
    assert asked == [3, 1]


@pytest.mark.parametrize("fresh", [False, True])
def test_copies_on_a_queue_keep_their_id_unless_they_are_to_be_fresh(
    send: Send, aws: tuple[str, ...], queue: str, client: Callable[[str], Any], fresh: bool
) -> None:
    name = queue.rpartition("/")[2]
    args = ("--fresh",) if fresh else ()
    result = send("--queue", f"sqs://{name}", "--copies", "3", *args, *aws, events=[event(1)])
    assert result.code == 0
    found = received(client("sqs"), queue)
    assert len({one["id"] for one in found}) == (3 if fresh else 1)
    assert [one | {"id": ""} for one in found] == [event(1) | {"id": ""}] * 3


def test_events_are_sent_to_a_queue_and_a_fifo_queue_by_their_urls(
    send: Send, queue: str, client: Callable[[str], Any]
) -> None:
    fifo = client("sqs").create_queue(
        QueueName=f"f-{secrets.token_hex(4)}.fifo", Attributes={"FifoQueue": "true"}
    )["QueueUrl"]
    for url in (queue, fifo):
        result = send("--queue", url, "--copies", "2", "--region", REGION, events=[event(1)])
        assert result.out == "1 event, 2 copies: 2 accepted\n"
        assert client("sqs").get_queue_attributes(
            QueueUrl=url, AttributeNames=["ApproximateNumberOfMessages"]
        )["Attributes"] == {"ApproximateNumberOfMessages": "2"}


def test_each_event_that_a_queue_refuses_is_reported(
    send: Send, aws: tuple[str, ...], queue: str, client: Callable[[str], Any]
) -> None:
    client("sqs").set_queue_attributes(QueueUrl=queue, Attributes={"MaximumMessageSize": "1024"})
    large = event(2, detail={"note": "x" * 2_000})
    result = send("--queue", queue, "--json", *aws, events=[event(1), large])
    assert result.code == 1
    assert (result.report["sent"], result.report["refused"]) == (1, 1)
    (refusal,) = result.report["refusals"]
    assert refusal["number"] == 2
    assert refusal["code"]


def test_a_missing_queue_is_an_error(send: Send, aws: tuple[str, ...]) -> None:
    result = send("--queue", "sqs://nowhere", *aws, events=[event(1)])
    assert result.code == 2
    assert "there is no such queue" in result.err
    assert "or create it: eventonce infra apply" in result.err
