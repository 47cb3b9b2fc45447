"""The emulated account, as the tests read it and change it by hand."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from botocore.client import BaseClient
from ministack.core.iam_evaluator import EvalContext, evaluate_resource_policy

from eventonce.infra.stack import Deployed
from eventonce.infra.targets import Place
from tests.helpers import PATIENCE
from tests.servers.aws import REGION

Deploy = Callable[..., Deployed]
Client = Callable[[str], Any]

SOURCE = "com.example.calls"
PARTNER = "aws.partner/genesys.com/cloud/5a3b/prod"
HERE = Place(REGION, "000000000000")
"""The emulator's account."""


def attributes(sqs: Any, name: str) -> dict[str, str]:
    url = sqs.get_queue_url(QueueName=name)["QueueUrl"]
    found: dict[str, str] = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])[
        "Attributes"
    ]
    return found


def queues(sqs: Any, prefix: str) -> set[str]:
    urls = sqs.list_queues(QueueNamePrefix=prefix).get("QueueUrls", ())
    return {url.rpartition("/")[2] for url in urls}


def received(sqs: Any, name: str) -> dict[str, Any]:
    """The only event of the queue, as soon as it has arrived."""
    url = sqs.get_queue_url(QueueName=name)["QueueUrl"]
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        answer = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=5)
        if "Messages" in answer:
            (message,) = answer["Messages"]
            event: dict[str, Any] = json.loads(message["Body"])
            return event
    raise AssertionError("no event came")


def put(events: Any, bus: str, source: str) -> None:
    entry = {"Source": source, "DetailType": "t", "Detail": '{"n": 1}', "EventBusName": bus}
    assert events.put_events(Entries=[entry])["FailedEntryCount"] == 0


def delivered(policy: str, queue: str, rule: str) -> bool:
    """Whether a message that EventBridge sends for this rule is accepted, by an independent
    evaluator of policies."""
    context = EvalContext(
        principal_arn="*",
        principal_type="Service",
        principal_account="",
        action="sqs:SendMessage",
        resource_arn=queue,
        region=REGION,
        service_context={"aws:sourcearn": rule},
    )
    decided = evaluate_resource_policy(policy, context, service="events.amazonaws.com")
    return bool(decided.decision == "Allow")


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
