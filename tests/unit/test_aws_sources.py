"""Other services that invoke a function: their events are decoded, and other payloads refused."""

from __future__ import annotations

import json
from base64 import b64encode
from gzip import compress
from typing import Any

import pytest

from eventonce import Consumer, Job, Retry, Rule
from eventonce.aws import NotSettled, UnsupportedSource, lambda_handler
from eventonce.core.reasons import GIVEN_UP
from eventonce.envelope import carriers, read
from eventonce.errors import EnvelopeError
from tests.unit.invoked import Crm, event, failures, record

DATA = b64encode(json.dumps(event("a")).encode()).decode()
ARN = "arn:aws:kinesis:eu-central-1:111122223333:stream/calls"
KINESIS = {
    "eventID": "shardId-000000000000:49",
    "eventSource": "aws:kinesis",
    "eventSourceARN": ARN,
    "kinesis": {"data": DATA, "sequenceNumber": "49", "partitionKey": "a"},
}
PIPED = {"eventSource": "aws:kinesis", "eventSourceARN": ARN, "data": DATA, "sequenceNumber": "49"}
CHANGE = {
    "eventID": "1",
    "eventName": "INSERT",
    "eventSource": "aws:dynamodb",
    "dynamodb": {"NewImage": {"id": {"S": "a"}}},
}
KAFKA = {"calls-0": [{"topic": "calls", "partition": 0, "offset": 1, "value": DATA}]}
MAIL = {"eventSource": "aws:ses", "eventVersion": "1.0", "ses": {"mail": {"messageId": "m"}}}

UNREAD: dict[str, tuple[Any, str]] = {
    "Kinesis": ({"Records": [KINESIS]}, "Kinesis Data Streams"),
    "Kinesis with a window": (
        {"Records": [KINESIS], "window": {}, "state": {}},
        "Kinesis Data Streams",
    ),
    "Kinesis through a pipe": ([PIPED, PIPED], "Kinesis Data Streams"),
    "DynamoDB": ({"Records": [CHANGE, CHANGE]}, "DynamoDB Streams"),
    "DynamoDB through a pipe": ([CHANGE], "DynamoDB Streams"),
    "MSK": ({"eventSource": "aws:kafka", "records": KAFKA}, "Amazon MSK"),
    "Kafka": ({"eventSource": "SelfManagedKafka", "records": KAFKA}, "Apache Kafka"),
    "Kafka through a pipe": ([{"eventSource": "aws:kafka", "topic": "c", "value": DATA}], "MSK"),
    "ActiveMQ": ({"eventSource": "aws:mq", "messages": [{"data": DATA}]}, "ActiveMQ"),
    "RabbitMQ": (
        {"eventSource": "aws:rmq", "rmqMessagesByQueue": {"calls::/": [{"data": DATA}]}},
        "RabbitMQ",
    ),
    "DocumentDB": ({"eventSource": "aws:docdb", "events": [{"event": {}}]}, "DocumentDB"),
    "SES": ({"Records": [MAIL]}, "SES"),
    "what comes next year": ({"Records": [{"eventSource": "aws:next"}]}, "aws:next"),
}

CALLS: dict[str, tuple[Any, str]] = {
    "Cognito": ({"triggerSource": "PreSignUp_SignUp", "userPoolId": "p"}, "a Cognito trigger"),
    "CodePipeline": ({"CodePipeline.job": {"id": "1"}}, "a CodePipeline job"),
    "Config": ({"invokingEvent": "{}", "configRuleName": "r"}, "an AWS Config evaluation"),
    "CloudFormation": ({"RequestType": "Create", "ResponseURL": "u"}, "a CloudFormation"),
    "AppSync": ({"arguments": {}, "info": {"fieldName": "f"}}, "an AppSync resolver"),
    "AppSync batch": ([{"arguments": {}, "info": {"fieldName": "f"}}], "an AppSync resolver"),
    "Connect": ({"Name": "ContactFlowEvent", "Details": {}}, "an Amazon Connect flow"),
    "Lex": ({"bot": {"name": "b"}, "sessionState": {}}, "a Lex bot"),
}

AUTHORIZERS = {
    "REST token": {"type": "TOKEN", "methodArn": "arn", "authorizationToken": "t"},
    "REST request": {"type": "REQUEST", "methodArn": "arn", "requestContext": {}},
    "HTTP API": {"version": "2.0", "type": "REQUEST", "routeArn": "a", "requestContext": {}},
    "AppSync": {"authorizationToken": "t", "requestContext": {"apiId": "a"}},
}


