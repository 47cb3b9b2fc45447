"""The templates: right by their own linters, and the same resources that `apply` makes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from cfnlint.api import lint
from cfnlint.config import ManualArgs
from cfnlint.decode.cfn_yaml import loads

from eventonce.cli import main
from eventonce.core.reasons import GIVEN_UP
from eventonce.infra import resources, rights, sam, terraform, yaml
from eventonce.infra.plan import Infra, Plan, planned

ROLES: list[rights.Role] = ["lambda", "worker"]
BUS = "aws.partner/genesys.com/cloud/5a3b/prod"


def plan(*, store: str = "", letters: str = "", sinks: tuple[str, ...] = (), **said: Any) -> Plan:
    infra = Infra(**{"source": "aws.partner/genesys.com", **said})
    return planned(infra, name="calls", store=store, letters=letters, sinks=sinks)


PLANS = {
    "plain": plan(),
    "fifo": plan(fifo=True, bus=BUS),
    "redis": plan(store="redis://cache/0"),
    "busy": plan(letters="sqs://kept.fifo", sinks=("sqs://out", "events://orders")),
    "all": plan(fifo=True, bus=BUS, letters="sqs://kept", sinks=("sqs://out", "events://orders")),
}
CASES = list(product(PLANS, ROLES, [False, True]))


@pytest.fixture(params=CASES, ids=lambda case: f"{case[0]}-{case[1]}" + "-vpc" * case[2])
def case(request: pytest.FixtureRequest) -> tuple[Plan, rights.Role, bool]:
    name, role, vpc = request.param
    return PLANS[name], role, vpc


@pytest.mark.parametrize(
    ("name", "role", "vpc"),
    [
        ("plain", "lambda", False),
        ("all", "lambda", True),
        ("redis", "worker", True),
    ],
)
def test_cfn_lint_finds_nothing_in_what_sam_prints(name: str, role: rights.Role, vpc: bool) -> None:
    printed = yaml.dump(sam.template(PLANS[name], role, vpc=vpc))
    found = lint(printed, config=ManualArgs(regions=["eu-central-1"]))
    assert [str(match) for match in found] == []


def test_what_is_printed_as_yaml_is_read_as_the_same(case: tuple[Plan, rights.Role, bool]) -> None:
    made, role, vpc = case
    template = sam.template(made, role, vpc=vpc)
    assert json.loads(json.dumps(loads(yaml.dump(template)))) == template


def test_yaml_quotes_what_a_reader_would_take_for_something_else() -> None:
    odd = {"a: b": ["yes", "No", "1", "", "- x", "#", "null", "é", 'say "x"\n'], "n": [{}, [], 1]}
    assert json.loads(json.dumps(loads(yaml.dump(odd)))) == odd


@pytest.mark.parametrize("name", PLANS)
def test_sam_has_the_resources_of_apply(name: str) -> None:
    made = PLANS[name]
    template = sam.template(made)["Resources"]
    dead, undelivered = ({"Fn::GetAtt": [key, "Arn"]} for key in ("DeadQueue", "UndeliveredQueue"))
    queue = {"Fn::GetAtt": ["Queue", "Arn"]}
    assert template["Queue"]["Properties"] == {
        "QueueName": made.queue,
        **resources.queue_settings(made, dead),
    }
    (target,) = template["Rule"]["Properties"]["Targets"]
    assert target == resources.target(made, queue, undelivered)
    assert template["Rule"]["Properties"]["EventPattern"] == made.pattern
    here = "arn:${AWS::Partition}:events:${AWS::Region}:${AWS::AccountId}"
    rule = f"{here}:rule/{BUS}/calls" if made.bus == BUS else f"{here}:rule/calls"
    for key in ("Queue", "UndeliveredQueue"):
        (said,) = template[f"{key}Policy"]["Properties"]["PolicyDocument"]["Statement"]
        assert said["Condition"] == {"ArnEquals": {"aws:SourceArn": {"Fn::Sub": rule}}}
        assert f"{key}Policy" in template["Rule"]["DependsOn"]
    assert ("Table" in template) == (made.table is not None)
    assert ("LetterQueue" in template) == bool(made.letterbox)


def test_the_function_gives_back_single_messages_and_has_the_time_it_needs() -> None:
    template = sam.template(plan(timeout=45))["Resources"]
    function = template["Function"]["Properties"]
    (event,) = function["Events"].values()
    assert event["Properties"]["FunctionResponseTypes"] == ["ReportBatchItemFailures"]
    assert function["Timeout"] == 45
    assert template["Queue"]["Properties"]["VisibilityTimeout"] >= 6 * function["Timeout"]
    written = terraform.document(plan(timeout=45))["resource"]
    mapping = written["aws_lambda_event_source_mapping"]["queue"]
    assert mapping["function_response_types"] == ["ReportBatchItemFailures"]
    assert written["aws_lambda_function"]["function"]["timeout"] == 45
    assert written["aws_sqs_queue"]["queue"]["visibility_timeout_seconds"] >= 6 * 45


def test_queues_table_and_logs_outlive_the_stack() -> None:
    made = sam.template(PLANS["busy"])["Resources"].values()
    kept = ("AWS::SQS::Queue", "AWS::DynamoDB::Table", "AWS::Logs::LogGroup")
    assert {it["Type"] for it in made if "DeletionPolicy" in it} == set(kept)
    for it in made:
        if it["Type"] in kept:
            assert it["DeletionPolicy"] == it["UpdateReplacePolicy"] == "Retain"
    written = terraform.document(PLANS["busy"])["resource"]
    for kind in ("aws_sqs_queue", "aws_dynamodb_table", "aws_cloudwatch_log_group"):
        for one in written[kind].values():
            assert one["lifecycle"] == {"prevent_destroy": True}


def test_every_parameter_says_what_it_is() -> None:
    made = PLANS["all"]
    for said in sam.template(made, vpc=True)["Parameters"].values():
        assert said["Description"]
    for said in terraform.document(made, vpc=True)["variable"].values():
        assert said["description"]


@pytest.mark.parametrize("role", ROLES)
def test_both_templates_watch_what_can_go_wrong(role: rights.Role) -> None:
    expected = {
        "ApproximateNumberOfMessagesVisible",
        "ApproximateAgeOfOldestMessage",
        "InvocationsFailedToBeSentToDlq",
        "ReadThrottleEvents",
        "WriteThrottleEvents",
    } | ({"Errors", "Throttles", "GivenUp"} if role == "lambda" else set())
    made = PLANS["fifo"]
    alarms = [
        it["Properties"]
        for it in sam.template(made, role)["Resources"].values()
        if it["Type"] == "AWS::CloudWatch::Alarm"
    ]
    assert {alarm["MetricName"] for alarm in alarms} == expected
    watched = terraform.document(made, role)["resource"]["aws_cloudwatch_metric_alarm"]
    assert {alarm["metric_name"] for alarm in watched.values()} == expected
    assert watched["deadletters"]["dimensions"] == {"QueueName": made.dead}
    assert watched["lost"]["dimensions"] == {"EventBusName": BUS, "RuleName": made.rule}


@pytest.mark.parametrize("name", PLANS)
def test_what_a_function_gives_up_is_counted_from_its_log_and_raises_an_alarm(name: str) -> None:
    """With letters in the table, which has no metric of them, nothing else tells anybody."""
    made = PLANS[name]
    template = sam.template(made)["Resources"]
    counted, alarm = (template[key]["Properties"] for key in ("GivenUp", "GivenUpAlarm"))
    (metric,) = counted["MetricTransformations"]
    assert counted["LogGroupName"] == {"Ref": "LogGroup"}
    assert counted["FilterPattern"] == f'"{GIVEN_UP}"'
    assert metric["MetricNamespace"] == alarm["Namespace"] == "eventonce/calls"
    assert metric["MetricName"] == alarm["MetricName"]
    assert alarm["Threshold"] == 0
    written = terraform.document(made)["resource"]
    same = written["aws_cloudwatch_log_metric_filter"]["function"]
    watched = written["aws_cloudwatch_metric_alarm"]["givenup"]
    assert same["pattern"] == counted["FilterPattern"]
    assert same["metric_transformation"]["namespace"] == watched["namespace"] == "eventonce/calls"
    assert same["metric_transformation"]["name"] == watched["metric_name"]


ARGUMENTS = {
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
    "aws_iam_role_policy": "name role policy",
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
"""What the provider's own pages list. There is no Terraform here to ask."""

