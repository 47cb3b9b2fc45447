"""The plan as a SAM template: with a function that the queue invokes, or for a worker."""

from __future__ import annotations

from typing import Any, Final

from eventonce.infra import alarms, function, network, resources, rights
from eventonce.infra.plan import DEFAULT_BUS, Plan
from eventonce.infra.resources import Place
from eventonce.stores.dynamodb.letters import INDEX

HERE: Final = Place("${AWS::Region}", "${AWS::AccountId}", "${AWS::Partition}")

WHAT_NOW: Final = {
    "lambda": "Beside it: function.py with the handler, and requirements.txt with eventonce. Then: "
    "sam build && sam deploy --guided",
    "worker": "sam deploy --guided; then attach the policy of its output to the worker's role",
}
"""What is to be done with the template."""

_KEPT: Final = {"DeletionPolicy": "Retain", "UpdateReplacePolicy": "Retain"}
"""Queues, table and logs outlive the stack, with what they hold: nothing here deletes an event."""


def template(plan: Plan, role: rights.Role = "lambda", *, vpc: bool = False) -> dict[str, Any]:
    """The template for `sam deploy`."""
    runs = role == "lambda"
    made = {**_queues(plan), "Rule": _rule(plan)}
    if plan.table is not None:
        properties = {"TableName": plan.table.name, **resources.table_settings(plan)}
        made["Table"] = {"Type": "AWS::DynamoDB::Table", **_KEPT, "Properties": properties}
    reach = _reached(plan, runs=runs, vpc=vpc)
    if runs:
        made |= _function(plan, reach, vpc=vpc)
        made["GivenUp"] = alarms.sam_count(plan, {"Ref": "LogGroup"})
    else:
        made["WorkerPolicy"] = _managed("worker", reach)
    made["OperatePolicy"] = _managed("operate", reach)
    made |= alarms.for_sam(alarms.alarms(plan, {"Ref": "Function"} if runs else None))
    parameters, conditions = alarms.sam_topic()
    if runs and plan.table is None:
        asked = {"Type": "String", "NoEcho": True, "Description": function.STORE_MEANS}
        parameters["StoreUri"] = asked
    if vpc:
        parameters |= network.sam_parameters(plan)
        conditions |= network.sam_conditions(plan)
        made |= network.sam_endpoints(plan)
    return {
        "AWSTemplateFormatVersion": "2010-09-09",
        "Transform": "AWS::Serverless-2016-10-31",
        "Description": f"Events of {plan.name}, each taking effect once (eventonce)",
        "Parameters": parameters,
        "Conditions": conditions,
        "Resources": made,
        "Outputs": _outputs(plan, runs=runs),
    }


def _reached(plan: Plan, *, runs: bool, vpc: bool) -> rights.Reach:
    """What there is to have rights to, as the template names it."""
    table = plan.table is not None
    return rights.Reach(
        queue=_arn("Queue"),
        dead=_arn("DeadQueue"),
        undelivered=_arn("UndeliveredQueue"),
        table=_arn("Table") if table else None,
        index={"Fn::Sub": f"${{Table.Arn}}/index/{INDEX}"} if table else None,
        log=_arn("LogGroup") if runs else None,
        vpc=vpc,
        **{kind: [_sub(arn) for arn in arns] for kind, arns in rights.outlets(plan, HERE).items()},
    )


def _arn(id: str) -> dict[str, Any]:
    return {"Fn::GetAtt": [id, "Arn"]}


def _sub(text: str) -> dict[str, str]:
    return {"Fn::Sub": text}


def _queues(plan: Plan) -> dict[str, Any]:
    # By its name, since the queue itself already refers to its dead-letter queue.
    queue = _sub(HERE.queue(plan.queue))
    settings = {
        "Queue": (plan.queue, resources.queue_settings(plan, _arn("DeadQueue"))),
        "DeadQueue": (plan.dead, resources.dead_settings(plan, queue)),
        "UndeliveredQueue": (plan.undelivered, resources.kept_settings(plan.undelivered)),
    }
    if plan.letterbox:
        settings["LetterQueue"] = (plan.letterbox, resources.kept_settings(plan.letterbox))
    made: dict[str, Any] = {
        key: {"Type": "AWS::SQS::Queue", **_KEPT, "Properties": {"QueueName": name, **properties}}
        for key, (name, properties) in settings.items()
    }
    rule = _sub(HERE.rule(plan.bus, plan.rule))
    for key in ("Queue", "UndeliveredQueue"):
        said = [resources.let_in(plan, _arn(key), rule)]
        made[f"{key}Policy"] = {
            "Type": "AWS::SQS::QueuePolicy",
            "Properties": {
                "Queues": [{"Ref": key}],
                "PolicyDocument": {"Version": resources.VERSION, "Statement": said},
            },
        }
    return made


