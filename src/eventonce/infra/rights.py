"""Who may do what: the least that each part of eventonce asks of AWS, as IAM policies.

A test compares them with the requests that are really made. An ARN is any JSON value, as in
`resources`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from eventonce.infra.plan import Plan
from eventonce.infra.resources import VERSION, Place
from eventonce.stores.dynamodb.letters import INDEX

Role = Literal["lambda", "worker", "operate", "send", "apply"]

MEANS: Final[Mapping[Role, str]] = {
    "lambda": "a function that an SQS queue invokes",
    "worker": "a worker, eventonce run",
    "operate": "who looks at the store, and redrives letters",
    "send": "who tries it out, eventonce send",
    "apply": "who makes the resources, eventonce infra apply",
}

STORE: Final = ("BatchGetItem", "PartiQLDelete", "PartiQLInsert", "PartiQLUpdate", "PutItem")
"""Claims, settlements and letters. A statement of a batch asks for its own verb alone, and not for
BatchExecuteStatement; deleted are the spare parts of a large letter that was kept twice."""

RECEIVE: Final = ("ChangeMessageVisibility", "DeleteMessage", "GetQueueUrl", "ReceiveMessage")
"""SQS has no rights for batches: those for one message count."""

POLL: Final = (
    "ChangeMessageVisibility",
    "DeleteMessage",
    "GetQueueAttributes",
    "ReceiveMessage",
)
"""What Lambda itself asks for in the function's name, to bring it messages; and the first, for
which the function asks where a handler says `Retry(after=…)`."""

LOGS: Final = ("CreateLogStream", "PutLogEvents")
NETWORK: Final = (
    "AssignPrivateIpAddresses",
    "CreateNetworkInterface",
    "DeleteNetworkInterface",
    "DescribeNetworkInterfaces",
    "DescribeSubnets",
    "UnassignPrivateIpAddresses",
)
"""What Lambda itself asks for to put a function into a VPC; it takes no narrower resource."""


class Reach(msgspec.Struct, frozen=True):
    """What there is to have rights to; None for what there is not."""

    queue: Any
    dead: Any
    undelivered: Any
    rule: Any = None
    bus: Any = None
    table: Any = None
    index: Any = None
    log: Any = None
    vpc: bool = False
    letters: Sequence[Any] = ()
    """The queue that letters are sent to, if there is one."""
    sends: Sequence[Any] = ()
    """Queues that sinks send to."""
    puts: Sequence[Any] = ()
    """Buses that sinks put events on."""


def named(plan: Plan, *, region: str, account: str) -> Reach:
    """What a plan's resources are, by their names."""
    partitions = {"cn": "aws-cn", "us-gov": "aws-us-gov"}
    found = (value for start, value in partitions.items() if region.startswith(f"{start}-"))
    place = Place(region, account, next(found, "aws"))
    table = None
    if plan.table is not None:
        table = place.elsewhere(plan.table.region).table(plan.table.name)
    return Reach(
        queue=place.queue(plan.queue),
        dead=place.queue(plan.dead),
        undelivered=place.queue(plan.undelivered),
        rule=place.rule(plan.bus, plan.rule),
        bus=place.bus(plan.bus),
        table=table,
        index=table and f"{table}/index/{INDEX}",
        log=f"arn:{place.partition}:logs:{region}:{account}:log-group:/aws/lambda/{plan.name}:*",
        **outlets(plan, place),
    )


def outlets(plan: Plan, place: Place) -> dict[str, Any]:
    """The ARNs of all that events and letters go to."""
    letters = [plan.letters] if plan.letters is not None else []
    return {
        "letters": [place.elsewhere(one.region, one.account).queue(one.name) for one in letters],
        "sends": [place.elsewhere(one.region, one.account).queue(one.name) for one in plan.sends],
        "puts": [place.elsewhere(one.region, one.account).bus(one.name) for one in plan.puts],
    }


def policy(role: Role, reach: Reach) -> dict[str, Any]:
    """The policy of a role."""
    return {"Version": VERSION, "Statement": statements(role, reach)}


def statements(role: Role, reach: Reach) -> list[dict[str, Any]]:
    """What a role may do, one statement for each thing it does it to."""
    match role:
        case "lambda":
            said = [*_store(reach), _allow("Poll", "sqs", POLL, reach.queue), *_outlets(reach)]
            if reach.log is not None:
                said.append(_allow("Logs", "logs", LOGS, reach.log))
            if reach.vpc:
                said.append(_allow("Network", "ec2", NETWORK, "*"))
        case "worker":
            said = [
                *_store(reach),
                _allow("Receive", "sqs", RECEIVE, reach.queue),
                *_outlets(reach),
            ]
        case "operate":
            said = [*_store(reach), *_shelf(reach), *_outlets(reach)]
            dead = [reach.dead, reach.undelivered, *reach.letters]
            said.append(_allow("DeadLetters", "sqs", RECEIVE, dead))
        case "send":
            said = [
                _allow("Put", "events", ["DescribeEventBus", "PutEvents"], reach.bus),
                _allow("Send", "sqs", ["GetQueueUrl", "SendMessage"], reach.queue),
            ]
        case "apply":
            said = _apply(reach)
    return said


def _store(reach: Reach) -> list[dict[str, Any]]:
    return [] if reach.table is None else [_allow("Store", "dynamodb", STORE, reach.table)]


def _shelf(reach: Reach) -> list[dict[str, Any]]:
    """Listing letters, and what `stats` and `store check` look at."""
    if reach.table is None:
        return []
    described = ("DescribeTable", "DescribeTimeToLive")
    return [
        _allow("Letters", "dynamodb", ["Query"], reach.index),
        _allow("Describe", "dynamodb", described, reach.table),
    ]


def _outlets(reach: Reach) -> list[dict[str, Any]]:
    said = []
    queues = [*reach.letters, *reach.sends]
    if queues:
        said.append(_allow("Send", "sqs", ["GetQueueUrl", "SendMessage"], queues))
    if reach.puts:
        put = ("DescribeEventBus", "PutEvents")
        said.append(_allow("Put", "events", put, list(reach.puts)))
    return said


def _apply(reach: Reach) -> list[dict[str, Any]]:
    queues = [reach.queue, reach.dead, reach.undelivered, *reach.letters]
    queue = ("CreateQueue", "GetQueueAttributes", "GetQueueUrl", "SetQueueAttributes")
    rule = ("DescribeRule", "ListTargetsByRule", "PutRule", "PutTargets")
    said = [
        _allow("Queues", "sqs", queue, queues),
        _allow("Rule", "events", rule, reach.rule),
        _allow("Bus", "events", ["CreateEventBus", "DescribeEventBus"], reach.bus),
    ]
    if reach.table is not None:
        table = (
            "CreateTable",
            "DescribeTable",
            "DescribeTimeToLive",
            "UpdateTable",
            "UpdateTimeToLive",
        )
        said.append(_allow("Table", "dynamodb", table, reach.table))
    return said


def _allow(sid: str, service: str, actions: Sequence[str], resource: Any) -> dict[str, Any]:
    return {
        "Sid": sid,
        "Effect": "Allow",
        "Action": [f"{service}:{action}" for action in actions],
        "Resource": resource,
    }
