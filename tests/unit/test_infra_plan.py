"""What the resources are called, which events they are for, and what their documents say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from eventonce import Rule
from eventonce.cli import main
from eventonce.cli.infra import command
from eventonce.config import load
from eventonce.errors import ConfigError
from eventonce.infra import resources, rights
from eventonce.infra.outlets import Outlet
from eventonce.infra.plan import KEPT, Infra, Plan, Table, planned
from eventonce.infra.queues import with_statement
from eventonce.infra.resources import Place

SOURCE = "aws.partner/genesys.com"
BUS = "aws.partner/genesys.com/cloud/5a3b/prod"
PLACE = Place("eu-central-1", "123456789012")


def plan(**said: Any) -> Plan:
    return planned(Infra(**{"source": SOURCE, **said}), name="calls")


def test_everything_is_called_after_the_consumer() -> None:
    made = plan()
    assert (made.queue, made.dead, made.undelivered) == (
        "calls",
        "calls-dead",
        "calls-undelivered",
    )
    assert (made.rule, made.table) == ("calls", Table("calls"))


def test_a_fifo_queue_has_a_fifo_queue_for_its_dead_and_eventbridge_a_standard_one() -> None:
    for made in (plan(fifo=True), plan(queue="calls.fifo")):
        assert made.fifo
        assert (made.queue, made.dead) == ("calls.fifo", "calls-dead.fifo")
        assert made.undelivered == "calls-undelivered"


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({"source": SOURCE}, [{"prefix": SOURCE}]),
        ({"source": "", "bus": BUS}, [{"prefix": BUS}]),
    ],
)
def test_the_rule_matches_what_the_source_begins_with(
    said: dict[str, Any], expected: list[Any]
) -> None:
    assert plan(**said).pattern == {"source": expected}


def test_a_preset_that_knows_its_source_says_which_events_are_meant() -> None:
    made = planned(Infra(), rules=["genesys"])
    assert made.pattern == {
        "source": [{"prefix": f"{SOURCE}/"}, {"prefix": f"{SOURCE}.test/"}],
    }
    assert planned(Infra(), rules=["connect"]).pattern == {"source": ["aws.connect"]}


@pytest.mark.parametrize(
    ("infra", "rules"),
    [
        (Infra(), ["genesys"]),
        (Infra(bus="calls"), ["genesys"]),
        (Infra(source=SOURCE), []),
        (Infra(pattern={"source": [f"{BUS}", {"wildcard": f"{SOURCE}/*/prod"}]}), []),
    ],
)
def test_a_rule_that_waits_for_a_partner_on_another_bus_is_told(
    infra: Infra, rules: list[str]
) -> None:
    made = planned(infra, rules=rules)
    assert f'bus = "{SOURCE}/…"' in made.misplaced
    assert f"on the bus {infra.bus}" in made.misplaced
    assert made.theirs


@pytest.mark.parametrize(
    ("infra", "rules"),
    [
        (Infra(bus=BUS), ["genesys"]),
        (Infra(bus=BUS, pattern={"detail-type": ["x"]}), []),
        (Infra(source="com.example"), ["genesys"]),
        (Infra(pattern={"source": [SOURCE, {"suffix": ".shop"}]}), []),
        (Infra(pattern={"detail-type": ["x"]}), ["genesys"]),
        (Infra(), ["genesys", "connect"]),
    ],
)
def test_a_rule_that_events_can_reach_is_not(infra: Infra, rules: list[str]) -> None:
    assert planned(infra, rules=rules).misplaced == ""


def test_nobody_else_puts_events_of_aws_on_a_bus() -> None:
    assert planned(Infra(), rules=["connect"]).theirs
    assert planned(Infra(bus=BUS, pattern={"detail-type": ["x"]})).theirs
    assert not planned(Infra(source="com.example")).theirs
    assert not planned(Infra(pattern={"detail-type": ["x"]})).theirs


@pytest.mark.parametrize("printed", ["sam", "terraform", "iam"])
def test_what_is_printed_says_on_stderr_that_no_events_come_there(
    tmp_path: Path, printed: str
) -> None:
    file = tmp_path / "eventonce.toml"
    for said, told in (("", True), (f'[infra]\nbus = "{BUS}"\n', False)):
        file.write_text(f'presets = ["genesys"]\n{said}')
        heard = CliRunner().invoke(command, [printed, "-c", str(file)])
        assert heard.exit_code == 0, heard.exception
        assert ("arrive only on the bus" in heard.stderr) is told
        assert "arrive only" not in heard.stdout


def test_rules_of_ones_own_say_it_too() -> None:
    rule = Rule(name="o", key="detail.id", match={"source": ["com.example.*", "*.shop"]})
    matchers = [{"prefix": "com.example."}, {"wildcard": "*.shop"}]
    assert planned(Infra(), rules=[rule]).pattern == {"source": matchers}


@pytest.mark.parametrize(
    "rules", [[], ["auto"], ["cxone"], ["genesys", Rule(name="any", key="detail.id")]]
)
def test_a_rule_that_would_take_everything_is_refused(rules: list[Any]) -> None:
    with pytest.raises(ConfigError, match="which events"):
        planned(Infra(), rules=rules)


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
    ],
)
def test_what_aws_would_refuse_is_refused_before(said: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(said))):
        plan(**said)


def test_the_longest_names_are_ones_that_aws_takes() -> None:
    made = plan(name="x" * 55, queue="q" * 68, fifo=True)
    assert max(len(name) for name in (made.queue, made.dead, made.undelivered)) <= 80
    assert len(f"{made.name}-function") <= 64


@pytest.mark.parametrize("table", ["ab", "a b", "caf\xe9", ""])
def test_a_table_that_cannot_be_called_so_is_refused_before_anything_is_made(table: str) -> None:
    with pytest.raises(ConfigError, match="table"):
        planned(Infra(source=SOURCE), store=f"dynamodb://{table}")


def test_a_password_in_an_endpoint_is_refused_and_not_repeated() -> None:
    with pytest.raises(ConfigError, match="endpoint") as refused:
        plan(endpoint="http://user:hidden@127.0.0.1:4566")
    assert "hidden" not in str(refused.value)


def test_the_queue_shows_a_message_again_after_six_timeouts() -> None:
    for timeout in (1, 60, 900):
        settings = resources.queue_settings(plan(timeout=timeout), "arn")
        assert settings["VisibilityTimeout"] >= 6 * timeout


def test_sqs_gives_up_long_after_the_consumer_does() -> None:
    attempts = Rule(name="any", key="detail.id").attempts
    redrive = resources.queue_settings(plan(), "arn")["RedrivePolicy"]
    assert redrive["maxReceiveCount"] > 10 * attempts


def test_a_fact_is_remembered_for_longer_than_its_copies_can_be_under_way() -> None:
    """Four days of re-publishing, one of EventBridge's retries, and the queue's own."""
    on_the_way = 4 * 86_400 + resources.AGE + KEPT
    assert Rule(name="any", key="detail.id").remember > on_the_way * 1000


def test_the_queue_lets_in_the_rule_and_says_so_by_the_rules_own_arn() -> None:
    made = plan()
    rule = PLACE.rule(made.bus, made.rule)
    assert resources.let_in(made, PLACE.queue("calls"), rule) == {
        "Sid": resources.sid(made),
        "Effect": "Allow",
        "Principal": {"Service": "events.amazonaws.com"},
        "Action": "sqs:SendMessage",
        "Resource": "arn:aws:sqs:eu-central-1:123456789012:calls",
        "Condition": {
            "ArnEquals": {"aws:SourceArn": "arn:aws:events:eu-central-1:123456789012:rule/calls"}
        },
    }
    assert PLACE.rule(BUS, "calls") == (
        f"arn:aws:events:eu-central-1:123456789012:rule/{BUS}/calls"
    )


def test_a_statement_is_put_beside_those_of_others_and_replaces_only_its_own() -> None:
    made = plan()
    ours = resources.let_in(made, "queue", "rule")
    theirs = {"Sid": "Theirs", "Effect": "Deny", "Principal": "*", "Action": "*", "Resource": "*"}
    held = json.dumps({"Version": "2008-10-17", "Id": "x", "Statement": theirs})
    policy = with_statement(held, ours)
    assert policy == {"Version": "2008-10-17", "Id": "x", "Statement": [theirs, ours]}
    assert with_statement(json.dumps(policy), ours) is None
    other = {**ours, "Resource": "elsewhere"}
    changed = with_statement(json.dumps(policy), other)
    assert changed is not None
    assert changed["Statement"] == [theirs, other]


def test_each_rule_of_each_bus_has_a_statement_of_its_own() -> None:
    """One that was called like another's would take its place, and shut that rule out."""
    alike = ("calls", "Calls", "calls-2", "calls.2", "calls2")
    sids = [resources.sid(plan(rule=name, bus=bus)) for name in alike for bus in ("default", BUS)]
    assert len(set(sids)) == 10
    assert all(sid.startswith("EventonceRuleCalls") and sid.isalnum() for sid in sids)


