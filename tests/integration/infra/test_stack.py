"""`eventonce infra apply` against an emulated CloudFormation: deployed, updated, rolled back.

The emulator's change sets list resources whose condition does not hold, such as a worker's
function; it makes none of them. AWS lists only the resources that it changes.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError, WaiterError

from eventonce.cli import main
from eventonce.errors import ConfigError, EventonceError, SourceUnavailable
from eventonce.infra.stack import _wait
from eventonce.stores.dynamodb import DynamoDBStore
from tests.integration.infra.account import (
    HERE,
    PARTNER,
    SOURCE,
    Client,
    Deploy,
    attributes,
    between,
    delivered,
    put,
    queues,
    received,
)
from tests.servers.aws import REGION


def stack(client: Client, name: str) -> str:
    """The stack's status, empty if there is none."""
    try:
        (found,) = client("cloudformation").describe_stacks(StackName=name)["Stacks"]
    except ClientError:
        return ""
    return str(found["StackStatus"])


@pytest.mark.parametrize("fifo", [False, True])
def test_an_event_goes_from_the_bus_by_the_rule_into_the_queue(
    deployed: Deploy, name: str, client: Client, fifo: bool
) -> None:
    deployed(bus=f"bus-{name}", fifo=fifo)
    for source in (SOURCE, "com.example.other"):
        put(client("events"), f"bus-{name}", source)
    event = received(client("sqs"), f"{name}.fifo" if fifo else name)
    assert (event["source"], event["detail"]) == (SOURCE, {"n": 1})


@pytest.mark.parametrize("fifo", [False, True])
def test_a_second_deployment_has_no_steps(
    deployed: Deploy, name: str, endpoint: str, fifo: bool
) -> None:
    said = {"bus": f"bus-{name}", "fifo": fifo, "store": f"dynamodb://{name}"}
    first, second = deployed(**said), deployed(**said)
    assert "add Bus (AWS::Events::EventBus)" in first.steps
    assert second.steps == []
    assert second.resources == first.resources
    assert first.resources["QueueArn"] == HERE.queue(f"{name}.fifo" if fifo else name)
    store = DynamoDBStore.from_uri(f"dynamodb://{name}?region={REGION}&endpoint={endpoint}")
    # The emulator's CloudFormation ignores a table's expiry, and nothing else.
    assert ["expire" in str(found) for found in store.check() if not found.fine] == [True]
    store.close()


def test_a_dry_run_shows_the_change_set_and_leaves_nothing(
    deployed: Deploy, name: str, client: Client
) -> None:
    said = {"bus": f"bus-{name}", "store": f"dynamodb://{name}"}
    dry = deployed(dry_run=True, **said)
    assert stack(client, name) == ""
    assert queues(client("sqs"), name) == set()
    assert not client("events").list_event_buses(NamePrefix=f"bus-{name}")["EventBuses"]
    assert name not in client("dynamodb").list_tables()["TableNames"]
    assert deployed(**said).steps == dry.steps
    assert deployed(dry_run=True, **said).steps == []
    assert deployed(dry_run=True, **said, timeout=30).steps != []
    assert stack(client, name) == "CREATE_COMPLETE"
    assert not client("cloudformation").list_change_sets(StackName=name)["Summaries"][1:]


def test_an_update_of_one_parameter_changes_no_other_attribute(
    deployed: Deploy, name: str, client: Client
) -> None:
    def seen() -> dict[str, Any]:
        sqs, rule = client("sqs"), client("events").describe_rule(Name=name)
        found = {it: attributes(sqs, it) for it in queues(sqs, name)}
        return {**found, "rule": {key: rule[key] for key in ("Arn", "EventPattern", "State")}}

    deployed()
    before = seen()
    again = deployed(receives=7)
    assert [it for it in again.steps if not it.startswith("maybe")] == [
        "modify Queue (AWS::SQS::Queue): RedrivePolicy"
    ]
    after = seen()
    policy = json.loads(after[name]["RedrivePolicy"])
    assert int(policy["maxReceiveCount"]) == 7
    changed = {"RedrivePolicy", "LastModifiedTimestamp"}
    for resource, held in before.items():
        for key in held.keys() - changed:
            assert after[resource][key] == held[key], (resource, key)