EVERYWHERE = {"count", "depends_on", "lifecycle"}


def test_terraform_is_given_only_arguments_that_it_has(
    case: tuple[Plan, rights.Role, bool],
) -> None:
    made, role, vpc = case
    written = terraform.document(made, role, vpc=vpc)
    for kind, found in written["resource"].items():
        for name, said in found.items():
            unknown = said.keys() - set(ARGUMENTS[kind].split()) - EVERYWHERE
            assert not unknown, f"{kind}.{name}"


def texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from texts(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from texts(inner)


def test_every_reference_in_terraform_leads_somewhere(
    case: tuple[Plan, rights.Role, bool],
) -> None:
    made, role, vpc = case
    written = json.loads(json.dumps(terraform.document(made, role, vpc=vpc)))
    declared = {f"var.{name}" for name in written["variable"]}
    for kind, found in written["resource"].items():
        declared |= {f"{kind}.{name}" for name in found}
    for kind, found in written["data"].items():
        declared |= {f"data.{kind}.{name}" for name in found}
    used = set()
    for text in texts(written):
        for expression in re.findall(r"\$\{([^}]*)\}", text):
            used |= set(re.findall(r"(?:data\.)?\baws_\w+\.\w+|\bvar\.\w+", expression))
    for found in written["resource"].values():
        for said in found.values():
            used |= set(said.get("depends_on", ()))
    assert used <= declared
    unused = {name for name in declared - used if name.startswith(("var.", "data."))}
    assert unused <= {"data.aws_partition.current", "data.aws_caller_identity.current"}


@pytest.mark.parametrize("name", PLANS)
def test_terraform_says_what_sam_says(name: str) -> None:
    made = PLANS[name]
    written = terraform.document(made)["resource"]
    said = resources.queue_settings(made, "${aws_sqs_queue.dead.arn}")
    queue = written["aws_sqs_queue"]["queue"]
    assert json.loads(queue["redrive_policy"]) == said["RedrivePolicy"]
    assert queue["message_retention_seconds"] == said["MessageRetentionPeriod"]
    rule = "${aws_cloudwatch_event_rule.rule.arn}"
    for key in ("queue", "undelivered"):
        policy = json.loads(written["aws_sqs_queue_policy"][key]["policy"])
        assert policy["Statement"][0]["Condition"] == {"ArnEquals": {"aws:SourceArn": rule}}
    pattern = written["aws_cloudwatch_event_rule"]["rule"]["event_pattern"]
    assert json.loads(pattern) == made.pattern
    mine = json.loads(written["aws_iam_role_policy"]["function"]["policy"])
    role = sam.template(made)["Resources"]["FunctionRole"]["Properties"]["Policies"][0]
    theirs = role["PolicyDocument"]["Statement"]
    assert [it["Action"] for it in mine["Statement"]] == [it["Action"] for it in theirs]


def test_a_pattern_with_a_dollar_is_not_filled_in_by_terraform() -> None:
    made = plan(pattern={"detail": {"price": ["${x}", "%{y}"]}})
    rule = terraform.document(made)["resource"]["aws_cloudwatch_event_rule"]["rule"]
    assert rule["event_pattern"] == json.dumps({"detail": {"price": ["$${x}", "%%{y}"]}})


@pytest.mark.parametrize("role", ["lambda", "worker", "operate", "send", "apply"])
def test_no_policy_reaches_beyond_what_it_names(role: rights.Role) -> None:
    made = PLANS["busy"]
    reach = rights.named(made, region="eu-central-1", account="123456789012")
    policy = rights.policy(role, reach)
    for said in policy["Statement"]:
        assert all("*" not in action for action in said["Action"])
        for arn in texts(said["Resource"]):
            service, resource = arn.split(":", 5)[2], arn.split(":", 5)[5]
            assert arn.split(":")[3:5] == ["eu-central-1", "123456789012"]
            # A log group's streams are the one thing whose names nobody knows before.
            assert "*" not in resource or service == "logs"


def test_only_a_function_in_a_vpc_may_do_something_to_everything() -> None:
    """Lambda takes no narrower resource for the network interfaces it makes."""
    for vpc in (False, True):
        made = sam.template(plan(), vpc=vpc)["Resources"]["FunctionRole"]["Properties"]
        said = made["Policies"][0]["PolicyDocument"]["Statement"]
        assert [it["Sid"] for it in said if it["Resource"] == "*"] == ["Network"] * vpc


def test_the_command_line_prints_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "eventonce.toml").write_text(
        'name = "calls"\npresets = ["genesys"]\n[worker]\n'
        'queue = "sqs://calls-in?region=eu-central-1"\n'
    )

    def printed(*args: str) -> str:
        with pytest.raises(SystemExit) as stop:
            main(["infra", *args])
        assert not stop.value.code
        return capsys.readouterr().out

    as_yaml, as_json = printed("sam"), printed("sam", "--json")
    assert json.loads(json.dumps(loads(as_yaml))) == json.loads(as_json)
    template = json.loads(as_json)["Resources"]
    assert template["Queue"]["Properties"]["QueueName"] == "calls-in", "the worker's own"
    assert "Function" not in json.loads(printed("sam", "--role", "worker", "--json"))["Resources"]
    written = json.loads(printed("terraform", "--fifo"))
    assert written["resource"]["aws_sqs_queue"]["queue"]["name"] == "calls-in.fifo"
    policy = json.loads(printed("iam", "--account", "123456789012"))
    queue = "arn:aws:sqs:eu-central-1:123456789012:calls-in"
    assert queue in [said["Resource"] for said in policy["Statement"]]
    far = json.loads(printed("iam", "--region", "cn-north-1"))
    assert "arn:aws-cn:sqs:cn-north-1:*:calls-in" in [it["Resource"] for it in far["Statement"]]
