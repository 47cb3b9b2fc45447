"""What each resource must be, as the services' own documents: the same for `apply` and templates.

An ARN here is any JSON value: text, or what a template language has for it.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, Final

import msgspec

from eventonce.infra.plan import DEFAULT_BUS, FIFO, KEPT, KEPT_DEAD, Plan
from eventonce.stores.dynamodb.codec import EXPIRY, KEY
from eventonce.stores.dynamodb.letters import INCLUDED, INDEX, SHELF, SHELVED

WAIT: Final = 20
"""Seconds a request for messages waits for one: the most there is, and so the fewest requests."""

AGE: Final = 86_400
ATTEMPTS: Final = 185
"""How long and how often EventBridge tries a delivery: the most there is of both."""

GROUP: Final = "eventonce"
"""The message group of all that a rule sends to a FIFO queue: a target can name only one."""

VERSION: Final = "2012-10-17"


class Place(msgspec.Struct, frozen=True):
    """Where resources are: what their ARNs begin with."""

    region: str
    account: str
    partition: str = "aws"

    @classmethod
    def of(cls, arn: str) -> Place:
        """The place of the resource with this ARN."""
        _, partition, _, region, account, _ = arn.split(":", 5)
        return cls(region, account, partition)

    def elsewhere(self, region: str, account: str = "") -> Place:
        """The place of something that may say where it is."""
        return Place(region or self.region, account or self.account, self.partition)

    def queue(self, name: str) -> str:
        """A queue's ARN."""
        return f"arn:{self.partition}:sqs:{self.region}:{self.account}:{name}"

    def table(self, name: str) -> str:
        """A table's ARN."""
        return f"arn:{self.partition}:dynamodb:{self.region}:{self.account}:table/{name}"

    def bus(self, name: str) -> str:
        """A bus' ARN: who may put events on it. What a bus sends does not carry this one."""
        return f"arn:{self.partition}:events:{self.region}:{self.account}:event-bus/{name}"

    def rule(self, bus: str, name: str) -> str:
        """A rule's ARN: what its deliveries carry as their source."""
        path = name if bus == DEFAULT_BUS else f"{bus}/{name}"
        return f"arn:{self.partition}:events:{self.region}:{self.account}:rule/{path}"


def queue_settings(plan: Plan, dead: Any) -> dict[str, Any]:
    """The queue: shows a message again after six timeouts, and gives it up at last."""
    return {
        "VisibilityTimeout": plan.visibility,
        "MessageRetentionPeriod": KEPT,
        "ReceiveMessageWaitTimeSeconds": WAIT,
        "SqsManagedSseEnabled": True,
        **_order(plan.queue),
        "RedrivePolicy": {"deadLetterTargetArn": dead, "maxReceiveCount": plan.receives},
    }


def dead_settings(plan: Plan, queue: Any) -> dict[str, Any]:
    """The queue for what was received too often, from that one queue alone."""
    return {
        **kept_settings(plan.dead),
        "RedriveAllowPolicy": {"redrivePermission": "byQueue", "sourceQueueArns": [queue]},
    }


def kept_settings(name: str) -> dict[str, Any]:
    """A queue that somebody looks into: for letters, and for what was not delivered."""
    return {"MessageRetentionPeriod": KEPT_DEAD, "SqsManagedSseEnabled": True, **_order(name)}


def _order(name: str) -> dict[str, Any]:
    # EventBridge names no deduplication id, and SQS refuses it without one or this.
    return {"FifoQueue": True, "ContentBasedDeduplication": True} if name.endswith(FIFO) else {}


def let_in(plan: Plan, queue: Any, rule: Any) -> dict[str, Any]:
    """The statement of a queue's policy that lets the rule send to it.

    Deliveries carry the ARN of the *rule*. One that names the bus' matches none of them: all events
    would be refused, and with no dead-letter queue at the target be lost.
    """
    return {
        "Sid": sid(plan),
        "Effect": "Allow",
        "Principal": {"Service": "events.amazonaws.com"},
        "Action": "sqs:SendMessage",
        "Resource": queue,
        "Condition": {"ArnEquals": {"aws:SourceArn": rule}},
    }


def sid(plan: Plan) -> str:
    """The name of that statement: one a rule and bus, so that several may send to one queue."""
    words = "".join(letter if letter.isalnum() else " " for letter in plan.rule).split()
    called = "".join(word.capitalize() for word in words)
    # Letters and digits are all that IAM takes here, and rules can be alike in those.
    alone = blake2b(f"{plan.bus}/{plan.rule}".encode(), digest_size=4).hexdigest()
    return f"EventonceRule{called}{alone}"


def target(plan: Plan, queue: Any, undelivered: Any) -> dict[str, Any]:
    """The rule's target: tried as long as EventBridge tries anything, then kept."""
    described = {
        # Another queue's target must not be replaced by this one; an id has 64 characters.
        "Id": plan.queue[-64:],
        "Arn": queue,
        "RetryPolicy": {"MaximumRetryAttempts": ATTEMPTS, "MaximumEventAgeInSeconds": AGE},
        "DeadLetterConfig": {"Arn": undelivered},
    }
    if plan.fifo:
        described["SqsParameters"] = {"MessageGroupId": GROUP}
    return described


def table_settings(plan: Plan) -> dict[str, Any]:
    """The table as CloudFormation has it; `eventonce store create` makes the same."""
    assert plan.table is not None
    key = plan.table.key or KEY
    return {
        "BillingMode": "PAY_PER_REQUEST",
        "AttributeDefinitions": [
            {"AttributeName": name, "AttributeType": "S"} for name in (key, SHELF, SHELVED)
        ],
        "KeySchema": [{"AttributeName": key, "KeyType": "HASH"}],
        "GlobalSecondaryIndexes": [
            {
                "IndexName": INDEX,
                "KeySchema": [
                    {"AttributeName": SHELF, "KeyType": "HASH"},
                    {"AttributeName": SHELVED, "KeyType": "RANGE"},
                ],
                "Projection": {"ProjectionType": "INCLUDE", "NonKeyAttributes": list(INCLUDED)},
            }
        ],
        "TimeToLiveSpecification": {
            "AttributeName": plan.table.expiry or EXPIRY,
            "Enabled": True,
        },
    }
