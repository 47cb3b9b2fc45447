"""What `apply` finds beside its own: others' rules, statements, targets and keys stay."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from eventonce.infra.apply import apply
from eventonce.infra.plan import Infra, planned
from eventonce.infra.resources import Place
from tests.integration.infra.account import (
    ACCOUNT,
    FUNCTION,
    PARTNER,
    SOURCE,
    Apply,
    arn,
    attributes,
    between,
    change,
    delivery,
    put,
    received,
)
from tests.servers.aws import REGION


def test_what_would_delete_messages_is_left_and_told(
    applied: Apply, name: str, client: Callable[[str], Any]
) -> None:
    applied()
    change(client("sqs"), name, MessageRetentionPeriod="1209600")
    again = applied()
    assert again.steps == []
    assert len(again.left) == 1
    assert "would delete" in again.left[0]
    assert attributes(client("sqs"), name)["MessageRetentionPeriod"] == "1209600"


def test_what_others_wrote_stays(applied: Apply, name: str, client: Callable[[str], Any]) -> None:
    """A statement, a key, a target of their own."""
    applied()
    sqs, events = client("sqs"), client("events")
    policy = json.loads(attributes(sqs, name)["Policy"])
    theirs = {
        "Sid": "Theirs",
        "Effect": "Allow",
        "Principal": {"AWS": f"arn:aws:iam::{ACCOUNT}:root"},
        "Action": "sqs:SendMessage",
        "Resource": arn(name),
    }
    change(sqs, name, Policy=json.dumps({**policy, "Statement": [theirs]}))
    change(sqs, f"{name}-dead", KmsMasterKeyId="alias/mine", SqsManagedSseEnabled="false")
    events.put_targets(Rule=name, Targets=[{"Id": "theirs", "Arn": FUNCTION}])
    assert len(applied().steps) == 1
    said = json.loads(attributes(sqs, name)["Policy"])["Statement"]
    assert [it["Sid"] == "Theirs" for it in said] == [True, False]
    assert attributes(sqs, f"{name}-dead")["KmsMasterKeyId"] == "alias/mine"
    targets = events.list_targets_by_rule(Rule=name)["Targets"]
    assert {it["Arn"] for it in targets} == {arn(name), FUNCTION}


def test_what_others_wrote_into_a_rule_stays(
    applied: Apply, name: str, client: Callable[[str], Any]
) -> None:
    """A target under the very id that ours would have, a description, and a state of its own."""
    events = client("events")
    more = "ENABLED_WITH_ALL_CLOUDTRAIL_MANAGEMENT_EVENTS"
    events.put_rule(Name=name, EventPattern='{"source": ["x"]}', Description="theirs", State=more)
    events.put_targets(Rule=name, Targets=[{"Id": name, "Arn": FUNCTION}])
    applied()
    targets = {it["Id"]: it["Arn"] for it in events.list_targets_by_rule(Rule=name)["Targets"]}
    assert targets == {name: FUNCTION, f"{name}-2": arn(name)}
    rule = events.describe_rule(Name=name)
    assert (rule["Description"], rule["State"]) == ("theirs", more)
    assert applied().steps == []


def test_what_is_not_said_again_of_a_rule_would_be_gone(
    applied: Apply, name: str, client: Callable[[str], Any]
) -> None:
    """PutRule replaces a rule as a whole; the emulator's does not, so the request is looked at."""
    role = f"arn:aws:iam::{ACCOUNT}:role/r"
    client("events").put_rule(Name=name, ScheduleExpression="rate(1 day)", RoleArn=role)
    asked: dict[str, Any] = {}
    with between(asked.__setitem__):
        applied()
    said = asked["PutRule"]
    assert (said["RoleArn"], said["ScheduleExpression"]) == (role, "rate(1 day)")


