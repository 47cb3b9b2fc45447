"""`eventonce send` to a bus and to a queue that answer, several times over."""

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


def test_events_are_put_on_a_bus_as_they_are_three_times_over(
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


def test_the_entries_keep_time_and_detail_to_the_letter(
    send: Send, aws: tuple[str, ...], bus: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The emulator dates every event now; so what is asked for is looked at."""
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


def test_what_is_no_eventbridge_event_is_given_a_source_and_a_type(
    send: Send, aws: tuple[str, ...], bus: str, queue: str, client: Callable[[str], Any]
) -> None:
    plain = {"orderId": 7}
    told = send("--bus", bus, "--source", "shop", "--type", "paid", *aws, events=[plain])
    assert told.code == 0
    (found,) = received(client("sqs"), queue)
    assert (found["source"], found["detail-type"], found["detail"]) == ("shop", "paid", plain)


def test_a_partners_source_is_refused_and_the_way_out_is_told(
    send: Send, aws: tuple[str, ...], bus: str, queue: str, client: Callable[[str], Any]
) -> None:
    events = [json.loads(VOICE.read_text()), event(2)]
    refused = send("--bus", bus, "--copies", "2", "--json", *aws, events=events)
    assert refused.code == 1
    assert (refused.told["sent"], refused.told["refused"]) == (2, 2)
    assert refused.told["answers"] == {"NotAuthorizedForSourceException": 2}
    assert [(it["number"], it["copy"]) for it in refused.told["refusals"]] == [(1, 1), (1, 2)]
    assert "--source" in refused.told["refusals"][0]["reason"]
    received(client("sqs"), queue)
    again = send("--bus", bus, "--source", "com.example.trial", *aws, events=events)
    assert again.code == 0
    found = received(client("sqs"), queue)
    assert {one["source"] for one in found} == {"com.example.trial"}
    types = {one["detail-type"] for one in found}
    assert "v2.detail.events.conversation.{id}.acd.end" in types


@pytest.mark.parametrize("place", ["bus", "queue"])
def test_what_is_no_event_is_told_and_the_others_go(
    send: Send, aws: tuple[str, ...], bus: str, queue: str, client: Callable[[str], Any], place: str
) -> None:
    good = json.dumps(event(1)).encode()
    Path("events.jsonl").write_bytes(good + b'\n{"broken\n[1]\n{"caf\xe9": 1}\n')
    result = send(f"--{place}", {"bus": bus, "queue": queue}[place], *aws)
    assert result.code == 1
    assert "1 accepted, 3 refused" in result.out
    assert result.out.count("NotAnEvent") == 4, "each of them, and how many"
    assert len(received(client("sqs"), queue)) == 1


def test_a_bus_that_is_not_there_is_said_to_be_missing(send: Send, aws: tuple[str, ...]) -> None:
    """EventBridge itself takes such events without a word."""
    result = send("--bus", "nowhere", *aws, events=[event(1)])
    assert result.code == 2
    assert "there is no such bus" in result.err


def test_a_region_that_nobody_names_is_asked_for(
    send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    result = send("--bus", "b", events=[event(1)])
    assert result.code == 2
    assert "--region" in result.err


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[int]]:
    """Stands in for EventBridge where the emulator is never busy: gives the answers that its
    documentation describes, and notes how many entries each request had."""
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


def test_throttled_entries_are_put_again_and_only_those(
    send: Send, answering: Callable[..., list[int]]
) -> None:
    asked = answering(
        ["ThrottlingException", None, "InternalFailure"], ["ThrottlingException", None]
    )
    result = send("--bus", "b", "--region", REGION, events=[event(n) for n in range(12)])
    assert (result.code, result.out) == (0, "12 events, 1 copy: 12 accepted\n")
    assert asked == [10, 2, 1, 2]


def test_what_was_sent_is_told_when_the_sending_is_broken_off(
    send: Send, answering: Callable[..., list[int]]
) -> None:
    answering([], [], [], KeyboardInterrupt)
    result = send(
        *("--bus", "b", "--region", REGION, "--copies", "3"), events=[event(n) for n in range(12)]
    )
    assert (result.code, result.out) == (130, "12 events, 2 copies: 22 accepted\n")


def test_what_stays_throttled_is_refused_in_the_end(
    send: Send, answering: Callable[..., list[int]]
) -> None:
    asked = answering(*[["ThrottlingException"]] * sending.SEND_ATTEMPTS)
    result = send("--bus", "b", "--region", REGION, "--json", events=[event(1)])
    assert result.code == 1
    assert result.told["answers"] == {"ThrottlingException": 1}
    assert len(asked) == sending.SEND_ATTEMPTS


def test_large_events_go_in_several_requests(
    send: Send, answering: Callable[..., list[int]]
) -> None:
    asked = answering()
    note = "x" * (EVENTBRIDGE_BATCH_BYTES // 3)
    large = [event(n, detail={"note": note}) for n in range(5)]
    assert send("--bus", "b", "--region", REGION, events=large).code == 0
    assert asked == [2, 2, 1]


def test_what_sqs_itself_could_not_take_is_sent_again_and_only_that(
    send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQS as its documentation has it: the emulator is never at fault."""
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


def test_a_queue_by_its_url_and_one_that_keeps_an_order(
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


def test_what_a_queue_refuses_is_told_for_each(
    send: Send, aws: tuple[str, ...], queue: str, client: Callable[[str], Any]
) -> None:
    client("sqs").set_queue_attributes(QueueUrl=queue, Attributes={"MaximumMessageSize": "1024"})
    large = event(2, detail={"note": "x" * 2_000})
    result = send("--queue", queue, "--json", *aws, events=[event(1), large])
    assert result.code == 1
    assert (result.told["sent"], result.told["refused"]) == (1, 1)
    (refusal,) = result.told["refusals"]
    assert refusal["number"] == 2
    assert refusal["code"]


def test_a_queue_that_is_not_there_is_an_error(send: Send, aws: tuple[str, ...]) -> None:
    result = send("--queue", "sqs://nowhere", *aws, events=[event(1)])
    assert result.code == 2
    assert "there is no such queue" in result.err
    assert "or create it: eventonce infra apply" in result.err
