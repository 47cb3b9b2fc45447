"""The names of the resources, the events they are for, and the options about both."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from eventonce import Rule
from eventonce.cli.infra import command
from eventonce.config import load
from eventonce.errors import ConfigError
from eventonce.infra import iam
from eventonce.infra.targets import Place, Target
from eventonce.infra.template import values
from eventonce.infra.topology import Infra, Table, Topology, topology_of
from tests.helpers import Run

SOURCE = "aws.partner/genesys.com"
BUS = "aws.partner/genesys.com/cloud/5a3b/prod"
PLACE = Place("eu-central-1", "123456789012")


def topology(**said: Any) -> Topology:
    return topology_of(Infra(**{"source": SOURCE, **said}), name="calls")


def test_the_resources_are_named_after_the_consumer() -> None:
    made = topology()
    names = (made.queue, made.dead, made.undelivered, made.rule)
    assert names == ("calls", "calls-dead", "calls-undelivered", "calls")
    assert made.table == Table("calls")


def test_a_fifo_queue_has_a_fifo_dead_letter_queue_and_eventbridge_a_standard_queue() -> None:
    for made in (topology(fifo=True), topology(queue="calls.fifo")):
        assert made.fifo
        assert (made.queue, made.dead) == ("calls.fifo", "calls-dead.fifo")
        assert made.undelivered == "calls-undelivered"


OWN = Rule(name="o", key="detail.id", match={"source": ["com.example.*", "*.shop"]})


@pytest.mark.parametrize(
    ("infra", "rules", "sources"),
    [
        (Infra(source=SOURCE), [], [{"prefix": SOURCE}]),
        (Infra(bus=BUS), [], [{"prefix": BUS}]),
        (Infra(), ["genesys"], [{"prefix": f"{SOURCE}/"}, {"prefix": f"{SOURCE}.test/"}]),
        (Infra(), ["connect"], ["aws.connect"]),
        (Infra(), [OWN], [{"prefix": "com.example."}, {"wildcard": "*.shop"}]),
    ],
)
def test_the_rule_matches_the_source_that_the_file_the_bus_or_the_rules_name(
    infra: Infra, rules: list[Any], sources: list[Any]
) -> None:
    assert topology_of(infra, rules=rules).pattern == {"source": sources}


@pytest.mark.parametrize(
    "rules", [[], ["auto"], ["cxone"], ["genesys", Rule(name="any", key="detail.id")]]
)
def test_a_rule_that_would_match_every_event_is_refused(rules: list[Any]) -> None:
    with pytest.raises(ConfigError, match="no events are named"):
        topology_of(Infra(), rules=rules)


@pytest.mark.parametrize(
    ("infra", "rules", "misplaced"),
    [
        (Infra(), ["genesys"], True),
        (Infra(bus="calls"), ["genesys"], True),
        (Infra(source=SOURCE), [], True),
        (Infra(pattern={"source": [f"{BUS}", {"wildcard": f"{SOURCE}/*/prod"}]}), [], True),
        (Infra(bus=BUS), ["genesys"], False),
        (Infra(bus=BUS, pattern={"detail-type": ["x"]}), [], False),
        (Infra(source="com.example"), ["genesys"], False),
        (Infra(pattern={"source": [SOURCE, {"suffix": ".shop"}]}), [], False),
        (Infra(pattern={"detail-type": ["x"]}), ["genesys"], False),
        (Infra(), ["genesys", "connect"], False),
    ],
)
def test_only_a_rule_for_events_of_a_partner_on_the_wrong_bus_gives_a_warning(
    infra: Infra, rules: list[str], misplaced: bool
) -> None:
    made = topology_of(infra, rules=rules)
    assert len(made.warnings) == misplaced
    for warning in made.warnings:
        assert f'bus = "{SOURCE}/…"' in warning
        assert f"on the bus {infra.bus}" in warning
        assert made.theirs


def test_events_of_aws_services_and_partners_are_known_as_theirs() -> None:
    assert topology_of(Infra(), rules=["connect"]).theirs
    assert topology_of(Infra(bus=BUS, pattern={"detail-type": ["x"]})).theirs
    assert not topology_of(Infra(source="com.example")).theirs
    assert not topology_of(Infra(pattern={"detail-type": ["x"]})).theirs


@pytest.mark.parametrize(
    "said",
    [
        {"queue": "a b"},
        {"name": "a b"},
        {"name": "x" * 56},
        {"queue": "x" * 69},
        {"endpoint": "127.0.0.1:4566"},
        {"rule": "a/b"},
        {"bus": "arn:aws:events:eu-central-1:1:event-bus/x"},
        {"timeout": 0},
        {"timeout": 901},
        {"receives": 0},
        {"code": "function.zip"},
    ],
)
def test_settings_that_aws_would_refuse_are_refused(said: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(said))):
        topology(**said)


def test_the_longest_names_are_within_the_limits_of_aws() -> None:
    made = topology(name="x" * 55, queue="q" * 68, fifo=True)
    assert max(len(name) for name in (made.queue, made.dead, made.undelivered)) <= 80
    assert len(f"{made.name}-function") <= 64


@pytest.mark.parametrize("table", ["ab", "a b", "caf\xe9", ""])
def test_a_table_name_that_aws_would_refuse_is_refused(table: str) -> None:
    with pytest.raises(ConfigError, match="table"):
        topology_of(Infra(source=SOURCE), store=f"dynamodb://{table}")


def test_a_password_in_an_endpoint_is_refused_and_not_repeated() -> None:
    with pytest.raises(ConfigError, match="endpoint") as refused:
        topology(endpoint="http://user:hidden@127.0.0.1:4566")
    assert "hidden" not in str(refused.value)


def test_the_settings_of_the_file_are_the_values_of_the_template(tmp_path: Path) -> None:
    file = tmp_path / "eventonce.toml"
    file.write_text(
        f"""
        name = "crm-sync"
        store = "dynamodb://seen?key=pk&expiry=ttl"
        letters = "sqs://crm-letters"
        [infra]
        bus = "{BUS}"
        timeout = 30
        pattern = {{ detail-type = [{{ prefix = "v2.detail" }}] }}
        parameters = {{ AlarmTopicArn = "arn:t", SubnetIds = "a, b" }}
        [[sink]]
        to = "sqs://out.fifo?region=us-east-1"
        [[sink]]
        to = "https://sqs.eu-west-1.amazonaws.com/210987654321/far"
        [[sink]]
        to = "events://orders"
        [[sink]]
        to = "events://arn:aws:events:eu-west-1:210987654321:event-bus/theirs"
        """
    )
    said = load(file)
    made = topology_of(
        said.infra,
        name=said.name,
        store=said.store,
        letters=said.letters,
        sinks=[sink.to for sink in said.sink],
    )
    assert made.puts == (Target("orders"), Target("theirs", "eu-west-1", "210987654321"))
    found = values(made, "worker", PLACE, said.infra.parameters)
    assert json.loads(str(found["EventPattern"])) == {"detail-type": [{"prefix": "v2.detail"}]}
    assert (found["TableName"], found["TableKey"], found["TableExpiry"]) == ("seen", "pk", "ttl")
    assert found["StoreUri"] == "dynamodb://seen?key=pk&expiry=ttl"
    assert (found["QueueName"], found["VisibilityTimeout"], found["BusName"]) == (
        "crm-sync",
        180,
        BUS,
    )
    # An https sink is a webhook, whatever its address.
    assert found["SinkQueueArns"] == ["arn:aws:sqs:us-east-1:123456789012:out.fifo"]
    assert found["SinkBusArns"] == [
        "arn:aws:events:eu-central-1:123456789012:event-bus/orders",
        "arn:aws:events:eu-west-1:210987654321:event-bus/theirs",
    ]
    assert found["LetterQueueName"] == "crm-letters"
    assert (found["AlarmTopicArn"], found["SubnetIds"]) == ("arn:t", ["a", "b"])


def test_a_store_that_is_not_on_dynamodb_has_no_table() -> None:
    made = topology_of(Infra(source=SOURCE), store="redis://cache/0")
    found = values(made, "lambda", PLACE, {})
    assert found["TableName"] == ""
    assert "StoreUri" not in found, "it may hold a password"


@pytest.mark.parametrize(
    ("letters", "created", "arn"),
    [
        ("sqs://kept", "kept", None),
        ("sqs://kept?region=eu-central-1", "kept", None),
        ("sqs://calls-dead", "", "arn:aws:sqs:eu-central-1:123456789012:calls-dead"),
        ("sqs://calls?region=us-east-1", "", "arn:aws:sqs:us-east-1:123456789012:calls"),
    ],
)
def test_a_dead_letter_queue_is_created_unless_the_stack_has_it_or_its_region_differs(
    letters: str, created: str, arn: str | None
) -> None:
    infra = Infra(source="com.example", region="eu-central-1")
    made = topology_of(infra, name="calls", letters=letters)
    found = values(made, "worker", PLACE, {})
    assert (found["LetterQueueName"], found.get("LetterQueueArn")) == (created, arn)
    assert len(made.warnings) == ("us-east-1" in letters)


@pytest.mark.parametrize("letters", ["sqs://calls", "sqs://calls?region=eu-central-1"])
def test_dead_letters_cannot_go_to_the_queue_of_the_events(letters: str) -> None:
    for region in ("", "eu-central-1"):
        with pytest.raises(ConfigError, match="would be received again"):
            topology_of(Infra(source=SOURCE, region=region), name="calls", letters=letters)


@pytest.mark.parametrize("where", ["region=us-east-1", "endpoint=http://127.0.0.1:8000"])
def test_a_table_of_another_region_or_endpoint_is_referenced_and_not_created(where: str) -> None:
    made = topology_of(Infra(source=SOURCE), name="calls", store=f"dynamodb://seen?{where}")
    region = "us-east-1" if "region" in where else "eu-central-1"
    arn = f"arn:aws:dynamodb:{region}:123456789012:table/seen"
    found = values(made, "lambda", PLACE, {})
    assert ("TableName" in found, found["TableArn"]) == (False, arn)
    policy = iam.policy("operate", made, PLACE)["Statement"]
    resources = {it["Sid"]: it["Resource"] for it in policy}
    assert (resources["Store"], resources["Letters"]) == (arn, f"{arn}/index/letters")


@pytest.mark.parametrize(
    "role", ["lambda", "worker", "operate", "send", "capture", "apply", "doctor"]
)
def test_every_policy_is_limited_to_named_resources(role: iam.Role) -> None:
    made = topology_of(
        Infra(source=SOURCE),
        name="calls",
        letters="sqs://kept",
        sinks=["sqs://out", "events://orders"],
    )
    # Names that are not known in advance: log streams, and resources that CloudFormation names.
    open_ended = (
        "log-group:/aws/lambda/calls:*",
        "log-group:/aws/events/calls-capture:*",
        "stack/calls/*",
        "policy/calls-*",
        "alarm:calls-*",
        # The rules and functions that reach the queue.
        "rule/*",
        "function:*",
    )
    for said in iam.policy(role, made, PLACE)["Statement"]:
        assert all("*" not in action for action in said["Action"])
        if said["Sid"] == "Lists":
            assert all(it.split(":")[1].startswith(("List", "Simulate")) for it in said["Action"])
            continue
        for arn in [said["Resource"]] if isinstance(said["Resource"], str) else said["Resource"]:
            _, _, service, region, account, resource = arn.split(":", 5)
            everywhere = service == "iam" or resource.startswith("dashboard/")
            assert region == ("" if everywhere else "eu-central-1")
            assert account == ("aws" if "transform" in resource else "123456789012")
            assert "*" not in resource or resource in open_ended


def run_infra(tmp_path: Path, *args: str, file: str = "") -> tuple[int, Any, str]:
    """The exit code, the printed JSON, and the messages beside it."""
    (tmp_path / "eventonce.toml").write_text(file)
    typed = [args[0], "--json", "-c", f"{tmp_path}/eventonce.toml", *args[1:]]
    done = CliRunner().invoke(command, typed)
    told = done.stderr + (str(done.exception) if done.exception else "")
    return done.exit_code, json.loads(done.stdout or "null"), told


def parameters(tmp_path: Path, *args: str, file: str = "") -> dict[str, str]:
    code, printed, told = run_infra(tmp_path, "sam", *args, file=file)
    assert code == 0, told
    return {it["ParameterKey"]: it["ParameterValue"] for it in printed}


def test_an_option_wins_over_the_file(tmp_path: Path) -> None:
    file = """
        name = "crm"
        [infra]
        name = "prod-crm"
        pattern = { source = ["other"] }
        parameters = { VpcId = "vpc-1", SubnetIds = "subnet-1" }
        """
    made = parameters(tmp_path, file=file)
    assert made["QueueName"] == "prod-crm"
    assert made["ConsumerName"] == "crm", "the keys are the consumer's, whatever the queue's name"
    typed = ("--name", "trial", "--source", SOURCE, "--parameter", "SubnetIds=subnet-2,subnet-3")
    made = parameters(tmp_path, *typed, file=file)
    assert made["QueueName"] == "trial"
    assert json.loads(made["EventPattern"]) == {"source": [{"prefix": SOURCE}]}
    assert (made["VpcId"], made["SubnetIds"]) == ("vpc-1", "subnet-2,subnet-3")


@pytest.mark.parametrize("where", ["option", "infra", "worker"])
def test_the_region_of_a_queue_uri_is_the_region_of_the_policy(tmp_path: Path, where: str) -> None:
    uri = "sqs://calls?region=cn-north-1&endpoint=http://127.0.0.1:1"
    file = "" if where == "option" else f'[{where}]\nqueue = "{uri}"\n'
    typed = ("--queue", uri) if where == "option" else ()
    _, policy, _ = run_infra(tmp_path, "iam", "--account", "1", *typed, file=file)
    queues = [it["Resource"] for it in policy["Statement"]]
    assert "arn:aws-cn:sqs:cn-north-1:1:calls" in queues


@pytest.mark.parametrize("printed", ["sam", "terraform", "iam"])
def test_a_printed_template_warns_on_stderr_only_if_no_events_arrive_on_its_bus(
    tmp_path: Path, printed: str
) -> None:
    for bus, told in (("", True), (f'[infra]\nbus = "{BUS}"\n', False)):
        code, _, heard = run_infra(tmp_path, printed, file=f'presets = ["genesys"]\n{bus}')
        assert (code, "arrive only on the bus" in heard) == (0, told)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ((), "no events are named"),
        (("--pattern", "[1]"), "JSON object"),
        (("--source", "x", "--queue", "a b"), "queue"),
        (("--source", "x", "--parameter", "VpcId"), "NAME=VALUE"),
        (
            ("--source", "x", "--parameter", "Vpc=1"),
            "no parameter Vpc; the parameters are Name, Role",
        ),
        (("--source", "x", "--parameter", "Timeout=soon"), "must be a number"),
    ],
)
def test_a_wrong_option_is_explained(tmp_path: Path, args: tuple[str, ...], said: str) -> None:
    code, _, told = run_infra(tmp_path, "sam", *args)
    assert (code != 0, said in told) == (True, True)


@pytest.mark.parametrize(
    ("said", "lists"),
    [
        ("keep_letters = '90d'", True),
        ("keep_letters = 86400", True),
        ("", False),
        ("keep_letters = '90d'\nstore = 'redis://h'", False),
    ],
)
@pytest.mark.parametrize("role", ["lambda", "worker"])
def test_a_consumer_may_list_dead_letters_only_if_it_drops_old_dead_letters(
    run: Run, role: str, said: str, *, lists: bool
) -> None:
    Path("eventonce.toml").write_text(f"name = 'calls'\n{said}\n")
    policy = json.loads(run("infra", "iam", "--role", role).out)
    found = [it["Action"] for it in policy["Statement"] if it["Sid"] == "Letters"]
    assert found == [["dynamodb:Query"]] * lists
    printed = run("infra", "sam", "--json", "--source", SOURCE, "--role", "worker").out
    asked = {it["ParameterKey"]: it["ParameterValue"] for it in json.loads(printed)}
    assert asked["DropOldLetters"] == str(lists).lower()