def test_the_file_says_it_all(tmp_path: Path) -> None:
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
    made = planned(
        said.infra,
        name=said.name,
        store=said.store,
        letters=said.letters,
        sinks=[sink.to for sink in said.sink],
    )
    assert made.pattern == {"detail-type": [{"prefix": "v2.detail"}]}
    assert made.table == Table("seen", "pk", "ttl")
    assert (made.queue, made.visibility, made.bus) == ("crm-sync", 180, BUS)
    assert made.sends == (Outlet("out.fifo", "us-east-1"),), "an https sink is a webhook"
    assert made.puts == (Outlet("orders"), Outlet("theirs", "eu-west-1", "210987654321"))
    assert made.letterbox == "crm-letters"


def test_a_store_that_is_not_on_dynamodb_has_no_table() -> None:
    assert planned(Infra(source=SOURCE), store="redis://cache/0").table is None


def test_a_letter_queue_that_is_one_of_ours_or_elsewhere_is_not_made() -> None:
    for letters in ("sqs://calls-dead", "sqs://far?region=us-east-1"):
        made = planned(Infra(source=SOURCE), name="calls", letters=letters)
        assert made.letterbox == ""


def test_a_letter_queue_that_says_our_own_region_is_made() -> None:
    infra = Infra(source=SOURCE, region="eu-central-1")
    made = planned(infra, name="calls", letters="sqs://kept?region=eu-central-1")
    assert made.letterbox == "kept"


