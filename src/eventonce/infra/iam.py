"""IAM policies: the least rights that each part of eventonce needs.

Tests compare the policies with the requests that are really made, and with the two templates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

from eventonce.infra.targets import Place, Target
from eventonce.infra.topology import Topology
from eventonce.stores.dynamodb.letters import INDEX

Role = Literal["lambda", "worker", "operate", "send", "capture", "apply", "doctor"]
Statement = dict[str, Any]

STORE_RIGHTS: Final = ("BatchGetItem", "PartiQLDelete", "PartiQLInsert", "PartiQLUpdate", "PutItem")
"""The rights for claims, settlements and dead letters. A statement of a PartiQL batch needs the
right of its own verb, not BatchExecuteStatement. PartiQLDelete is for the extra parts of a large
dead letter that was kept twice."""

DESCRIBE_RIGHTS: Final = ("DescribeTable", "DescribeTimeToLive")
"""The rights to check a table."""

QUEUE_RIGHTS: Final = ("ChangeMessageVisibility", "DeleteMessage", "GetQueueUrl", "ReceiveMessage")
"""The rights to receive; SQS has no rights for batches: the right for one message is enough."""

POLL_RIGHTS: Final = (
    "ChangeMessageVisibility",
    "DeleteMessage",
    "GetQueueAttributes",
    "ReceiveMessage",
)
"""The rights with which Lambda receives messages for the function; the function itself uses the
first, for `Retry(after=…)`."""

CAPTURE_RIGHTS: Final = ("DeleteMessage", "GetQueueAttributes", "GetQueueUrl", "ReceiveMessage")
SEND_RIGHTS: Final = ("GetQueueUrl", "SendMessage")
PUT_RIGHTS: Final = ("DescribeEventBus", "PutEvents")
LOG_RIGHTS: Final = ("CreateLogStream", "PutLogEvents")

STACK_RIGHTS: Final = (
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
    "Dashboard": "DeleteDashboards GetDashboard PutDashboard",
    "Alarms": "DeleteAlarms DescribeAlarms ListTagsForResource PutMetricAlarm TagResource "
    "UntagResource",
}
"""The rights of the caller that CloudFormation uses, as AWS publishes them for each type of
resource. Rules, policies, alarms and the dashboard are deleted with the stack, other resources only
if the first deployment fails."""

LIST_RIGHTS: Final = (
    "events:ListEventBuses",
    "events:ListRuleNamesByTarget",
    "iam:SimulatePrincipalPolicy",
    "lambda:ListEventSourceMappings",
    "sns:ListSubscriptions",
)
"""The actions of `eventonce doctor` that are not about one resource, or whose resource is not known
beforehand."""

TRANSFORM: Final = "transform/Serverless-2016-10-31"


def policy(role: Role, topology: Topology, place: Place) -> dict[str, Any]:
    """Return the policy of a role, with one statement for each kind of resource."""
    return {"Version": "2012-10-17", "Statement": _statements(role, topology, place)}


def _statements(role: Role, topology: Topology, place: Place) -> list[Statement]:
    match role:
        case "lambda":
            log = place.arn("logs", f"log-group:/aws/lambda/{topology.name}:*")
            poll = _allow("Poll", "sqs", POLL_RIGHTS, place.queue(topology.queue))
            logs = _allow("Logs", "logs", LOG_RIGHTS, log)
            return [*_shared(topology, place), *_dropping(topology, place), poll, logs]
        case "worker":
            receive = _allow("Receive", "sqs", QUEUE_RIGHTS, place.queue(topology.queue))
            return [*_shared(topology, place), *_dropping(topology, place), receive]
        case "operate":
            return [*_shared(topology, place), *_operate(topology, place)]
        case "send":
            return [
                _allow("Put", "events", PUT_RIGHTS, place.bus(topology.bus)),
                _allow("Send", "sqs", SEND_RIGHTS, place.queue(topology.queue)),
            ]
        case "capture":
            lines = place.arn("logs", f"log-group:{topology.capture_log_group}:*")
            return [
                _allow("Receive", "sqs", CAPTURE_RIGHTS, place.queue(topology.capture_queue)),
                _allow("Read", "logs", ["FilterLogEvents"], lines),
            ]
        case "apply":
            return _apply(topology, place)
        case "doctor":
            return _doctor(topology, place)


def _shared(topology: Topology, place: Place) -> list[Statement]:
    """Return the rights of every consumer: the store, the queue for dead letters, the sinks."""
    found = []
    if topology.table is not None:
        found.append(_allow("Store", "dynamodb", STORE_RIGHTS, table_arn(topology, place)))
    if topology.letters is not None:
        found.append(_allow("Keep", "sqs", SEND_RIGHTS, queue_arn(topology.letters, place)))
    if topology.sends:
        queues = [queue_arn(it, place) for it in topology.sends]
        found.append(_allow("Send", "sqs", SEND_RIGHTS, queues))
    if topology.puts:
        buses = [place.of(it).bus(it.name) for it in topology.puts]
        found.append(_allow("Put", "events", PUT_RIGHTS, buses))
    return found


def _dropping(topology: Topology, place: Place) -> list[Statement]:
    """Return the right to find old dead letters, if the consumer drops them itself."""
    return [_letters(topology, place)] if topology.drops_letters else []


def _letters(topology: Topology, place: Place) -> Statement:
    """Return the right to list the dead letters of the table."""
    return _allow("Letters", "dynamodb", ["Query"], f"{table_arn(topology, place)}/index/{INDEX}")


def _operate(topology: Topology, place: Place) -> list[Statement]:
    """Return the rights for dead letters, `stats` and `store check`."""
    dead = [place.queue(topology.dead), place.queue(topology.undelivered)]
    if topology.letters is not None:
        dead.append(queue_arn(topology.letters, place))
    found = [_allow("DeadLetters", "sqs", QUEUE_RIGHTS, dead)]
    if topology.table is not None:
        table = table_arn(topology, place)
        found.append(_letters(topology, place))
        found.append(_allow("Describe", "dynamodb", DESCRIBE_RIGHTS, table))
    return found


def _doctor(topology: Topology, place: Place) -> list[Statement]:
    """Return the rights to read a set-up, and to write a trial to the store."""
    queues = [place.queue(name) for name in (topology.queue, topology.dead, topology.undelivered)]
    if topology.letters is not None:
        queues.append(queue_arn(topology.letters, place))
    rules = ("DescribeRule", "ListTargetsByRule")
    functions = (
        "GetFunctionConcurrency",
        "GetFunctionConfiguration",
        "GetFunctionEventInvokeConfig",
    )
    found = [
        {"Sid": "Lists", "Effect": "Allow", "Action": [*LIST_RIGHTS], "Resource": "*"},
        _allow("Queues", "sqs", ["GetQueueAttributes", "GetQueueUrl"], queues),
        _allow("Rules", "events", rules, place.arn("events", "rule/*")),
        _allow("Functions", "lambda", functions, place.arn("lambda", "function:*")),
    ]
    if topology.table is not None:
        table = table_arn(topology, place)
        found.append(_allow("Store", "dynamodb", [*STORE_RIGHTS, *DESCRIBE_RIGHTS], table))
        found.append(_letters(topology, place))
    return found


def _apply(topology: Topology, place: Place) -> list[Statement]:
    """Return the rights to deploy the stack of a worker. The stack of a function also needs an
    administrator's rights to roles and functions, which no policy of eventonce limits."""
    queues = [place.queue(name) for name in (topology.queue, topology.dead, topology.undelivered)]
    if topology.letter_queue:
        queues.append(place.queue(topology.letter_queue))
    stack = place.arn("cloudformation", f"stack/{topology.name}/*")
    transform = Place(place.region, "aws").arn("cloudformation", TRANSFORM)
    policies = f"arn:{place.partition}:iam::{place.account}:policy/{topology.name}-*"
    alarms = place.arn("cloudwatch", f"alarm:{topology.name}-*")
    # A dashboard has no region.
    dashboard = f"arn:{place.partition}:cloudwatch::{place.account}:dashboard/{topology.name}"
    found = [
        _allow("Stack", "cloudformation", STACK_RIGHTS, stack),
        _allow("Transform", "cloudformation", ["CreateChangeSet"], transform),
        _allow("Queues", "sqs", MADE["Queues"].split(), queues),
        _allow("Rule", "events", MADE["Rule"].split(), place.rule(topology.bus, topology.rule)),
        _allow("Bus", "events", MADE["Bus"].split(), place.bus(topology.bus)),
        _allow("Policies", "iam", MADE["Policies"].split(), policies),
        _allow("Alarms", "cloudwatch", MADE["Alarms"].split(), alarms),
        _allow("Dashboard", "cloudwatch", MADE["Dashboard"].split(), dashboard),
    ]
    if topology.table is not None:
        found.append(_allow("Table", "dynamodb", MADE["Table"].split(), table_arn(topology, place)))
    return found


def queue_arn(target: Target, place: Place) -> str:
    """Return the ARN of a queue, in its own region and account if it has them."""
    return place.of(target).queue(target.name)


def table_arn(topology: Topology, place: Place) -> str:
    """Return the ARN of the store's table, in the region of its URI."""
    assert topology.table is not None
    return Place(topology.table.region or place.region, place.account).table(topology.table.name)


def _allow(sid: str, service: str, actions: Sequence[str], resource: Any) -> Statement:
    return {
        "Sid": sid,
        "Effect": "Allow",
        "Action": [f"{service}:{action}" for action in actions],
        "Resource": resource,
    }
