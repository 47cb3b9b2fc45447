"""A consumer behind a Lambda handler, and the events and records of its invocations."""

from __future__ import annotations

import json
from typing import Any

from eventonce import Consumer, Job, Retry, Rule
from eventonce.aws import lambda_handler

RULE = Rule(name="call", match="call", key=["detail.call"])
ARN = "arn:aws:sqs:eu-central-1:111122223333:calls"
FIFO = f"{ARN}.fifo"


def event(call: str, id: str = "") -> dict[str, Any]:
    return {"id": id or call, "detail-type": "call", "source": "s", "detail": {"call": call}}


def record(call: str, *, group: str = "", arn: str = "", body: str | None = None) -> dict[str, Any]:
    attributes = {"MessageGroupId": group} if group else {}
    return {
        "messageId": f"message-{call}",
        "eventSource": "aws:sqs",
        "eventSourceARN": arn or (FIFO if group else ARN),
        "attributes": attributes,
        "body": body if body is not None else json.dumps(event(call)),
    }


def failures(answer: dict[str, Any]) -> list[str]:
    return [item["itemIdentifier"] for item in answer["batchItemFailures"]]


class Crm:
    """A function whose handler fails for the calls in `failing`."""

    def __init__(self, **options: Any) -> None:
        self.ran: list[str] = []
        self.failing: set[str] = set()
        self.consumer = Consumer("memory:", rules=RULE, handler=self._run)
        self.handler = lambda_handler(self.consumer, **options)

    def _run(self, job: Job) -> None:
        call = job.event.detail["call"]
        if call in self.failing:
            raise Retry
        self.ran.append(call)
