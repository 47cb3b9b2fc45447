"""IAM policies: the least rights that each part of eventonce needs.

Tests compare them with the requests that are really made, and with the two templates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

from eventonce.infra.plan import Plan
from eventonce.infra.targets import Place, Target

Role = Literal["lambda", "worker", "operate", "send", "capture", "apply"]
Statement = dict[str, Any]

STORE: Final = ("BatchGetItem", "PartiQLDelete", "PartiQLInsert", "PartiQLUpdate", "PutItem")
"""Claims, settlements and dead letters. A statement of a PartiQL batch needs the right of its own
verb, and not BatchExecuteStatement. PartiQLDelete is for the spare parts of a large dead letter
that was kept twice."""

RECEIVE: Final = ("ChangeMessageVisibility", "DeleteMessage", "GetQueueUrl", "ReceiveMessage")
"""SQS has no rights for batches: the right for one message is enough."""

POLL: Final = (
    "ChangeMessageVisibility",
    "DeleteMessage",
    "GetQueueAttributes",
    "ReceiveMessage",
)
"""The rights that Lambda uses in the function's name to receive its messages; the first is also the
function's own, for `Retry(after=…)`."""

CAPTURE_ACTIONS: Final = ("DeleteMessage", "GetQueueAttributes", "GetQueueUrl", "ReceiveMessage")
SEND: Final = ("GetQueueUrl", "SendMessage")
PUT: Final = ("DescribeEventBus", "PutEvents")
LOGS: Final = ("CreateLogStream", "PutLogEvents")

STACK: Final = (
    "CreateChangeSet",
    "DeleteChangeSet",
    "DeleteStack",
    "DescribeChangeSet",
    "DescribeStackEvents",
    "DescribeStacks",
    "ExecuteChangeSet",
)
"""The rights of `infra apply` itself; it deletes a stack whose first change set was not
executed."""

MADE: Final = {
    "Queues": "CreateQueue DeleteQueue GetQueueAttributes GetQueueUrl ListQueueTags "
    "SetQueueAttributes TagQueue UntagQueue",
    "Rule": "DeleteRule DescribeRule ListTagsForResource ListTargetsByRule PutRule PutTargets "
    "RemoveTargets TagResource UntagResource",
    "Bus": "CreateEventBus DeleteEventBus DescribeEventBus ListTagsForResource TagResource "
    "UntagResource UpdateEventBus",
    "Table": "CreateTable DeleteTable DescribeContinuousBackups DescribeContributorInsights "
    "DescribeKinesisStreamingDestination DescribeTable DescribeTimeToLive GetResourcePolicy "
    "ListTagsOfResource TagResource UntagResource UpdateTable UpdateTimeToLive",
    "Policies": "CreatePolicy CreatePolicyVersion DeletePolicy DeletePolicyVersion GetPolicy "
    "GetPolicyVersion ListEntitiesForPolicy ListPolicyVersions",
    "Alarms": "DeleteAlarms DescribeAlarms ListTagsForResource PutMetricAlarm TagResource "
    "UntagResource",
}
"""The rights that CloudFormation uses in the name of the caller, as AWS publishes them for each
type of resource. Rules, policies and alarms are deleted with the stack, the others only if the
first deployment fails."""

TRANSFORM: Final = "transform/Serverless-2016-10-31"
INDEX: Final = "letters"


def policy(role: Role, plan: Plan, place: Place) -> dict[str, Any]:
    """The policy of a role, one statement for each kind of resource."""
    return {"Version": "2012-10-17", "Statement": _statements(role, plan, place)}