def _rule(plan: Plan) -> dict[str, Any]:
    properties: dict[str, Any] = {
        "Name": plan.rule,
        "EventPattern": plan.pattern,
        "State": "ENABLED",
        "Targets": [resources.target(plan, _arn("Queue"), _arn("UndeliveredQueue"))],
    }
    if plan.bus != DEFAULT_BUS:
        properties["EventBusName"] = plan.bus
    return {
        "Type": "AWS::Events::Rule",
        # What it sends before it is let in is refused.
        "DependsOn": ["QueuePolicy", "UndeliveredQueuePolicy"],
        "Properties": properties,
    }


def _function(plan: Plan, reach: rights.Reach, *, vpc: bool) -> dict[str, Any]:
    properties: dict[str, Any] = {
        "CodeUri": ".",
        "Handler": function.HANDLER,
        "Runtime": function.RUNTIME,
        "Architectures": [function.ARCHITECTURE],
        "MemorySize": function.MEMORY,
        "Timeout": plan.timeout,
        # Its own role: the one SAM would make may receive from every queue of the account.
        "Role": _arn("FunctionRole"),
        "LoggingConfig": {"LogGroup": {"Ref": "LogGroup"}},
        "Environment": {"Variables": function.environment(plan, {"Ref": "StoreUri"})},
        "Events": {
            "Messages": {
                "Type": "SQS",
                "Properties": {
                    "Queue": _arn("Queue"),
                    "BatchSize": function.BATCH,
                    "FunctionResponseTypes": ["ReportBatchItemFailures"],
                },
            }
        },
    }
    if vpc:
        properties["VpcConfig"] = {
            "SubnetIds": {"Ref": "SubnetIds"},
            "SecurityGroupIds": {"Ref": "SecurityGroupIds"},
        }
    return {
        "LogGroup": {
            "Type": "AWS::Logs::LogGroup",
            **_KEPT,
            "Properties": {
                "LogGroupName": _sub("/aws/lambda/${AWS::StackName}"),
                "RetentionInDays": function.LOGS_KEPT,
            },
        },
        "FunctionRole": {
            "Type": "AWS::IAM::Role",
            "Properties": {
                "AssumeRolePolicyDocument": function.TRUST,
                "Policies": [
                    {"PolicyName": "eventonce", "PolicyDocument": rights.policy("lambda", reach)}
                ],
            },
        },
        "Function": {"Type": "AWS::Serverless::Function", "Properties": properties},
    }


def _managed(role: rights.Role, reach: rights.Reach) -> dict[str, Any]:
    return {
        "Type": "AWS::IAM::ManagedPolicy",
        "Properties": {
            "Description": f"eventonce: {rights.MEANS[role]}",
            "PolicyDocument": rights.policy(role, reach),
        },
    }


def _outputs(plan: Plan, *, runs: bool) -> dict[str, Any]:
    said: dict[str, Any] = {
        "QueueUrl": {"Value": {"Ref": "Queue"}},
        "DeadQueueUrl": {"Value": {"Ref": "DeadQueue"}},
        "UndeliveredQueueUrl": {"Value": {"Ref": "UndeliveredQueue"}},
        "RuleArn": {"Value": _arn("Rule")},
        "OperatePolicyArn": {"Value": {"Ref": "OperatePolicy"}},
    }
    if runs:
        said["FunctionArn"] = {"Value": _arn("Function")}
    else:
        said["WorkerPolicyArn"] = {"Value": {"Ref": "WorkerPolicy"}}
    if plan.table is not None:
        said["TableName"] = {"Value": {"Ref": "Table"}}
    return said