def test_a_dashboard_of_a_workers_queues_is_created_only_on_request(
    deployed: Deploy, name: str, client: Client
) -> None:
    cloudwatch = client("cloudwatch")
    deployed(bus=f"bus-{name}")
    assert not cloudwatch.list_dashboards(DashboardNamePrefix=name)["DashboardEntries"]
    deployed(bus=f"bus-{name}", parameters={"CreateDashboard": "yes"})
    body = cloudwatch.get_dashboard(DashboardName=name)["DashboardBody"]
    shown = [metric for it in json.loads(body)["widgets"] for metric in it["properties"]["metrics"]]
    assert {metric[0] for metric in shown} == {"AWS/SQS", "AWS/Events"}
    assert {metric[3] for metric in shown if metric[0] == "AWS/SQS"} == {
        name,
        f"{name}-dead",
        f"{name}-undelivered",
    }
    on_bus = ["EventBusName", f"bus-{name}", "RuleName", name]
    assert ["AWS/Events", "Invocations", *on_bus] in shown


def test_a_failed_update_is_rolled_back_and_its_error_names_the_resource_and_the_reason(
    deployed: Deploy, name: str, client: Client
) -> None:
    deployed()
    with pytest.raises(EventonceError, match="rolled back") as failed:
        deployed(receives=7, pattern={"source": "not a list"})
    assert "Rule (AWS::Events::Rule): " in str(failed.value)
    assert "must be an object or an array" in str(failed.value)
    assert stack(client, name) == "UPDATE_ROLLBACK_COMPLETE"
    policy = json.loads(attributes(client("sqs"), name)["RedrivePolicy"])
    assert int(policy["maxReceiveCount"]) == 100
    with pytest.raises(EventonceError, match="rolled back") as again:
        deployed(parameters={"MaxReceiveCount": "0"})
    assert "Rule (" not in str(again.value), "what failed before is not told again"
    assert deployed(receives=7).steps


def test_a_first_deployment_that_fails_leaves_nothing_behind(
    deployed: Deploy, name: str, client: Client
) -> None:
    with pytest.raises(EventonceError, match=r"Queue \(AWS::SQS::Queue\): .*maxReceiveCount"):
        deployed(parameters={"MaxReceiveCount": "0"})
    assert stack(client, name) == ""
    assert queues(client("sqs"), name) == set()
    assert deployed().steps


def test_an_existing_resource_is_refused_with_its_remedies(
    deployed: Deploy, name: str, client: Client
) -> None:
    """AWS refuses queues and tables that exist as well; the emulator takes them over."""
    client("events").create_event_bus(Name=f"theirs-{name}")
    with pytest.raises(EventonceError, match="already exists") as refused:
        deployed(bus=f"theirs-{name}", parameters={"CreateBus": "yes"})
    for word in ("Bus (AWS::Events::EventBus)", "--name", "IMPORT", "--parameter TableArn=ARN"):
        assert word in str(refused.value)


