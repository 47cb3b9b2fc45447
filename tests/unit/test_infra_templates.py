"""The SAM and Terraform templates: linted, consistent, and with everything that the code needs."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from typing import Any, get_args

import pytest

from eventonce import Rule
from eventonce.core.reasons import GIVEN_UP
from eventonce.infra import iam, template
from eventonce.infra.targets import Place
from eventonce.infra.template import CONSUMER, cloudformation, terraform, values
from eventonce.infra.topology import Infra, Topology, topology_of
from eventonce.metrics import names
from eventonce.metrics.emf import NAMESPACE
from eventonce.stores.dynamodb.codec import EXPIRY, KEY
from eventonce.stores.dynamodb.letters import INDEX, INDEX_ATTRIBUTES, INDEX_GROUP, INDEX_ORDER
from eventonce.types import SettleResult as Result
from eventonce.types import Status
from tests.unit.templates import lint, read_cloudformation, read_terraform

HERE = Place("eu-central-1", "123456789012")
CLOUDFORMATION, TERRAFORM = CONSUMER.cloudformation, CONSUMER.terraform
PARTNER = "aws.partner/genesys.com/cloud/5a3b/prod"
LISTED = "subnet-0a1b2c3d,subnet-1a1b2c3d"
BUSY = topology_of(
    Infra(bus=PARTNER, fifo=True, timeout=45),
    name="calls",
    letters="sqs://kept.fifo",
    keep_letters="90d",
    sinks=("sqs://out", "events://orders"),
)
GIVEN = {
    "AlarmTopicArn": "arn:aws:sns:eu-central-1:123456789012:alarms",
    "CreateBus": "partner",
    "CreateDashboard": "yes",
    "OtherRuleArns": "arn:aws:events:eu-central-1:123456789012:rule/other",
    "TableArn": "arn:aws:dynamodb:eu-central-1:123456789012:table/other",
    "LetterQueueArn": "arn:aws:sqs:eu-central-1:123456789012:other",
    "VpcId": "vpc-0a1b2c3d",
    "SubnetIds": LISTED,
    "SecurityGroupIds": "sg-0a1b2c3d",
    "RouteTableIds": "rtb-0a1b2c3d",
    "SqsEndpoint": "yes",
}
KEPT = 14 * 86_400
RETRY = "cloudwatch_event_target.queue.retry_policy"
EVENT = "Function.Events.Messages.Properties"
TABLE_INDEX = "dynamodb_table.store.global_secondary_index"
PASSED_OVER = "ignore_checks: [W1030, W1031]"


def filled(given: Mapping[str, str] = GIVEN, topology: Topology = BUSY) -> template.Values:
    return values(topology, "lambda", HERE, given)


@cache
def sam() -> dict[str, Any]:
    return read_cloudformation(CLOUDFORMATION)


def resources(kind: str) -> dict[str, dict[str, Any]]:
    return {name: it["Properties"] for name, it in sam()["Resources"].items() if it["Type"] == kind}


@cache
def module() -> dict[str, Any]:
    return read_terraform(TERRAFORM)


def named(blocks: list[dict[str, Any]]) -> dict[str, Any]:
    return {name: body for block in blocks for name, body in block.items()}


def made(kind: str) -> dict[str, Any]:
    return named([it[kind] for it in module()["resource"] if kind in it])


@pytest.mark.parametrize("text", [CLOUDFORMATION, cloudformation(filled())])
def test_cfn_lint_finds_nothing(text: str) -> None:
    if text != CLOUDFORMATION:
        # Where no parameter is empty, no check has to be ignored.
        assert PASSED_OVER in text
        text = text.replace(PASSED_OVER, "ignore_checks: []")
    assert lint(text) == []


def test_the_template_is_small_enough_for_one_request() -> None:
    assert len(CLOUDFORMATION.encode()) < 51_200


def test_both_templates_take_the_same_parameters_with_defaults_and_descriptions() -> None:
    said = sam()["Parameters"]
    ours = {name: it["Default"] for name, it in said.items() if "Default" in it}
    theirs = named(module()["variable"])
    # The path of the code is the only variable that is no parameter of SAM.
    assert theirs.pop("package")["default"] == "function.zip"
    typed = {name: template.typed(name, str(value)) for name, value in ours.items()}
    assert template.variables(typed) == {
        name: it["default"] for name, it in theirs.items() if "default" in it
    }
    assert all(it["Description"] for it in said.values())
    assert all(it["description"] for it in theirs.values())
    assert said["StoreUri"]["NoEcho"] is theirs["store_uri"]["sensitive"] is True


def test_the_printed_templates_differ_from_the_files_only_in_the_defaults() -> None:
    found = filled()
    printed = read_cloudformation(cloudformation(found))
    expected = {it["ParameterKey"]: it["ParameterValue"] for it in template.parameters(found)}
    defaults = {name: it.pop("Default", None) for name, it in printed["Parameters"].items()}
    assert {name: defaults[name] for name in expected} == expected
    plain = json.loads(json.dumps(sam()))
    for it in plain["Parameters"].values():
        it.pop("Default", None)
    assert printed == plain
    written = read_terraform(terraform(found))
    told = {name: it.pop("default", None) for name, it in named(written["variable"]).items()}
    wanted = template.variables(found)
    pattern = told.pop("event_pattern")
    assert json.loads(pattern.replace('\\"', '"')) == BUSY.pattern
    del wanted["event_pattern"]
    assert {name: told[name] for name in wanted} == wanted
    assert [it for it in written if it != "variable"] == [it for it in module() if it != "variable"]
    assert written["resource"] == module()["resource"]


def test_dollar_and_percent_signs_in_a_pattern_are_escaped_for_terraform() -> None:
    topology = topology_of(Infra(pattern={"detail": {"price": ["${x}", "%{y}"]}}), name="calls")
    assert r"[\"$${x}\", \"%%{y}\"]" in terraform(filled(topology=topology))


def resolved(value: Any, **conditions: bool) -> Any:
    """The value with its conditions decided, and references by the names they lead to."""
    if isinstance(value, list):
        decided = [resolved(it, **conditions) for it in value]
        return [it for it in decided if it != "AWS::NoValue"]
    if not isinstance(value, dict):
        return value
    if "Fn::If" in value:
        condition, yes, no = value["Fn::If"]
        return resolved(yes if conditions.get(condition, True) else no, **conditions)
    if "Ref" in value:
        return value["Ref"]
    return {name: resolved(it, **conditions) for name, it in value.items()}


@pytest.mark.parametrize("role", ["lambda", "worker", "operate"])
def test_both_templates_grant_the_actions_that_infra_iam_prints(role: iam.Role) -> None:
    expected = {it["Sid"]: it["Action"] for it in iam.policy(role, BUSY, HERE)["Statement"]}
    ours = resources("AWS::IAM::ManagedPolicy")
    document = ours["OperatePolicy" if role == "operate" else "ConsumerPolicy"]["PolicyDocument"]
    runs = role == "lambda"
    said = resolved(document["Statement"], RunsFunction=runs, FunctionIsInVpc=False)
    assert {it["Sid"]: it["Action"] for it in said} == expected
    local = named(module()["locals"])
    receive = re.search(r"receive = (\[.*?\])", TERRAFORM, re.DOTALL)
    assert receive is not None
    written = TERRAFORM.replace("local.receive", receive[1])
    block = written[written.index(f"    {role} = concat(") :].partition("\n    ])")[0]
    lists = re.findall(r"local\.(\w+)", block.partition("[")[0])
    shared = {it["Sid"]: it["Action"] for name in lists for it in local[name]}
    own = {
        sid: re.findall(r'"(\w+:\w+)"', actions)
        for sid, actions in re.findall(r'Sid +?= "(\w+)".*?Action += (\[.*?\])', block, re.DOTALL)
    }
    own.pop("Network", None)
    assert shared | own == expected


def test_only_a_function_in_a_vpc_has_a_statement_for_all_resources() -> None:
    for in_vpc in (False, True):
        document = resources("AWS::IAM::ManagedPolicy")["ConsumerPolicy"]["PolicyDocument"]
        said = resolved(document["Statement"], FunctionIsInVpc=in_vpc)
        assert [it["Sid"] for it in said if it["Resource"] == "*"] == ["Network"] * in_vpc


def test_the_apply_policy_has_only_actions_that_aws_publishes_for_the_resources() -> None:
    """CloudFormation has the permissions of its caller. There is no account to test this in."""
    from cfnlint.schema.manager import PROVIDER_SCHEMA_MANAGER  # see templates.py

    published: set[str] = set()
    for kind in {it["Type"] for it in sam()["Resources"].values()} - {"AWS::Serverless::Function"}:
        schema = PROVIDER_SCHEMA_MANAGER.get_resource_schema("eu-central-1", kind).schema
        for handler in schema.get("handlers", {}).values():
            published |= set(handler["permissions"])
    for said in iam.policy("apply", BUSY, HERE)["Statement"]:
        if said["Sid"] not in ("Stack", "Transform"):
            assert set(said["Action"]) <= published, said["Sid"]


def test_the_queue_policies_are_created_before_the_rule_that_sends() -> None:
    assert set(sam()["Resources"]["Rule"]["DependsOn"]) == set(resources("AWS::SQS::QueuePolicy"))
    target = made("aws_cloudwatch_event_target")["queue"]
    assert target["depends_on"] == [
        f"${{aws_sqs_queue_policy.{it}}}" for it in made("aws_sqs_queue_policy")
    ]
    for policy in made("aws_sqs_queue_policy").values():
        assert '{"aws:SourceArn" = local.rules}' in policy["policy"]


def at(tree: Any, path: str) -> Any:
    """The value at a path; a list with one element counts as that element."""
    for step in path.split("."):
        tree = tree[step]
        if isinstance(tree, list) and len(tree) == 1:
            (tree,) = tree
    return tree


@pytest.mark.parametrize(
    ("ours", "theirs", "value"),
    [
        ("Queue.MessageRetentionPeriod", "sqs_queue.queue.message_retention_seconds", 345_600),
        ("Queue.ReceiveMessageWaitTimeSeconds", "sqs_queue.queue.receive_wait_time_seconds", 20),
        ("DeadQueue.MessageRetentionPeriod", "sqs_queue.dead.message_retention_seconds", KEPT),
        (
            "UndeliveredQueue.MessageRetentionPeriod",
            "sqs_queue.undelivered.message_retention_seconds",
            KEPT,
        ),
        ("LetterQueue.MessageRetentionPeriod", "sqs_queue.letters.message_retention_seconds", KEPT),
        ("Rule.Targets.RetryPolicy.MaximumRetryAttempts", f"{RETRY}.maximum_retry_attempts", 185),
        (
            "Rule.Targets.RetryPolicy.MaximumEventAgeInSeconds",
            f"{RETRY}.maximum_event_age_in_seconds",
            86_400,
        ),
        ("Function.Handler", "lambda_function.function.handler", "function.handler"),
        ("Function.Runtime", "lambda_function.function.runtime", "python3.13"),
        ("Function.MemorySize", "lambda_function.function.memory_size", 256),
        (f"{EVENT}.BatchSize", "lambda_event_source_mapping.queue.batch_size", 10),
        (
            f"{EVENT}.FunctionResponseTypes",
            "lambda_event_source_mapping.queue.function_response_types",
            "ReportBatchItemFailures",
        ),
        ("LogGroup.RetentionInDays", "cloudwatch_log_group.function.retention_in_days", 30),
        ("Table.GlobalSecondaryIndexes.IndexName", f"{TABLE_INDEX}.name", INDEX),
        (
            "Table.GlobalSecondaryIndexes.Projection.NonKeyAttributes",
            f"{TABLE_INDEX}.non_key_attributes",
            *INDEX_ATTRIBUTES,
        ),
    ],
)
def test_both_templates_set_the_same_value(ours: str, theirs: str, value: Any) -> None:
    properties = {name: it.get("Properties") for name, it in sam()["Resources"].items()}
    kind = f"aws_{theirs.partition('.')[0]}"
    assert at(properties, ours) == at({kind: made(kind)}, f"aws_{theirs}") == value


def test_queues_are_encrypted_and_the_function_has_its_environment_variables() -> None:
    assert CLOUDFORMATION.count("SqsManagedSseEnabled: true") == len(made("aws_sqs_queue"))
    assert all(it["sqs_managed_sse_enabled"] is True for it in made("aws_sqs_queue").values())
    ours = resources("AWS::Serverless::Function")["Function"]["Environment"]["Variables"]
    theirs = at(made("aws_lambda_function"), "function.environment.variables")
    assert ours.keys() == theirs.keys()
    assert ours.keys() == {"EVENTONCE_NAME", "EVENTONCE_STORE", "EVENTONCE_METRICS"}


def test_the_table_has_the_keys_and_the_index_that_the_store_reads() -> None:
    said = sam()["Parameters"]
    assert (said["TableKey"]["Default"], said["TableExpiry"]["Default"]) == (KEY, EXPIRY)
    index = at(resources("AWS::DynamoDB::Table"), "Table.GlobalSecondaryIndexes")
    assert [it["AttributeName"] for it in index["KeySchema"]] == [INDEX_GROUP, INDEX_ORDER]
    store = made("aws_dynamodb_table")["store"]
    theirs = at(store, "global_secondary_index")
    assert (theirs["hash_key"], theirs["range_key"]) == (INDEX_GROUP, INDEX_ORDER)
    assert [it["name"] for it in store["attribute"]] == [
        "${var.table_key}",
        INDEX_GROUP,
        INDEX_ORDER,
    ]


def test_queues_table_logs_and_bus_are_kept_when_the_stack_is_deleted() -> None:
    kept = {it["Type"] for it in sam()["Resources"].values() if "DeletionPolicy" in it}
    assert kept == {
        "AWS::SQS::Queue",
        "AWS::DynamoDB::Table",
        "AWS::Logs::LogGroup",
        "AWS::Events::EventBus",
    }
    for it in sam()["Resources"].values():
        if it["Type"] in kept:
            policies = (it["DeletionPolicy"], it["UpdateReplacePolicy"])
            assert policies == ("RetainExceptOnCreate", "Retain")
    for kind in (
        "aws_sqs_queue",
        "aws_dynamodb_table",
        "aws_cloudwatch_log_group",
        "aws_cloudwatch_event_bus",
    ):
        for one in made(kind).values():
            assert one["lifecycle"] == [{"prevent_destroy": True}]


def test_both_templates_have_the_same_alarms() -> None:
    """The table has no metric of its dead letters: only the GivenUp alarm reports them."""
    alarms = {
        name.removesuffix("Alarm"): (it["MetricName"], it["Threshold"], it["AlarmDescription"])
        for name, it in resources("AWS::CloudWatch::Alarm").items()
    }
    assert len(alarms) == 10
    for name, (metric, threshold, means) in alarms.items():
        (kind,) = re.findall("^Table(Read|Write)", name) or [""]
        written = metric.replace(kind, "${kind}") if kind else metric
        written = "metric" if metric in ("Errors", "Throttles") else f'"{written}"'
        assert re.search(rf"metric += {re.escape(written)}\n", TERRAFORM), name
        assert f'"{means}"' in TERRAFORM
        assert threshold == (3600 if name == "Late" else 0)
    (counted,) = resources("AWS::Logs::MetricFilter").values()
    assert counted["FilterPattern"] == f'"{GIVEN_UP}"'
    written = made("aws_cloudwatch_log_metric_filter")["given_up"]
    assert written["pattern"].replace('\\"', '"') == f'"{GIVEN_UP}"'
    (metric,) = written["metric_transformation"]
    (transformation,) = counted["MetricTransformations"]
    assert transformation["MetricNamespace"] == {"Fn::Sub": "eventonce/${Name}"}
    assert metric["namespace"] == "eventonce/${var.name}"


ELSEWHERE = {"AWS/SQS", "AWS/Lambda", "AWS/Events"}


def boards(*, function: bool, default_bus: bool = False) -> list[dict[str, Any]]:
    """The dashboard of each template, with a name in place of each reference."""
    ours, values = resources("AWS::CloudWatch::Dashboard")["Dashboard"]["DashboardBody"]["Fn::Sub"]
    own = values["OfFunction"]["Fn::If"][1]["Fn::Sub"] if function else ""
    ours = ours.replace("${OfFunction}", own)
    ours = ours.replace("${OnBus}", "" if default_bus else '"EventBusName", "${BusName}", ')
    theirs = made("aws_cloudwatch_dashboard")["dashboard"]["dashboard_body"]
    condition = r'%{ if var.role == "lambda" ~}(.*?)%{ endif ~}'
    theirs = re.sub(condition, r"\1" if function else "", theirs, flags=re.DOTALL)
    (text,) = re.findall(r"<<-JSON\n(.*)JSON", theirs, re.DOTALL)
    bus = "" if default_bus else '"EventBusName", "${var.bus_name}", '
    text = text.replace("${local.on_bus}", bus)
    named = {
        "AWS::Region": "data.aws_region.current.name",
        "BusName": "var.bus_name",
        "ConsumerName": "var.consumer_name",
        "DeadQueue.QueueName": "aws_sqs_queue.dead.name",
        "Function": "var.name",
        "Queue.QueueName": "aws_sqs_queue.queue.name",
        "RuleName": "var.rule_name",
        "UndeliveredQueue.QueueName": "aws_sqs_queue.undelivered.name",
    }
    for mine, its in named.items():
        text = text.replace(f"${{{its}}}", f"${{{mine}}}")
    return [json.loads(ours), json.loads(text)]


@pytest.mark.parametrize("function", [True, False])
@pytest.mark.parametrize("default_bus", [True, False])
def test_both_templates_have_the_same_dashboard(function: bool, default_bus: bool) -> None:
    ours, theirs = boards(function=function, default_bus=default_bus)
    assert ours == theirs
    shown = [metric for widget in ours["widgets"] for metric in widget["properties"]["metrics"]]
    assert {metric[0] for metric in shown} <= {*ELSEWHERE, NAMESPACE}
    assert any(metric[0] == NAMESPACE for metric in shown) is function
    assert len({widget["properties"]["title"] for widget in ours["widgets"]}) == len(
        ours["widgets"]
    )


def test_the_dashboard_shows_every_metric_that_a_function_writes() -> None:
    board, _ = boards(function=True)
    shown = {
        metric[1]
        for widget in board["widgets"]
        for metric in widget["properties"]["metrics"]
        if metric[0] == NAMESPACE
    }
    values = {"status": get_args(Status), "call": ("claim", "settle"), "result": get_args(Result)}
    written = {
        metric.emf.format(**{label: value})
        for metric in names.METRICS
        if metric.emf
        for label in (*re.findall(r"{(\w+)}", metric.emf), "")[:1]
        for value in values.get(label, ("",))
    }
    assert shown == written


ARGUMENTS = {
    "aws_cloudwatch_dashboard": "dashboard_name dashboard_body",
    "aws_cloudwatch_event_bus": "name event_source_name",
    "aws_cloudwatch_event_rule": "name event_bus_name event_pattern",
    "aws_cloudwatch_event_target": "rule event_bus_name target_id arn retry_policy "
    "dead_letter_config sqs_target",
    "aws_cloudwatch_log_group": "name retention_in_days",
    "aws_cloudwatch_log_metric_filter": "name pattern log_group_name metric_transformation",
    "aws_cloudwatch_metric_alarm": "alarm_name alarm_description namespace metric_name dimensions "
    "statistic period evaluation_periods threshold comparison_operator treat_missing_data "
    "alarm_actions",
    "aws_dynamodb_table": "name billing_mode hash_key attribute global_secondary_index ttl",
    "aws_iam_policy": "name description policy",
    "aws_iam_role": "name assume_role_policy",
    "aws_iam_role_policy_attachment": "role policy_arn",
    "aws_lambda_event_source_mapping": "event_source_arn function_name batch_size "
    "function_response_types",
    "aws_lambda_function": "function_name filename source_code_hash handler runtime architectures "
    "memory_size timeout role environment vpc_config",
    "aws_sqs_queue": "name visibility_timeout_seconds message_retention_seconds "
    "receive_wait_time_seconds sqs_managed_sse_enabled fifo_queue content_based_deduplication "
    "redrive_policy redrive_allow_policy",
    "aws_sqs_queue_policy": "queue_url policy",
    "aws_vpc_endpoint": "vpc_endpoint_type service_name vpc_id subnet_ids security_group_ids "
    "private_dns_enabled route_table_ids",
}
"""The arguments that the provider's own pages list. Terraform itself is not installed here."""

