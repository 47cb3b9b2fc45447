"""What the tests of `apply` look at in the emulated account, and change there by hand."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from botocore.client import BaseClient
from ministack.core.iam_evaluator import EvalContext, evaluate_resource_policy

from eventonce.infra.apply import Applied
from eventonce.infra.resources import Place
from tests.servers.aws import REGION

Apply = Callable[..., Applied]

SOURCE = "com.example.calls"
PARTNER = "aws.partner/genesys.com/cloud/5a3b/prod"
ACCOUNT = "000000000000"
"""The emulator's."""

PATIENCE = 60.0
"""Seconds for an event to come from the bus: it takes some milliseconds on a quiet machine."""

FUNCTION = f"arn:aws:lambda:{REGION}:{ACCOUNT}:function:f"
"""Somebody else's target."""


def arn(name: str) -> str:
    """A queue's."""
    return Place(REGION, ACCOUNT).queue(name)


def attributes(sqs: Any, name: str) -> dict[str, str]:
    url = sqs.get_queue_url(QueueName=name)["QueueUrl"]
    found: dict[str, str] = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])[
        "Attributes"
    ]
    return found


def change(sqs: Any, name: str, **said: str) -> None:
    url = sqs.get_queue_url(QueueName=name)["QueueUrl"]
    sqs.set_queue_attributes(QueueUrl=url, Attributes=said)


def received(sqs: Any, name: str, *, least: int = 1) -> list[dict[str, Any]]:
    """What the queue holds, waiting for so much of it."""
    url = sqs.get_queue_url(QueueName=name)["QueueUrl"]
    found: list[dict[str, Any]] = []
    end = time.monotonic() + PATIENCE
    while len(found) < least and time.monotonic() < end:
        answer = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=5)
        found += [json.loads(message["Body"]) for message in answer.get("Messages", [])]
    return found


def put(events: Any, bus: str = "default", source: str = SOURCE) -> None:
    entry = {"Source": source, "DetailType": "t", "Detail": '{"n": 1}', "EventBusName": bus}
    assert events.put_events(Entries=[entry])["FailedEntryCount"] == 0


def delivery(policy: str, queue: str, rule: str) -> str:
    """What becomes of a message that EventBridge sends for this rule."""
    context = EvalContext(
        principal_arn="*",
        principal_type="Service",
        principal_account="",
        action="sqs:SendMessage",
        resource_arn=queue,
        region=REGION,
        service_context={"aws:sourcearn": rule},
    )
    decision: str = evaluate_resource_policy(
        policy, context, service="events.amazonaws.com"
    ).decision
    return decision


@contextmanager
def between(look: Callable[[str, Any], None]) -> Iterator[None]:
    """Shows each request before it is sent, until the block is left."""
    call = BaseClient._make_api_call

    def looking(self: Any, operation: str, params: Any) -> Any:
        look(operation, params)
        return call(self, operation, params)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BaseClient, "_make_api_call", looking)
        yield