def test_a_refused_change_set_is_reported_with_its_reason_and_leaves_no_stack(
    deployed: Deploy, name: str, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AWS refuses a change set with a resource that exists; the emulator refuses no such set."""

    def refused(*_: Any, **__: Any) -> None:
        reason = "failed: [AWS::EarlyValidation::ResourceExistenceCheck]"
        raise WaiterError("any", "any", {"Status": "FAILED", "StatusReason": reason})

    monkeypatch.setattr("eventonce.infra.stack._wait", refused)
    with pytest.raises(ConfigError, match="IMPORT") as told:
        deployed()
    assert "refused: failed: [AWS::EarlyValidation" in str(told.value)
    assert stack(client, name) == ""


def test_an_existing_table_may_be_named_instead_of_a_new_table(
    deployed: Deploy, name: str, client: Client
) -> None:
    given = {"TableName": "", "TableArn": HERE.table("kept")}
    made = deployed(store=f"dynamodb://{name}", parameters=given)
    assert name not in client("dynamodb").list_tables()["TableNames"]
    asked = {"PolicyArn": made.resources["OperatePolicyArn"], "VersionId": "v1"}
    document = client("iam").get_policy_version(**asked)["PolicyVersion"]["Document"]
    assert f"{HERE.table('kept')}/index/letters" in json.dumps(document)


def test_a_stack_of_another_program_is_left_unchanged(
    deployed: Deploy, name: str, client: Client
) -> None:
    theirs = {"Resources": {"Topic": {"Type": "AWS::SNS::Topic"}}}
    client("cloudformation").create_stack(StackName=name, TemplateBody=json.dumps(theirs))
    client("cloudformation").get_waiter("stack_create_complete").wait(StackName=name)
    with pytest.raises(ConfigError, match="not eventonce's"):
        deployed()
    assert stack(client, name) == "CREATE_COMPLETE"


def test_a_name_that_no_stack_can_have_is_refused(deployed: Deploy) -> None:
    with pytest.raises(ConfigError, match="name of a stack cannot be 'crm_sync'"):
        deployed(name="crm_sync")


def test_a_foreign_bus_stays_outside_the_stack_and_a_created_bus_is_kept(
    deployed: Deploy, name: str, client: Client
) -> None:
    cloudformation, events = client("cloudformation"), client("events")

    def created() -> list[str]:
        made = cloudformation.describe_stack_resources(StackName=name)["StackResources"]
        return [it["LogicalResourceId"] for it in made if "EventBus" in it["ResourceType"]]

    events.create_event_bus(Name=f"theirs-{name}")
    deployed(bus=f"theirs-{name}")
    assert created() == []
    for _ in range(2):
        deployed(bus=f"ours-{name}")
        assert created() == ["Bus"]
    deployed(bus=f"theirs-{name}")
    assert {it["Name"] for it in events.list_event_buses()["EventBuses"]} >= {
        f"ours-{name}",
        f"theirs-{name}",
    }


def test_queues_and_table_outlive_the_stack(deployed: Deploy, name: str, client: Client) -> None:
    deployed(store=f"dynamodb://{name}")
    held = queues(client("sqs"), name)
    client("cloudformation").delete_stack(StackName=name)
    client("cloudformation").get_waiter("stack_delete_complete").wait(StackName=name)
    assert queues(client("sqs"), name) == held != set()
    assert name in client("dynamodb").list_tables()["TableNames"]
    assert name not in {it["Name"] for it in client("events").list_rules()["Rules"]}


@pytest.mark.parametrize("bus", ["default", "own", PARTNER])
def test_the_queues_accept_messages_of_the_named_rules_and_of_no_other(
    deployed: Deploy, name: str, client: Client, bus: str
) -> None:
    """The emulator's EventBridge asks no policy. A policy that names the ARN of the bus, as
    tutorials have it, would refuse every message."""
    bus = bus if bus == "default" else f"{bus}-{name}"
    other = HERE.rule("elsewhere", name)
    deployed(bus=bus, parameters={"OtherRuleArns": other})
    rule = client("events").describe_rule(Name=name, EventBusName=bus)["Arn"]
    assert rule == HERE.rule(bus, name)
    for queue in (name, f"{name}-undelivered"):
        policy = attributes(client("sqs"), queue)["Policy"]
        arn = HERE.queue(queue)
        assert delivered(policy, arn, rule)
        assert delivered(policy, arn, other)
        assert not delivered(policy, arn, f"{rule}-other")
        assert not delivered(policy, f"{arn}-other", rule)
        for shown in (HERE.bus(bus), f"arn:aws:events:*:*:event-bus/{bus}"):
            assert not delivered(policy.replace(rule, shown), arn, rule)


def test_a_deployment_overtaken_by_another_asks_to_run_the_command_again(
    deployed: Deploy, name: str
) -> None:
    deployed()
    others: list[str] = []

    def overtaking(operation: str, _: Any) -> None:
        if operation == "ExecuteChangeSet" and not others:
            others.append("deploys")
            others.extend(deployed(receives=7).steps)

    with between(overtaking), pytest.raises(SourceUnavailable, match="run the command"):
        deployed(receives=7)
    assert len(others) > 1
    assert deployed(receives=7).steps == []


@pytest.mark.parametrize(
    ("code", "message", "error", "word"),
    [
        ("AccessDenied", "m", ConfigError, "infra iam"),
        ("Throttling", "m", SourceUnavailable, "throttling"),
        ("ValidationError", "m", ConfigError, "m"),
        (
            "ValidationError",
            "it is in UPDATE_IN_PROGRESS state",
            SourceUnavailable,
            "run the command",
        ),
        ("AlreadyExistsException", "m", SourceUnavailable, "run the command"),
    ],
)
def test_an_error_of_cloudformation_is_reported_with_its_remedy(
    deployed: Deploy, name: str, code: str, message: str, error: type[Exception], word: str
) -> None:
    def refusing(operation: str, _: Any) -> None:
        if operation == "CreateChangeSet":
            raise ClientError({"Error": {"Code": code, "Message": message}}, operation)

    with between(refusing), pytest.raises(error, match=rf"stack {name}: .*{word}"):
        deployed()


def test_a_deployment_with_an_unknown_end_is_not_reported_as_failed(
    deployed: Deploy, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(client: Any, waiter: str, **asked: str) -> None:
        if waiter == "stack_create_complete":
            raise WaiterError(waiter, "Max attempts exceeded", {})
        _wait(client, waiter, **asked)

    monkeypatch.setattr("eventonce.infra.stack._wait", lost)
    with pytest.raises(SourceUnavailable, match="run the command again to see"):
        deployed()


def test_a_missing_region_is_reported_with_its_option(
    deployed: Deploy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    with pytest.raises(ConfigError, match="--region"):
        deployed(region="")


def test_an_unreachable_cloudformation_is_reported(
    deployed: Deploy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eventonce.infra.stack.REQUEST_ATTEMPTS", 1)
    with pytest.raises(SourceUnavailable, match="not reached"):
        deployed(endpoint="http://127.0.0.1:1")


def test_the_command_prints_its_steps_and_the_next_commands(
    endpoint: str,
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("eventonce.toml").write_text(
        f'name = "{name}"\npresets = ["genesys"]\nstore = "dynamodb://{name}?region=us-east-1"\n'
        f'letters = "sqs://{name}-letters?region={REGION}"\n'
        f'[infra]\nbus = "bus-{name}"\n'
        f'queue = "sqs://{name}?region={REGION}&endpoint={endpoint}"\n'
    )

    def ran(*args: str) -> tuple[str, str]:
        with pytest.raises(SystemExit) as stop:
            main(["infra", "apply", *args])
        assert not stop.value.code
        return capsys.readouterr()

    out, err = ran("--dry-run")
    assert out.startswith("would add Bus (AWS::Events::EventBus)\n")
    assert "without --dry-run" in err
    out, err = ran()
    assert "\nadd LetterQueue (AWS::SQS::Queue)\n" in out
    assert f"{HERE.queue(name)}-letters" in out
    # EventBridge takes events of a partner's source only from the partner.
    assert f"the rule {name} on the bus bus-{name} matches no event of aws.par" in err
    assert f"eventonce send FILE --queue sqs://{name} " in err
    assert f"the table {name} is in another region" in err
    assert ran()[0].startswith(f"nothing to do: the stack {name} is up to date\n")
    told = json.loads(ran("--json")[0])
    assert (told["steps"], len(told["warnings"])) == ([], 2)
    assert told["resources"]["QueueArn"] == HERE.queue(name)
    _, err = ran("--source", SOURCE)
    assert f"eventonce send FILE --bus bus-{name}" in err