EVERYWHERE = {"count", "depends_on", "dynamic", "for_each", "lifecycle"}


def test_the_terraform_template_has_only_arguments_of_the_provider() -> None:
    for block in module()["resource"]:
        ((kind, body),) = block.items()
        ((name, said),) = body.items()
        dynamic = {inner for it in said.get("dynamic", ()) for inner in it}
        unknown = (said.keys() | dynamic) - set(ARGUMENTS[kind].split()) - EVERYWHERE
        assert not unknown, f"{kind}.{name}"


def test_every_terraform_reference_is_declared_and_every_variable_is_used() -> None:
    declared = {f"var.{name}" for name in named(module()["variable"])}
    declared |= {f"local.{name}" for name in named(module()["locals"])}
    for prefix, blocks in (("", module()["resource"]), ("data.", module()["data"])):
        for block in blocks:
            declared |= {f"{prefix}{kind}.{name}" for kind, it in block.items() for name in it}
    code = re.sub(r"#.*", "", TERRAFORM)
    used = set(re.findall(r"(?:\bdata\.)?\baws_\w+\.\w+|\bvar\.\w+|\blocal\.\w+", code))
    assert used <= declared
    assert {it for it in declared - used if it.startswith(("var.", "data.", "local."))} == set()


def test_the_visibility_timeout_is_at_least_six_function_timeouts() -> None:
    assert filled()["Timeout"] == 45
    assert int(str(filled()["VisibilityTimeout"])) >= 6 * 45
    said = sam()["Parameters"]
    assert said["VisibilityTimeout"]["Default"] >= 6 * said["Timeout"]["Default"]


def test_the_largest_receive_count_is_more_than_ten_times_the_attempts_of_a_rule() -> None:
    attempts = Rule(name="any", key="detail.id").attempts
    assert sam()["Parameters"]["MaxReceiveCount"]["Default"] > 10 * attempts


def test_a_fact_is_remembered_for_longer_than_its_copies_can_be_under_way() -> None:
    """Four days of re-publishing, one of EventBridge's retries, and the queue's own."""
    kept = resources("AWS::SQS::Queue")["Queue"]["MessageRetentionPeriod"]
    under_way = 4 * 86_400 + 86_400 + kept
    assert Rule(name="any", key="detail.id").remember > under_way * 1000
