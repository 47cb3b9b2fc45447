"""What somebody must be told of, as CloudWatch alarms: data that both templates print."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from eventonce.core.reasons import GIVEN_UP
from eventonce.infra.plan import DEFAULT_BUS, Plan

MINUTE: Final = 60
LATE: Final = 3_600
"""Seconds that the oldest message may wait: an hour behind is an outage, or too few consumers, and
leaves days before the queue drops it."""

COUNTED: Final = "GivenUp"
"""The metric that a function's log is counted into, a line an event."""

PATTERN: Final = f'"{GIVEN_UP}"'
"""A phrase, and no field: it is the same in a log of text and in one of JSON."""


class Alarm(msgspec.Struct, frozen=True):
    """One metric that must not be above its threshold."""

    id: str
    means: str
    namespace: str
    metric: str
    dimensions: Mapping[str, Any]
    statistic: str = "Sum"
    above: int = 0
    period: int = 5 * MINUTE


def alarms(plan: Plan, function: Any = None) -> list[Alarm]:
    """All of them; the function as a template names it, if there is one."""
    of_rule = {"RuleName": plan.rule}
    if plan.bus != DEFAULT_BUS:
        # Without it the metric is that of the default bus.
        of_rule["EventBusName"] = plan.bus
    found = [
        Alarm(
            "DeadLetters",
            "Messages were received too often and given up: `eventonce letters` shows them.",
            "AWS/SQS",
            "ApproximateNumberOfMessagesVisible",
            {"QueueName": plan.dead},
            statistic="Maximum",
        ),
        Alarm(
            "Undelivered",
            "EventBridge could not deliver events: look at the queue's policy and key.",
            "AWS/SQS",
            "ApproximateNumberOfMessagesVisible",
            {"QueueName": plan.undelivered},
            statistic="Maximum",
        ),
        Alarm(
            "Lost",
            "EventBridge could not even keep events that it could not deliver.",
            "AWS/Events",
            "InvocationsFailedToBeSentToDlq",
            of_rule,
        ),
        Alarm(
            "Late",
            "The oldest message waits for more than an hour: the consumer is down or too slow.",
            "AWS/SQS",
            "ApproximateAgeOfOldestMessage",
            {"QueueName": plan.queue},
            statistic="Maximum",
            above=LATE,
        ),
    ]
    if plan.letterbox:
        found.append(
            Alarm(
                "Letters",
                "Events were given up: `eventonce letters` shows them, and why.",
                "AWS/SQS",
                "ApproximateNumberOfMessagesVisible",
                {"QueueName": plan.letterbox},
                statistic="Maximum",
            )
        )
    if function is not None:
        of_function = {"FunctionName": function}
        found += [
            Alarm(
                COUNTED,
                "Events were given up: the function's log says why, `eventonce letters` has them.",
                _namespace(plan),
                COUNTED,
                {},
            ),
            Alarm("Errors", "The function fails as a whole.", "AWS/Lambda", "Errors", of_function),
            Alarm(
                "Throttles",
                "The function may not run as often at once as it should.",
                "AWS/Lambda",
                "Throttles",
                of_function,
            ),
        ]
    if plan.table is not None:
        found += [
            Alarm(
                f"Table{kind}Throttles",
                "The table is throttled: look for a hot key, and at the account's limits.",
                "AWS/DynamoDB",
                f"{kind}ThrottleEvents",
                {"TableName": plan.table.name},
            )
            for kind in ("Read", "Write")
        ]
    return found


def _namespace(plan: Plan) -> str:
    """Of a name of its own: a phrase in a log has no dimensions to tell two consumers by."""
    return f"eventonce/{plan.name}"


def sam_count(plan: Plan, log: Any) -> dict[str, Any]:
    """The metric filter as CloudFormation has it."""
    counted = {"MetricNamespace": _namespace(plan), "MetricName": COUNTED, "MetricValue": "1"}
    return {
        "Type": "AWS::Logs::MetricFilter",
        "Properties": {
            "LogGroupName": log,
            "FilterPattern": PATTERN,
            "MetricTransformations": [counted],
        },
    }


def terraform_count(plan: Plan, log: str) -> dict[str, Any]:
    """The metric filter as Terraform has it."""
    counted = {"namespace": _namespace(plan), "name": COUNTED, "value": "1"}
    return {
        "name": f"{plan.name}-{COUNTED}",
        "log_group_name": log,
        "pattern": PATTERN,
        "metric_transformation": counted,
    }


def sam_topic() -> tuple[dict[str, Any], dict[str, Any]]:
    """The parameter that names who is told, and the condition that there is somebody."""
    parameter = {
        "Type": "String",
        "Default": "",
        "Description": "An SNS topic that is told of alarms; nobody is, if empty",
    }
    condition = {"Fn::Not": [{"Fn::Equals": [{"Ref": "AlarmTopicArn"}, ""]}]}
    return {"AlarmTopicArn": parameter}, {"HasAlarmTopic": condition}


def for_sam(found: Sequence[Alarm]) -> dict[str, Any]:
    """The alarms as CloudFormation has them."""
    told = {"Fn::If": ["HasAlarmTopic", [{"Ref": "AlarmTopicArn"}], {"Ref": "AWS::NoValue"}]}
    return {
        f"{alarm.id}Alarm": {
            "Type": "AWS::CloudWatch::Alarm",
            "Properties": {
                "AlarmDescription": alarm.means,
                "Namespace": alarm.namespace,
                "MetricName": alarm.metric,
                "Dimensions": [
                    {"Name": name, "Value": value} for name, value in alarm.dimensions.items()
                ],
                "Statistic": alarm.statistic,
                "Period": alarm.period,
                "EvaluationPeriods": 1,
                "Threshold": alarm.above,
                "ComparisonOperator": "GreaterThanThreshold",
                "TreatMissingData": "notBreaching",
                "AlarmActions": told,
            },
        }
        for alarm in found
    }


def for_terraform(found: Sequence[Alarm], name: str) -> dict[str, Any]:
    """The alarms as Terraform has them."""
    return {
        alarm.id.lower(): {
            "alarm_name": f"{name}-{alarm.id}",
            "alarm_description": alarm.means,
            "namespace": alarm.namespace,
            "metric_name": alarm.metric,
            "dimensions": alarm.dimensions,
            "statistic": alarm.statistic,
            "period": alarm.period,
            "evaluation_periods": 1,
            "threshold": alarm.above,
            "comparison_operator": "GreaterThanThreshold",
            "treat_missing_data": "notBreaching",
            "alarm_actions": '${var.alarm_topic_arn == "" ? [] : [var.alarm_topic_arn]}',
        }
        for alarm in found
    }