def typed() -> Consumer:
    made = Consumer("memory:")
    made.on("call")(lambda _: None)
    return made


def logs(*messages: str, kind: str = "DATA_MESSAGE") -> dict[str, Any]:
    said = {
        "messageType": kind,
        "logGroup": "/aws/events/calls",
        "logEvents": [
            {"id": f"log-{number}", "timestamp": 1, "message": message}
            for number, message in enumerate(messages)
        ],
    }
    return {"awslogs": {"data": b64encode(compress(json.dumps(said).encode())).decode()}}


def firehose(*data: bytes) -> dict[str, Any]:
    return {
        "invocationId": "i",
        "deliveryStreamArn": "arn:aws:firehose:eu-central-1:111122223333:deliverystream/calls",
        "records": [
            {"recordId": f"record-{number}", "data": b64encode(one).decode()}
            for number, one in enumerate(data)
        ],
    }


@pytest.mark.parametrize("source", UNREAD)
@pytest.mark.parametrize("takes_all", [False, True])
def test_an_unsupported_source_raises_and_the_error_names_supported_sources(
    source: str, takes_all: bool, crm: Crm
) -> None:
    payload, name = UNREAD[source]
    consumer = crm.consumer if takes_all else typed()
    with pytest.raises(UnsupportedSource) as raised:
        lambda_handler(consumer)(payload, None)
    assert name in raised.value.source
    assert "SQS" in str(raised.value)
    assert "CloudWatch Logs" in str(raised.value)
    assert crm.ran == []


@pytest.mark.parametrize("source", UNREAD)
def test_a_payload_of_an_unsupported_source_in_a_message_or_a_request_becomes_a_dead_letter(
    source: str,
) -> None:
    payload, name = UNREAD[source]
    body = json.dumps(payload)
    for invocation in (
        {"Records": [record("a", body=body)]},
        {"requestContext": {"http": {"method": "POST"}}, "body": body},
    ):
        consumer = typed()
        lambda_handler(consumer)(invocation, None)
        letters = list(consumer.letters())
        assert letters
        assert {letter.status for letter in letters} == {"invalid"}
        several = isinstance(payload, list) or len(payload.get("Records", "1")) > 1
        assert several or name in letters[0].reason


@pytest.mark.parametrize("source", CALLS)
def test_a_call_that_expects_its_own_form_of_answer_raises_without_a_matching_handler(
    source: str,
) -> None:
    payload, name = CALLS[source]
    with pytest.raises(UnsupportedSource, match=name):
        lambda_handler(typed())(payload, None)


def test_a_call_that_a_handler_takes_runs() -> None:
    ran: list[Job] = []
    rule = Rule(name="trigger", key=["detail.userName"])
    consumer = Consumer("memory:", rules=rule, handler=ran.append)
    trigger = {"triggerSource": "PostConfirmation", "userPoolId": "p", "userName": "u"}
    lambda_handler(consumer)(trigger, None)
    assert [job.event.detail["userName"] for job in ran] == ["u"]


def test_an_event_with_a_type_is_no_call_in_spite_of_its_other_fields() -> None:
    ran: list[Job] = []
    consumer = Consumer("memory:", rules=Rule(name="all", key=["detail.userId"]))
    consumer.on("chat")(ran.append)
    lambda_handler(consumer)({"type": "chat", "bot": "b", "userId": "u", "methodArn": "m"}, None)
    assert len(ran) == 1


@pytest.mark.parametrize("form", AUTHORIZERS)
def test_an_authorizers_request_is_no_request_with_events(form: str, crm: Crm) -> None:
    with pytest.raises(UnsupportedSource, match="an authorizer"):
        crm.handler(AUTHORIZERS[form], None)


def test_events_in_cloudwatch_logs_run_and_other_lines_are_kept(crm: Crm) -> None:
    lines = [json.dumps(event("a")), "START RequestId: 1", json.dumps(event("b"))]
    answer = crm.handler(logs(*lines), None)
    assert json.loads(answer["body"])["statuses"] == {"done": 2, "invalid": 1}
    assert crm.ran == ["a", "b"]
    (letter,) = crm.consumer.letters()
    assert b"START RequestId: 1" in letter.event


def test_a_log_line_without_an_id_gets_the_id_of_its_log_event() -> None:
    ids: list[str] = []
    consumer = Consumer("memory:", handler=lambda job: ids.append(job.event.id))
    lambda_handler(consumer)(logs('{"type":"call","n":1}', '{"type":"call","n":2}'), None)
    assert ids == ["log-0", "log-1"]