@pytest.mark.parametrize("held", ["byQueue", "allowAll"])
def test_a_dead_letter_queue_that_others_use_too_stays_theirs(
    applied: Apply, name: str, client: Callable[[str], Any], held: str
) -> None:
    sqs = client("sqs")
    allowed: dict[str, Any] = {"redrivePermission": held}
    if held == "byQueue":
        allowed["sourceQueueArns"] = [arn("friend")]
    sqs.create_queue(
        QueueName=f"{name}-dead", Attributes={"RedriveAllowPolicy": json.dumps(allowed)}
    )
    applied()
    found = json.loads(attributes(sqs, f"{name}-dead")["RedriveAllowPolicy"])
    expected = {**allowed, "sourceQueueArns": [arn("friend"), arn(name)]}
    assert found == (expected if held == "byQueue" else allowed)
    assert applied().steps == []


def test_a_queue_with_a_key_is_told_to_need_that_keys_policy(
    applied: Apply, name: str, client: Callable[[str], Any]
) -> None:
    applied()
    change(client("sqs"), name, KmsMasterKeyId="alias/aws/sqs", SqsManagedSseEnabled="false")
    again = applied()
    assert again.steps == []
    (left,) = again.left
    assert "alias/aws/sqs" in left


def test_a_queue_for_letters_that_says_where_it_is_is_left_to_its_owner(
    endpoint: str, name: str
) -> None:
    infra = Infra(source=SOURCE, region=REGION, endpoint=endpoint)
    far = f"sqs://{name}-far?region=us-east-1"
    made = apply(infra, planned(infra, name=name, store="redis://elsewhere", letters=far))
    assert "letters" not in made.resources
    (left,) = made.left
    assert f"{name}-far" in left


def test_two_rules_may_send_to_one_queue(
    applied: Apply, name: str, client: Callable[[str], Any]
) -> None:
    applied()
    second = applied(rule=f"{name}-wide", pattern={"source": [{"prefix": "com.example"}]})
    assert second.resources["queue"] == arn(name)
    assert applied().steps == []
    assert applied(rule=f"{name}-wide", pattern={"source": [{"prefix": "com.example"}]}).steps == []
    put(client("events"))
    copies = received(client("sqs"), name, least=2)
    assert len({event["id"] for event in copies}) == 1
    assert len(copies) == 2, "the same event by both rules"


def test_rules_of_one_name_on_two_buses_both_stay_let_in(
    applied: Apply, name: str, client: Callable[[str], Any]
) -> None:
    here, there = applied(), applied(bus=f"bus-{name}")
    assert applied().steps == applied(bus=f"bus-{name}").steps == []
    for queue in (name, f"{name}-undelivered"):
        policy = attributes(client("sqs"), queue)["Policy"]
        for made in (here, there):
            assert delivery(policy, arn(queue), made.resources["rule"]) == "Allow"


@pytest.mark.parametrize("bus", ["default", "own", PARTNER])
def test_the_queues_policy_lets_in_the_rule_and_nobody_else(
    applied: Apply, name: str, client: Callable[[str], Any], bus: str
) -> None:
    """By an evaluator of policies that is not ours. The emulator's EventBridge asks none."""
    bus = bus if bus == "default" else f"{bus}-{name}"
    made = applied(bus=bus)
    rule = client("events").describe_rule(Name=name, EventBusName=bus)["Arn"]
    for queue in (name, f"{name}-undelivered"):
        policy = attributes(client("sqs"), queue)["Policy"]
        assert delivery(policy, arn(queue), rule) == "Allow"
        assert delivery(policy, arn(queue), f"{rule}-other") != "Allow"
        assert delivery(policy, f"{arn(queue)}-other", rule) != "Allow"
    assert made.resources["rule"] == rule


def test_a_policy_that_names_the_bus_lets_nothing_in(
    applied: Apply, name: str, client: Callable[[str], Any]
) -> None:
    """As it is often shown: `ArnEquals` on the bus' ARN, which no delivery carries."""
    bus = f"bus-{name}"
    applied(bus=bus)
    rule = client("events").describe_rule(Name=name, EventBusName=bus)["Arn"]
    policy = json.loads(attributes(client("sqs"), name)["Policy"])
    for shown in (Place(REGION, ACCOUNT).bus(bus), f"arn:aws:events:*:*:event-bus/{bus}"):
        policy["Statement"][0]["Condition"]["ArnEquals"]["aws:SourceArn"] = shown
        assert delivery(json.dumps(policy), arn(name), rule) != "Allow"