def _statements(role: Role, plan: Plan, place: Place) -> list[Statement]:
    match role:
        case "lambda":
            log = place.arn("logs", f"log-group:/aws/lambda/{plan.name}:*")
            poll = _allow("Poll", "sqs", POLL, place.queue(plan.queue))
            return [*_shared(plan, place), poll, _allow("Logs", "logs", LOGS, log)]
        case "worker":
            receive = _allow("Receive", "sqs", RECEIVE, place.queue(plan.queue))
            return [*_shared(plan, place), receive]
        case "operate":
            return [*_shared(plan, place), *_operate(plan, place)]
        case "send":
            return [
                _allow("Put", "events", PUT, place.bus(plan.bus)),
                _allow("Send", "sqs", SEND, place.queue(plan.queue)),
            ]
        case "capture":
            lines = place.arn("logs", f"log-group:{plan.capture_log_group}:*")
            return [
                _allow("Receive", "sqs", CAPTURE_ACTIONS, place.queue(plan.capture_queue)),
                _allow("Read", "logs", ["FilterLogEvents"], lines),
            ]
        case "apply":
            return _apply(plan, place)


def _shared(plan: Plan, place: Place) -> list[Statement]:
    """The rights of every consumer: the store, the queue for dead letters, the sinks."""
    found = []
    if plan.table is not None:
        found.append(_allow("Store", "dynamodb", STORE, table_arn(plan, place)))
    if plan.letters is not None:
        found.append(_allow("Keep", "sqs", SEND, queue_arn(plan.letters, place)))
    if plan.sends:
        queues = [queue_arn(it, place) for it in plan.sends]
        found.append(_allow("Send", "sqs", SEND, queues))
    if plan.puts:
        buses = [place.of(it).bus(it.name) for it in plan.puts]
        found.append(_allow("Put", "events", PUT, buses))
    return found


def _operate(plan: Plan, place: Place) -> list[Statement]:
    """The rights for dead letters, `stats` and `store check`."""
    dead = [place.queue(plan.dead), place.queue(plan.undelivered)]
    if plan.letters is not None:
        dead.append(queue_arn(plan.letters, place))
    found = [_allow("DeadLetters", "sqs", RECEIVE, dead)]
    if plan.table is not None:
        table = table_arn(plan, place)
        described = ("DescribeTable", "DescribeTimeToLive")
        found.append(_allow("Letters", "dynamodb", ["Query"], f"{table}/index/{INDEX}"))
        found.append(_allow("Describe", "dynamodb", described, table))
    return found


def _apply(plan: Plan, place: Place) -> list[Statement]:
    """The rights to deploy the stack of a worker; that of a function needs an administrator's
    rights to roles and functions, which no policy of ours narrows."""
    queues = [place.queue(name) for name in (plan.queue, plan.dead, plan.undelivered)]
    if plan.letter_queue:
        queues.append(place.queue(plan.letter_queue))
    stack = place.arn("cloudformation", f"stack/{plan.name}/*")
    transform = Place(place.region, "aws").arn("cloudformation", TRANSFORM)
    policies = f"arn:{place.partition}:iam::{place.account}:policy/{plan.name}-*"
    alarms = place.arn("cloudwatch", f"alarm:{plan.name}-*")
    found = [
        _allow("Stack", "cloudformation", STACK, stack),
        _allow("Transform", "cloudformation", ["CreateChangeSet"], transform),
        _allow("Queues", "sqs", MADE["Queues"].split(), queues),
        _allow("Rule", "events", MADE["Rule"].split(), place.rule(plan.bus, plan.rule)),
        _allow("Bus", "events", MADE["Bus"].split(), place.bus(plan.bus)),
        _allow("Policies", "iam", MADE["Policies"].split(), policies),
        _allow("Alarms", "cloudwatch", MADE["Alarms"].split(), alarms),
    ]
    if plan.table is not None:
        found.append(_allow("Table", "dynamodb", MADE["Table"].split(), table_arn(plan, place)))
    return found


def queue_arn(target: Target, place: Place) -> str:
    """The ARN of a queue, in its own region and account if it names them."""
    return place.of(target).queue(target.name)


def table_arn(plan: Plan, place: Place) -> str:
    """The ARN of the store's table, in the region of its URI."""
    assert plan.table is not None
    return Place(plan.table.region or place.region, place.account).table(plan.table.name)


def _allow(sid: str, service: str, actions: Sequence[str], resource: Any) -> Statement:
    return {
        "Sid": sid,
        "Effect": "Allow",
        "Action": [f"{service}:{action}" for action in actions],
        "Resource": resource,
    }
