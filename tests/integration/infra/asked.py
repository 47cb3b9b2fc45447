"""The rights that a piece of code needs in AWS: every request that boto3 and our own clients send
meanwhile, as the action and the resource that IAM would check."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
from botocore.client import BaseClient
from ministack.core.iam_evaluator import EvalContext, evaluate, parse_policy_document

from eventonce.aws.direct import ServiceClient
from eventonce.aws.sqs_client import SQS
from tests.integration.infra.account import HERE
from tests.servers.aws import REGION

PARTIQL = {
    "INSERT": "PartiQLInsert",
    "UPDATE": "PartiQLUpdate",
    "DELETE": "PartiQLDelete",
    "SELECT": "PartiQLSelect",
}
"""A statement needs the right of its verb, on its table; the batch around it needs none."""


class Asked(NamedTuple):
    """One right, and its resource."""

    action: str
    resource: str


@contextmanager
def asking(*others: Any) -> Iterator[set[Asked]]:
    """The requests of all threads until the block is left, except the requests of these clients."""
    found: set[Asked] = set()
    call = BaseClient._make_api_call

    def noting(client: Any, operation: str, params: dict[str, Any]) -> Any:
        if client not in others:
            found.update(_rights(client.meta.service_model.service_name, operation, params))
        return call(client, operation, params)

    call_direct = ServiceClient._call

    def noting_direct(client: Any, operation: str, /, **params: Any) -> Any:
        if client not in others:
            service = "sqs" if client.service is SQS else "dynamodb"
            found.update(_rights(service, operation, params))
        return call_direct(client, operation, **params)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BaseClient, "_make_api_call", noting)
        patch.setattr(ServiceClient, "_call", noting_direct)
        yield found


def _rights(service: str, operation: str, params: Mapping[str, Any]) -> Iterator[Asked]:
    match service:
        case "dynamodb":
            yield from _dynamodb(operation, params)
        case "sqs":
            name = params.get("QueueName") or params["QueueUrl"].rpartition("/")[2]
            # There are no rights for batches: those for one message count.
            yield Asked(f"sqs:{operation.removesuffix('Batch')}", HERE.queue(name))
        case "events":
            yield from _events(operation, params)
        case "cloudformation":
            # By its name, or by its id, which ends with more.
            name = params["StackName"].rpartition("stack/")[2].partition("/")[0]
            yield Asked(f"cloudformation:{operation}", HERE.arn(service, f"stack/{name}/id"))
        case "logs":
            group = f"log-group:{params['logGroupName']}:log-stream:"
            yield Asked(f"logs:{operation}", HERE.arn(service, group))
        case "lambda":
            name = params.get("FunctionName")
            resource = HERE.arn(service, f"function:{name}") if name else "*"
            yield Asked(f"lambda:{operation}", resource)
        case "iam":
            yield Asked(f"iam:{operation}", params["PolicySourceArn"])
        case "sns":
            yield Asked(f"sns:{operation}", "*")
        case "sts":
            assert operation == "GetCallerIdentity", "which needs no right"
        case _:
            raise AssertionError(f"{service}:{operation} is asked for, and no policy knows it")


def _dynamodb(operation: str, params: Mapping[str, Any]) -> Iterator[Asked]:
    if operation == "BatchExecuteStatement":
        for statement in params["Statements"]:
            verb, table = re.findall(r'^(\w+).*?"([^"]+)"', statement["Statement"])[0]
            yield Asked(f"dynamodb:{PARTIQL[verb]}", HERE.table(table))
    elif operation == "BatchGetItem":
        for table in params["RequestItems"]:
            yield Asked("dynamodb:BatchGetItem", HERE.table(table))
    else:
        index = f"/index/{params['IndexName']}" if "IndexName" in params else ""
        yield Asked(f"dynamodb:{operation}", HERE.table(params["TableName"]) + index)


def _events(operation: str, params: Mapping[str, Any]) -> Iterator[Asked]:
    if operation == "PutEvents":
        for entry in params["Entries"]:
            yield Asked("events:PutEvents", HERE.bus(entry["EventBusName"]))
    elif operation.endswith("EventBus"):
        yield Asked(f"events:{operation}", HERE.bus(params["Name"]))
    elif operation in ("ListEventBuses", "ListRuleNamesByTarget"):
        yield Asked(f"events:{operation}", "*")
    else:
        rule = params.get("Rule") or params["Name"]
        yield Asked(f"events:{operation}", HERE.rule(params["EventBusName"], rule))


def allows(policy: Mapping[str, Any], asked: Asked) -> bool:
    """Whether this policy gives this right, by an independent evaluator."""
    context = EvalContext(
        principal_arn="arn:aws:iam::000000000000:role/r",
        principal_type="AssumedRole",
        principal_account="000000000000",
        action=asked.action,
        resource_arn=asked.resource,
        region=REGION,
    )
    decision: str = evaluate(context, [parse_policy_document(dict(policy))]).decision
    return decision == "Allow"


def given(policy: Mapping[str, Any], *without: str) -> set[str]:
    """All actions that this policy allows, except the actions of the statements named."""
    return {
        action
        for said in policy["Statement"]
        if said["Sid"] not in without
        for action in said["Action"]
    }