@pytest.mark.parametrize("letters", ["sqs://calls", "sqs://calls?region=eu-central-1"])
def test_letters_do_not_go_where_the_events_come_from(letters: str) -> None:
    for region in ("", "eu-central-1"):
        with pytest.raises(ConfigError, match="taken for events again"):
            planned(Infra(source=SOURCE, region=region), name="calls", letters=letters)


def test_letters_may_go_to_a_queue_of_the_same_name_elsewhere() -> None:
    infra = Infra(source=SOURCE, region="eu-central-1")
    made = planned(infra, name="calls", letters="sqs://calls?region=us-east-1")
    assert made.letters == Outlet("calls", "us-east-1")


def test_a_table_elsewhere_is_meant_where_it_is() -> None:
    made = planned(Infra(source=SOURCE), name="calls", store="dynamodb://seen?region=us-east-1")
    reach = rights.named(made, region="eu-central-1", account="123456789012")
    assert reach.table == "arn:aws:dynamodb:us-east-1:123456789012:table/seen"
    assert reach.index == f"{reach.table}/index/letters"


def said_together(tmp_path: Path, *args: str, file: str = "") -> dict[str, Any]:
    """The resources of the SAM template that the file and the options make."""
    (tmp_path / "eventonce.toml").write_text(file)
    told = CliRunner().invoke(command, ["sam", "--json", "-c", f"{tmp_path}/eventonce.toml", *args])
    assert told.exit_code == 0, told.exception
    made: dict[str, Any] = json.loads(told.stdout)["Resources"]
    return made


def test_an_option_wins_over_the_file(tmp_path: Path) -> None:
    file = """
        name = "crm"
        [infra]
        name = "prod-crm"
        pattern = { source = ["other"] }
        """
    made = said_together(tmp_path, file=file)
    assert made["Queue"]["Properties"]["QueueName"] == "prod-crm"
    told = made["Function"]["Properties"]["Environment"]["Variables"]
    assert told["EVENTONCE_NAME"] == "crm", "the keys are the consumer's, whatever the queue's name"
    typed = said_together(tmp_path, "--name", "trial", "--source", SOURCE, file=file)
    assert typed["Queue"]["Properties"]["QueueName"] == "trial"
    assert typed["Rule"]["Properties"]["EventPattern"] == {"source": [{"prefix": SOURCE}]}


@pytest.mark.parametrize("where", ["option", "infra", "worker"])
def test_a_queue_by_its_uri_says_where_all_of_it_is(tmp_path: Path, where: str) -> None:
    uri = "sqs://calls?region=eu-west-3&endpoint=http://127.0.0.1:1"
    file = "" if where == "option" else f'[{where}]\nqueue = "{uri}"\n'
    (tmp_path / "eventonce.toml").write_text(file)
    typed = ["--queue", uri] if where == "option" else []
    told = CliRunner().invoke(
        command, ["iam", "--account", "1", "-c", f"{tmp_path}/eventonce.toml", *typed]
    )
    assert "arn:aws:sqs:eu-west-3:1:calls" in told.output


def test_the_command_line_says_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for args, said in (
        (["sam"], "which events"),
        (["sam", "--pattern", "[1]"], "JSON object"),
        (["sam", "--source", "x", "--queue", "a b"], "queue"),
    ):
        with pytest.raises(SystemExit) as stop:
            main(["infra", *args])
        assert stop.value.code == 2
        assert said in capsys.readouterr().err