def test_a_control_message_of_cloudwatch_logs_is_answered_and_makes_no_dead_letter(
    crm: Crm,
) -> None:
    answer = crm.handler(logs("CWL CONTROL MESSAGE: Checking health", kind="CONTROL_MESSAGE"), None)
    assert json.loads(answer["body"])["statuses"] == {}
    assert list(crm.consumer.letters()) == []


@pytest.mark.parametrize(
    "data",
    ["", "no base64!", b64encode(b"{").decode(), b64encode(compress(b"{}")[:-9]).decode()],
    ids=["nothing", "no base64", "not packed", "cut off"],
)
def test_cloudwatch_logs_that_cannot_be_unpacked_are_kept(crm: Crm, data: str) -> None:
    crm.handler({"awslogs": {"data": data}}, None)
    assert [letter.status for letter in crm.consumer.letters()] == ["invalid"]


def test_compressed_data_that_unpacks_to_too_many_bytes_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(carriers, "MAX_CARRIER", 1000)
    with pytest.raises(EnvelopeError, match="more than 1000 bytes"):
        read({"awslogs": {"data": b64encode(compress(b" " * 10_000)).decode()}})


def test_firehose_gets_every_record_back_with_its_result(crm: Crm) -> None:
    a, b = (json.dumps(event(call)).encode() for call in "ab")
    asked = firehose(a, b"no event", b + b"\n" + a + b"\n", compress(b))
    answer = crm.handler(asked, None)
    assert [(one["recordId"], one["result"]) for one in answer["records"]] == [
        ("record-0", "Ok"),
        ("record-1", "ProcessingFailed"),
        ("record-2", "Ok"),
        ("record-3", "Ok"),
    ]
    assert [one["data"] for one in answer["records"]] == [one["data"] for one in asked["records"]]
    assert crm.ran == ["a", "b"]
    assert [letter.event for letter in crm.consumer.letters()] == [b"no event"]


def test_an_invocation_by_firehose_raises_while_an_event_fails_and_no_record_is_lost() -> None:
    failing = ["b", "b"]
    ran: list[str] = []

    def handle(job: Job) -> None:
        if job.event.detail["call"] in failing:
            failing.pop()
            raise Retry
        ran.append(job.event.detail["call"])

    handler = lambda_handler(Consumer("memory:", rules="auto", handler=handle))
    asked = firehose(*(json.dumps(event(call)).encode() for call in "ab"))
    for _ in range(2):
        with pytest.raises(NotSettled):
            handler(asked, None)
    assert [one["result"] for one in handler(asked, None)["records"]] == ["Ok", "Ok"]
    assert ran == ["a", "b"]


def test_a_record_of_firehose_that_is_given_up_is_answered_as_failed_logged_and_kept(
    caplog: pytest.LogCaptureFixture,
) -> None:
    crm = Crm(attempts=1)
    crm.failing = {"a"}
    (told,) = crm.handler(firehose(json.dumps(event("a")).encode()), None)["records"]
    assert told["result"] == "ProcessingFailed"
    assert GIVEN_UP in caplog.text
    (letter,) = crm.consumer.letters()
    assert (letter.status, letter.attempt) == ("dead", 1)
    assert json.loads(letter.event) == event("a")


@pytest.mark.parametrize(
    "payload",
    [
        {"orderId": 7},
        {"Records": [{"eventSource": "aws:s3", "s3": {"object": {"key": "k"}}}]},
        {"serialNumber": "G030", "clickType": "SINGLE"},
        {"Service": "Amazon S3", "Event": "s3:TestEvent"},
        {"KinesisBatchInfo": {"shardId": "1"}, "requestContext": {}, "requestPayload": {}},
    ],
)
def test_an_unknown_payload_becomes_a_dead_letter_and_is_logged(
    payload: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    consumer = typed()
    answer = lambda_handler(consumer)(payload, None)
    assert json.loads(answer["body"])["errors"] == 1
    assert [letter.status for letter in consumer.letters()] == ["invalid"]
    assert GIVEN_UP in caplog.text


def test_a_message_with_a_record_of_an_unsupported_source_does_not_hold_up_its_queue(
    crm: Crm,
) -> None:
    batch = {"Records": [record("x", body=json.dumps({"Records": [KINESIS]})), record("a")]}
    assert failures(crm.handler(batch, None)) == []
    assert crm.ran == ["a"]


@pytest.fixture
def crm() -> Crm:
    return Crm()
