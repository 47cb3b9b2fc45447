"""The plan for Terraform, in its JSON syntax: a `main.tf.json` that it reads like any `.tf` file.

Policies are texts with references in them, which Terraform fills in.
"""

from __future__ import annotations

import json
from typing import Any, Final

from eventonce.infra import alarms, function, network, resources, rights
from eventonce.infra.plan import Plan
from eventonce.infra.resources import Place
from eventonce.stores.dynamodb.letters import INDEX

HERE: Final = Place(
    "${data.aws_region.current.id}",
    "${data.aws_caller_identity.current.account_id}",
    "${data.aws_partition.current.partition}",
)

_NAMES: Final = {
    "VisibilityTimeout": "visibility_timeout_seconds",
    "MessageRetentionPeriod": "message_retention_seconds",
    "ReceiveMessageWaitTimeSeconds": "receive_wait_time_seconds",
    "SqsManagedSseEnabled": "sqs_managed_sse_enabled",
    "FifoQueue": "fifo_queue",
    "ContentBasedDeduplication": "content_based_deduplication",
    "RedrivePolicy": "redrive_policy",
    "RedriveAllowPolicy": "redrive_allow_policy",
}
"""What Terraform calls the attributes of a queue."""

_KEPT: Final = {"lifecycle": {"prevent_destroy": True}}
"""Queues, table and logs are not destroyed with what they hold."""


def document(plan: Plan, role: rights.Role = "lambda", *, vpc: bool = False) -> dict[str, Any]:
    """The whole file."""
    runs = role == "lambda"
    made: dict[str, Any] = {**_queues(plan), **_rule(plan)}
    if plan.table is not None:
        made["aws_dynamodb_table"] = {"store": _table(plan)}
    reach = _reached(plan, runs=runs, vpc=vpc)
    made["aws_iam_policy"] = {"operate": _policy("operate", reach, plan)}
    if runs:
        made |= _function(plan, reach, vpc=vpc)
        log = _ref("aws_cloudwatch_log_group.function.name")
        made["aws_cloudwatch_log_metric_filter"] = {"function": alarms.terraform_count(plan, log)}
    else:
        made["aws_iam_policy"]["worker"] = _policy("worker", reach, plan)
    if vpc:
        made["aws_vpc_endpoint"] = network.terraform_endpoints(plan)
    called = _ref("aws_lambda_function.function.function_name") if runs else None
    watched = alarms.alarms(plan, called)
    made["aws_cloudwatch_metric_alarm"] = alarms.for_terraform(watched, plan.name)
    package = " -var package=function.zip" if runs else ""
    return {
        "//": f"As main.tf.json: terraform init && terraform apply{package}",
        "terraform": {
            "required_providers": {"aws": {"source": "hashicorp/aws", "version": ">= 5.50"}}
        },
        "data": {
            "aws_caller_identity": {"current": {}},
            "aws_partition": {"current": {}},
            "aws_region": {"current": {}},
        },
        "variable": _variables(plan, runs=runs, vpc=vpc),
        "resource": made,
        "output": {
            "queue_url": {"value": _ref("aws_sqs_queue.queue.url")},
            "rule_arn": {"value": _ref("aws_cloudwatch_event_rule.rule.arn")},
        },
    }


def _ref(path: str) -> str:
    return f"${{{path}}}"


def _escaped(text: str) -> str:
    """A text of the user's own, in which nothing is to be filled in."""
    return text.replace("${", "$${").replace("%{", "%%{")


def _reached(plan: Plan, *, runs: bool, vpc: bool) -> rights.Reach:
    table = plan.table is not None
    return rights.Reach(
        queue=_ref("aws_sqs_queue.queue.arn"),
        dead=_ref("aws_sqs_queue.dead.arn"),
        undelivered=_ref("aws_sqs_queue.undelivered.arn"),
        table=_ref("aws_dynamodb_table.store.arn") if table else None,
        index=_ref("aws_dynamodb_table.store.arn") + f"/index/{INDEX}" if table else None,
        log=_ref("aws_cloudwatch_log_group.function.arn") + ":*" if runs else None,
        vpc=vpc,
        **rights.outlets(plan, HERE),
    )


def _queues(plan: Plan) -> dict[str, Any]:
    arns = {key: _ref(f"aws_sqs_queue.{key}.arn") for key in ("queue", "dead", "undelivered")}
    settings = {
        "queue": (plan.queue, resources.queue_settings(plan, arns["dead"])),
        # By its name, since the queue itself already refers to its dead-letter queue.
        "dead": (plan.dead, resources.dead_settings(plan, HERE.queue(plan.queue))),
        "undelivered": (plan.undelivered, resources.kept_settings(plan.undelivered)),
    }
    if plan.letterbox:
        settings["letters"] = (plan.letterbox, resources.kept_settings(plan.letterbox))
    rule = _ref("aws_cloudwatch_event_rule.rule.arn")
    return {
        "aws_sqs_queue": {
            key: {
                "name": name,
                **{_NAMES[setting]: _flat(value) for setting, value in said.items()},
                **_KEPT,
            }
            for key, (name, said) in settings.items()
        },
        "aws_sqs_queue_policy": {
            key: {
                "queue_url": _ref(f"aws_sqs_queue.{key}.url"),
                "policy": json.dumps(
                    {
                        "Version": resources.VERSION,
                        "Statement": [resources.let_in(plan, arns[key], rule)],
                    }
                ),
            }
            for key in ("queue", "undelivered")
        },
    }


