"""The Lambda entry point: whatever AWS invokes it with."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from eventonce import Consumer, Job, Reject, Retry, Rule
from eventonce.aws import NotSettled, lambda_handler

RULE = Rule(name="call", match="call", key=["detail.call"])


def event(call: str, id: str = "") -> dict[str, Any]:
    return {"id": id or call, "detail-type": "call", "source": "s", "detail": {"call": call}}


def record(call: str, *, group: str = "", body: str | None = None) -> dict[str, Any]:
    attributes = {"MessageGroupId": group} if group else {}
    return {
        "messageId": f"message-{call}",
        "eventSource": "aws:sqs",
        "attributes": attributes,
        "body": body if body is not None else json.dumps(event(call)),
    }


class Context:
    """Lambda's context, with the milliseconds it will say are left, one after the other."""

    def __init__(self, *left: int) -> None:
        self._left = list(left)

    def get_remaining_time_in_millis(self) -> int:
        return self._left.pop(0) if len(self._left) > 1 else self._left[0]


class Desk:
    """A consumer whose handler fails for the calls it is told to."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.failing: set[str] = set()
        self.consumer = Consumer("memory:", rules=RULE, handler=self._handle)
        self.handler = lambda_handler(self.consumer)

    def _handle(self, job: Job) -> None:
        call = job.event.detail["call"]
        if call in self.failing:
            raise Retry
        self.ran.append(call)


@pytest.fixture
def desk() -> Desk:
    return Desk()


def failures(answer: dict[str, Any]) -> list[str]:
    return [item["itemIdentifier"] for item in answer["batchItemFailures"]]


def test_an_eventbridge_event_is_answered_with_the_counts(desk: Desk) -> None:
    for expected in ({"processed": 1, "duplicates": 0}, {"processed": 0, "duplicates": 1}):
        answer = desk.handler(event("a"), None)
        assert answer["statusCode"] == 200
        body = json.loads(answer["body"])
        assert {name: body[name] for name in expected} == expected
        assert body["errors"] == 0


def test_a_list_of_events_is_taken_as_one_invocation(desk: Desk) -> None:
    body = json.loads(desk.handler([event("a"), event("b"), event("a", "new")], None)["body"])
    assert (body["processed"], body["duplicates"]) == (2, 1)


def test_what_must_come_again_is_raised_and_a_copy_never_is(desk: Desk) -> None:
    desk.failing = {"a"}
    with pytest.raises(NotSettled, match="1 events not settled"):
        desk.handler([event("a"), event("b")], None)
    desk.failing = set()
    desk.handler([event("a"), event("b")], None)
    assert desk.ran == ["b", "a"]


def test_a_queue_is_told_exactly_what_may_not_be_forgotten(desk: Desk) -> None:
    desk.failing = {"b"}
    answer = desk.handler(
        {"Records": [record("a"), record("b"), record("c"), record("x", body="{")]}, None
    )
    assert failures(answer) == ["message-b"]
    assert desk.ran == ["a", "c"]
    assert len(list(desk.consumer.letters())) == 1


def test_of_a_fifo_group_nothing_behind_a_failure_is_tried(desk: Desk) -> None:
    desk.failing = {"a2"}
    records = [
        record("a1", group="a"),
        record("b1", group="b"),
        record("a2", group="a"),
        record("a3", group="a"),
        record("b2", group="b"),
    ]
    assert failures(desk.handler({"Records": records}, None)) == ["message-a2", "message-a3"]
    assert sorted(desk.ran) == ["a1", "b1", "b2"]


def test_sns_directly_and_inside_sqs(desk: Desk) -> None:
    note = {"Type": "Notification", "MessageId": "n", "Message": json.dumps(event("a"))}
    assert failures(desk.handler({"Records": [record("a", body=json.dumps(note))]}, None)) == []
    direct = {
        "Records": [{"EventSource": "aws:sns", "Sns": note | {"Message": json.dumps(event("b"))}}]
    }
    desk.handler(direct, None)
    assert desk.ran == ["a", "b"]


def test_pipes_deliver_a_list_of_records(desk: Desk) -> None:
    desk.handler([record("a"), record("b")], None)
    assert desk.ran == ["a", "b"]


@pytest.mark.parametrize("encoded", [False, True])
def test_an_http_request_gets_a_response(desk: Desk, encoded: bool) -> None:
    body = json.dumps([event("a"), event("a", "new")])
    request = {
        "requestContext": {"http": {"method": "POST"}},
        "headers": {"Content-Type": "application/json"},
        "body": base64.b64encode(body.encode()).decode() if encoded else body,
        "isBase64Encoded": encoded,
    }
    answer = desk.handler(request, None)
    assert answer["statusCode"] == 200
    statuses = [told["status"] for told in json.loads(answer["body"])["events"]]
    assert statuses == ["done", "duplicate"]


def test_an_http_request_that_must_come_again_says_when(desk: Desk) -> None:
    desk.failing = {"a"}
    request = {"requestContext": {}, "body": json.dumps(event("a"))}
    answer = desk.handler(request, None)
    assert answer["statusCode"] == 503
    assert int(answer["headers"]["retry-after"]) >= 1


def test_an_http_request_that_is_no_event_is_400_and_kept(desk: Desk) -> None:
    answer = desk.handler({"requestContext": {}, "body": "{"}, None)
    assert answer["statusCode"] == 400
    assert "not JSON" in json.loads(answer["body"])["events"][0]["reason"]
    assert len(list(desk.consumer.letters())) == 1


def test_it_stops_taking_records_in_time_to_settle_what_it_has(desk: Desk) -> None:
    records = [record(call) for call in "abcd"]
    context = Context(60_000, 500)
    assert failures(desk.handler({"Records": records}, context)) == [
        f"message-{call}" for call in "bcd"
    ]
    assert desk.ran == ["a"]
    assert desk.consumer.shelf.stats().records == 1


def test_a_rejected_event_is_a_letter_and_not_a_failure() -> None:
    def reject(_: Job) -> None:
        raise Reject("never")

    consumer = Consumer("memory:", rules=RULE, handler=reject)
    answer = lambda_handler(consumer)({"Records": [record("a")]}, None)
    assert failures(answer) == []


def test_an_async_handler_is_awaited() -> None:
    ran: list[str] = []

    async def handler(job: Job) -> None:
        ran.append(job.event.id)

    with Consumer("memory:", rules=RULE, handler=handler) as consumer:
        lambda_handler(consumer)({"Records": [record("a")]}, None)
    assert ran == ["a"]


def loaded(modules: Sequence[str]) -> list[str]:
    code = f"import eventonce.aws, sys; print([m for m in {list(modules)} if m in sys.modules])"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    return eval(result.stdout)  # type: ignore[no-any-return]


def test_importing_it_loads_no_driver_no_loop_and_no_command_line() -> None:
    assert loaded(["boto3", "botocore", "asyncio", "click", "redis", "psycopg", "sqlite3"]) == []
