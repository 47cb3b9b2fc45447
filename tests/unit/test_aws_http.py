"""The Lambda entry point behind API Gateway, a Function URL, a load balancer and VPC Lattice."""

from __future__ import annotations

import base64
import hmac
import json
from collections.abc import Mapping
from typing import Any

import pytest

from eventonce import Consumer
from eventonce.aws import lambda_handler
from tests.unit.invoked import Crm, event

GATEWAY = {
    "version": "2.0",
    "routeKey": "POST /events",
    "rawPath": "/events",
    "headers": {"Content-Type": "application/json", "webhook-id": "w"},
    "requestContext": {"http": {"method": "POST", "path": "/events"}},
}
FUNCTION_URL = GATEWAY | {"routeKey": "$default", "rawPath": "/"}
BALANCER = {
    "httpMethod": "POST",
    "path": "/events",
    "headers": {"content-type": "application/json", "webhook-id": "w"},
    "requestContext": {"elb": {"targetGroupArn": "arn"}},
}
BALANCER_WITH_LISTS = BALANCER | {
    "headers": None,
    "multiValueHeaders": {"content-type": ["application/json"], "webhook-id": ["v", "w"]},
}
REST = BALANCER | {
    "multiValueHeaders": {"webhook-id": ["w"]},
    "requestContext": {"httpMethod": "POST"},
}
LATTICE = {
    "raw_path": "/events",
    "method": "POST",
    "headers": {"content-type": "application/json", "webhook-id": "w"},
    "query_string_parameters": {},
}
LATTICE_2 = {
    "version": "2.0",
    "path": "/events",
    "method": "POST",
    "headers": {"content-type": ["application/json"], "webhook-id": ["v", "w"], "empty": []},
    "requestContext": {"serviceNetworkArn": "arn", "serviceArn": "arn", "region": "eu-central-1"},
}
FORMS = {
    "gateway": GATEWAY,
    "function url": FUNCTION_URL,
    "balancer": BALANCER,
    "balancer with lists": BALANCER_WITH_LISTS,
    "rest": REST,
    "lattice": LATTICE,
    "lattice, version 2": LATTICE_2,
}


@pytest.fixture
def crm() -> Crm:
    return Crm()


def sent(form: Mapping[str, Any], body: str) -> dict[str, Any]:
    return {**form, "body": body, "isBase64Encoded": False}


def statuses(answer: Mapping[str, Any]) -> list[str]:
    return [told["status"] for told in json.loads(answer["body"])["events"]]


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("encoded", [False, True])
def test_a_request_of_any_form_gets_a_response(
    crm: Crm, form: Mapping[str, Any], encoded: bool
) -> None:
    body = json.dumps([event("a"), event("a", "new")])
    request = sent(form, body)
    if encoded:
        mark = "is_base64_encoded" if form is LATTICE else "isBase64Encoded"
        request |= {"body": base64.b64encode(body.encode()).decode(), mark: True}
    answer = crm.handler(request, None)
    assert answer["statusCode"] == 200
    assert answer["isBase64Encoded"] is False
    assert statuses(answer) == ["done", "duplicate"]


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_response_headers_have_the_form_of_the_request_headers(
    crm: Crm, form: Mapping[str, Any]
) -> None:
    answer = crm.handler(sent(form, json.dumps(event("a"))), None)
    if "multiValueHeaders" in form:
        assert answer["multiValueHeaders"]["content-type"] == ["application/json"]
        assert "headers" not in answer
    else:
        assert answer["headers"]["content-type"] == "application/json"


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_an_event_has_the_headers_of_its_request(crm: Crm, form: Mapping[str, Any]) -> None:
    seen: list[Mapping[str, str]] = []
    crm.consumer.runtime.wrap(lambda _: lambda job: seen.append(job.event.headers))
    crm.handler(sent(form, json.dumps(event("a"))), None)
    assert seen[0]["webhook-id"] == "w"


def test_a_failed_event_is_answered_with_503_and_the_time_of_the_retry(crm: Crm) -> None:
    crm.failing = {"a"}
    answer = crm.handler(sent(GATEWAY, json.dumps([event("a"), event("b")])), None)
    assert answer["statusCode"] == 503
    assert int(answer["headers"]["retry-after"]) >= 1
    assert statuses(answer) == ["failed", "done"]


def test_a_busy_event_is_answered_with_429_and_the_time_of_the_retry(crm: Crm) -> None:
    with crm.consumer.once(event("a")):
        answer = crm.handler(sent(GATEWAY, json.dumps(event("a"))), None)
    assert answer["statusCode"] == 429
    assert int(answer["headers"]["retry-after"]) >= 1