def _flat(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, dict) else value


def _rule(plan: Plan) -> dict[str, Any]:
    queue, undelivered = (_ref(f"aws_sqs_queue.{key}.arn") for key in ("queue", "undelivered"))
    said = resources.target(plan, queue, undelivered)
    target = {
        "rule": _ref("aws_cloudwatch_event_rule.rule.name"),
        "event_bus_name": plan.bus,
        "target_id": said["Id"],
        "arn": queue,
        "retry_policy": {
            "maximum_retry_attempts": said["RetryPolicy"]["MaximumRetryAttempts"],
            "maximum_event_age_in_seconds": said["RetryPolicy"]["MaximumEventAgeInSeconds"],
        },
        "dead_letter_config": {"arn": undelivered},
        # What it sends before it is let in is refused.
        "depends_on": ["aws_sqs_queue_policy.queue", "aws_sqs_queue_policy.undelivered"],
    }
    if plan.fifo:
        target["sqs_target"] = {"message_group_id": said["SqsParameters"]["MessageGroupId"]}
    return {
        "aws_cloudwatch_event_rule": {
            "rule": {
                "name": plan.rule,
                "event_bus_name": plan.bus,
                "event_pattern": _escaped(json.dumps(plan.pattern)),
            }
        },
        "aws_cloudwatch_event_target": {"queue": target},
    }


def _table(plan: Plan) -> dict[str, Any]:
    assert plan.table is not None
    said = resources.table_settings(plan)
    (index,) = said["GlobalSecondaryIndexes"]
    keys = {key["KeyType"]: key["AttributeName"] for key in index["KeySchema"]}
    return {
        "name": plan.table.name,
        "billing_mode": said["BillingMode"],
        "hash_key": said["KeySchema"][0]["AttributeName"],
        "attribute": [
            {"name": it["AttributeName"], "type": it["AttributeType"]}
            for it in said["AttributeDefinitions"]
        ],
        "global_secondary_index": {
            "name": index["IndexName"],
            "hash_key": keys["HASH"],
            "range_key": keys["RANGE"],
            "projection_type": index["Projection"]["ProjectionType"],
            "non_key_attributes": index["Projection"]["NonKeyAttributes"],
        },
        "ttl": {
            "attribute_name": said["TimeToLiveSpecification"]["AttributeName"],
            "enabled": True,
        },
        **_KEPT,
    }


def _policy(role: rights.Role, reach: rights.Reach, plan: Plan) -> dict[str, Any]:
    return {
        "name": f"{plan.name}-{role}",
        "description": f"eventonce: {rights.MEANS[role]}",
        "policy": json.dumps(rights.policy(role, reach)),
    }


def _function(plan: Plan, reach: rights.Reach, *, vpc: bool) -> dict[str, dict[str, Any]]:
    made: dict[str, Any] = {
        "function_name": plan.name,
        "filename": _ref("var.package"),
        "source_code_hash": _ref("filebase64sha256(var.package)"),
        "handler": function.HANDLER,
        "runtime": function.RUNTIME,
        "architectures": [function.ARCHITECTURE],
        "memory_size": function.MEMORY,
        "timeout": plan.timeout,
        "role": _ref("aws_iam_role.function.arn"),
        "environment": {"variables": function.environment(plan, "${var.store_uri}")},
        "depends_on": ["aws_cloudwatch_log_group.function", "aws_iam_role_policy.function"],
    }
    if vpc:
        made["vpc_config"] = {
            "subnet_ids": _ref("var.subnet_ids"),
            "security_group_ids": _ref("var.security_group_ids"),
        }
    return {
        "aws_cloudwatch_log_group": {
            "function": {
                "name": f"/aws/lambda/{plan.name}",
                "retention_in_days": function.LOGS_KEPT,
                **_KEPT,
            }
        },
        "aws_iam_role": {
            "function": {
                "name": f"{plan.name}-function",
                "assume_role_policy": json.dumps(function.TRUST),
            }
        },
        "aws_iam_role_policy": {
            "function": {
                "name": "eventonce",
                "role": _ref("aws_iam_role.function.id"),
                "policy": json.dumps(rights.policy("lambda", reach)),
            }
        },
        "aws_lambda_function": {"function": made},
        "aws_lambda_event_source_mapping": {
            "queue": {
                "event_source_arn": _ref("aws_sqs_queue.queue.arn"),
                "function_name": _ref("aws_lambda_function.function.arn"),
                "batch_size": function.BATCH,
                "function_response_types": ["ReportBatchItemFailures"],
            }
        },
    }


def _variables(plan: Plan, *, runs: bool, vpc: bool) -> dict[str, Any]:
    said: dict[str, Any] = {
        "alarm_topic_arn": {
            "type": "string",
            "default": "",
            "description": "An SNS topic that is told of alarms; nobody is, if empty",
        }
    }
    if runs:
        said["package"] = {"type": "string", "description": "The function's code, a zip file"}
    if runs and plan.table is None:
        means = function.STORE_MEANS
        said["store_uri"] = {"type": "string", "sensitive": True, "description": means}
    if vpc:
        said |= network.terraform_variables(plan)
    return said