def test_a_body_that_is_no_event_is_answered_with_400_and_becomes_a_dead_letter(crm: Crm) -> None:
    answer = crm.handler(sent(GATEWAY, "{"), None)
    assert answer["statusCode"] == 400
    assert "not JSON" in json.loads(answer["body"])["events"][0]["reason"]
    (letter,) = crm.consumer.letters()
    assert json.loads(letter.event)["event"] == "{"


@pytest.mark.parametrize(
    ("others", "expected", "code"), [([], [], 400), ([event("b")], ["done"], 200)]
)
def test_an_event_larger_than_max_bytes_is_invalid_and_alone_is_answered_with_400(
    others: list[dict[str, Any]], expected: list[str], code: int
) -> None:
    consumer = Consumer("memory:", handler=lambda _: None, max_bytes=1000)
    large = json.dumps(event("a") | {"detail": {"call": "a", "text": "x" * 1000}})
    texts = [*map(json.dumps, others), large]
    answer = lambda_handler(consumer)(sent(GATEWAY, f"[{', '.join(texts)}]"), None)
    assert (answer["statusCode"], statuses(answer)) == (code, [*expected, "invalid"])
    (letter,) = consumer.letters()
    assert letter.status == "invalid"
    assert json.loads(letter.event)["event"] == large


def test_only_the_invalid_element_of_a_list_becomes_a_dead_letter(crm: Crm) -> None:
    body = f"[{json.dumps(event('a'))}, 7, {json.dumps(event('b'))}]"
    answer = crm.handler(sent(GATEWAY, body), None)
    assert answer["statusCode"] == 200
    assert statuses(answer) == ["done", "invalid", "done"]
    (letter,) = crm.consumer.letters()
    assert json.loads(letter.event)["event"] == "7"


def test_json_lines_are_events_too(crm: Crm) -> None:
    lines = "\n".join(json.dumps(event(call)) for call in "ab")
    assert statuses(crm.handler(sent(GATEWAY, lines), None)) == ["done", "done"]


def test_any_method_but_post_is_405(crm: Crm) -> None:
    for method in ("GET", "PUT", "DELETE"):
        request = GATEWAY | {"requestContext": {"http": {"method": method}}}
        answer = crm.handler(sent(request, json.dumps(event("a"))), None)
        assert (answer["statusCode"], answer["headers"]["allow"]) == (405, "POST")
    assert crm.ran == []


def test_a_health_check_of_a_load_balancer_is_answered_with_200(crm: Crm) -> None:
    request = BALANCER | {"httpMethod": "GET", "headers": {"user-agent": "ELB-HealthChecker/2.0"}}
    assert crm.handler(sent(request, ""), None)["statusCode"] == 200
    assert list(crm.consumer.letters()) == []


def test_a_body_of_invalid_base64_is_answered_with_400_and_becomes_a_dead_letter(crm: Crm) -> None:
    answer = crm.handler({**GATEWAY, "body": "not base64!", "isBase64Encoded": True}, None)
    assert answer["statusCode"] == 400
    (letter,) = crm.consumer.letters()
    assert json.loads(letter.event)["event"] == "not base64!"


def test_the_events_of_a_sender_that_is_not_admitted_do_not_run() -> None:
    def admits(headers: Mapping[str, str], _: bytes) -> bool:
        return hmac.compare_digest(headers.get("x-api-key", ""), "right")

    crm = Crm(admits=admits)
    body = json.dumps(event("a"))
    for key, status in (("wrong", 401), ("right", 200)):
        request = GATEWAY | {"headers": {"X-Api-Key": key}}
        assert crm.handler(sent(request, body), None)["statusCode"] == status
    assert crm.ran == ["a"]


def test_the_secret_of_an_accepted_request_is_not_in_a_dead_letter() -> None:
    crm = Crm(admits=lambda headers, _: headers.get("x-api-key") == "secret-key")
    request = GATEWAY | {"headers": {"x-api-key": "secret-key", "webhook-id": "kept"}}
    body = json.dumps(event("a") | {"detail": {}})
    assert crm.handler(sent(request, body), None)["statusCode"] == 400
    (letter,) = crm.consumer.letters()
    assert b"secret-key" not in letter.event
    assert b"kept" in letter.event


def test_a_lambda_destination_is_no_request(crm: Crm) -> None:
    invocation = {
        "requestContext": {"functionArn": "arn", "condition": "RetriesExhausted"},
        "requestPayload": event("a"),
    }
    answer = crm.handler(invocation, None)
    assert json.loads(answer["body"])["errors"] == 1
