"""The checks of `eventonce doctor`: each fault is found in facts; sound facts have no fault."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from eventonce import Consumer
from eventonce.doctor import patterns
from eventonce.doctor.checks import ahead_of, findings
from eventonce.doctor.facts import (
    AsyncFacts,
    BusTarget,
    Denied,
    Facts,
    FileFacts,
    FunctionFacts,
    HistoryFacts,
    Identity,
    QueueFacts,
    SourceMapping,
)
from eventonce.doctor.look import _principal
from eventonce.doctor.patterns import UnknownPattern
from eventonce.doctor.storage import history_facts, store_findings
from eventonce.history import History
from eventonce.presets import load
from eventonce.rules import Rule
from eventonce.stores.probe import CAN_WRITE
from eventonce.stores.sqlite import SQLiteStore
from tests.helpers import Run, call

DAY = 86_400
QUEUE_ARN = "arn:aws:sqs:eu-central-1:111122223333:calls"
RULE_ARN = "arn:aws:events:eu-central-1:111122223333:rule/calls"
TOPIC_ARN = "arn:aws:sns:eu-central-1:111122223333:calls-fan"
ROLE = "arn:aws:iam::111122223333:role/calls"
FLOW = "v2.detail.events.conversation.{id}.flow.end"


def policy(*arns: str, **said: Any) -> dict[str, Any]:
    statement = {
        "Effect": "Allow",
        "Principal": {"Service": "events.amazonaws.com"},
        "Action": "sqs:SendMessage",
        "Condition": {"ArnEquals": {"aws:SourceArn": list(arns)}},
    }
    return {"Statement": [statement | said]}


def denying(**said: Any) -> dict[str, Any]:
    """The sound policy, and beside it a statement that denies."""
    deny = {"Sid": "Never", "Effect": "Deny", "Principal": "*", "Action": "sqs:*"}
    return {"Statement": [*policy(RULE_ARN)["Statement"], deny | said]}


QUEUE = QueueFacts(
    "calls", QUEUE_ARN, 360, 4 * DAY, f"{QUEUE_ARN}-dead", 100, False, policy(RULE_ARN)
)
DEAD = QueueFacts("calls-dead", f"{QUEUE_ARN}-dead", retention=14 * DAY)
DELIVERY = BusTarget(
    "default",
    "calls",
    RULE_ARN,
    "queue",
    QUEUE_ARN,
    {"source": [{"prefix": "aws.partner/genesys.com"}]},
    dead=f"{QUEUE_ARN}-undelivered",
)
MAPPING = SourceMapping("1-2-3", "calls")
FUNCTION = FunctionFacts("calls", "arn:aws:lambda:eu-central-1:111122223333:function:calls", 60)
SOUND = Facts(
    Identity("111122223333", ROLE, "eu-central-1"),
    120,
    QUEUE,
    DEAD,
    None,
    (DELIVERY,),
    (MAPPING,),
    (FUNCTION,),
    (ROLE,),
)
WORKER = replace(SOUND, mappings=(), functions=())
SETTINGS = FileFacts(load("genesys").rules)


def faults(facts: Facts = SOUND, settings: FileFacts = SETTINGS) -> list[tuple[str, str]]:
    return [(it.what, it.fix) for _, it in findings(facts, settings) if not it.fine]


def changed(**fields: Any) -> FileFacts:
    rules = load("genesys").rules
    return replace(SETTINGS, rules=[Rule(name="own", key="id", **fields), *rules])


def state(**fields: Any) -> FileFacts:
    """The settings with a rule for a state, too."""
    own = Rule(name="own", subject="body.id", order="body.version", **fields)
    return replace(SETTINGS, rules=[own, *SETTINGS.rules])


def charged(remember: str) -> FileFacts:
    """The settings with only the rule of Stripe's webhooks, which remembers for another time."""
    (rule,) = [it for it in load("stripe").rules if it.name == "stripe.webhook"]
    return replace(SETTINGS, rules=[replace(rule, remember=remember)])


@pytest.mark.parametrize("facts", [SOUND, WORKER, Facts()])
def test_a_sound_set_up_has_no_fault(facts: Facts) -> None:
    assert faults(facts) == []
    assert all(it.state == "ok" for _, it in findings(facts, SETTINGS))


def queue(**fields: Any) -> Facts:
    return replace(SOUND, queue=replace(QUEUE, **fields))


def delivery(**fields: Any) -> Facts:
    return replace(SOUND, targets=(replace(DELIVERY, **fields),))


def beside(facts: Facts = SOUND, **fields: Any) -> Facts:
    """Another delivery beside the sound one, which its queue admits."""
    other = replace(DELIVERY, **({"rule": "other", "arn": f"{RULE_ARN}-2"} | fields))
    admitting = replace(QUEUE, policy=policy(RULE_ARN, f"{RULE_ARN}-2"))
    return replace(facts, queue=admitting, targets=(DELIVERY, other))


def of_two_organisations() -> Facts:
    """The buses of two organisations of one partner, with the same pattern."""
    bus = "aws.partner/genesys.com/cloud/5a3b/prod"
    facts = beside(bus=bus.replace("5a3b", "7c9d"))
    one, other = facts.targets
    return replace(facts, targets=(replace(one, bus=bus), other))


def filtered(*patterns: dict[str, Any], **fields: Any) -> Facts:
    """The mapping has these filters, and the delivery these fields."""
    return replace(delivery(**fields), mappings=(replace(MAPPING, filters=patterns),))


ID_AND_DETAIL = {"id": "$.id", "detail": "$.detail", "n": "$.detail.n[0]"}
ALL_PATHS = {"i": "$.id", "s": "$.source", "t": "$.detail-type", "w": "$.time", "d": "$.detail"}
ALL_PARTS = '{"id": <i>, "source": <s>, "detail-type": "<t>", "time": <w>, "detail": <d>}'
FIFO_ARN = f"{QUEUE_ARN}.fifo"
VPC = {"StringNotEquals": {"aws:SourceVpc": "vpc-1"}}


def fifo(*, deduplicates: bool, group: str) -> Facts:
    queue = replace(QUEUE, name="calls.fifo", arn=FIFO_ARN, deduplicates=deduplicates)
    return replace(SOUND, queue=queue, targets=(replace(DELIVERY, to=FIFO_ARN, group=group),))


def direct(**fields: Any) -> Facts:
    """A rule that invokes the function itself."""
    how = AsyncFacts(**({"dead": f"{QUEUE_ARN}-failed"} | fields))
    return replace(
        SOUND,
        queue=None,
        dead=None,
        mappings=(),
        functions=(replace(FUNCTION, invoked=how),),
        targets=(replace(DELIVERY, to=FUNCTION.arn),),
    )


DIRECT = direct()


def history(**facts: Any) -> Facts:
    """Sound facts, with a history that has these facts."""
    return replace(
        SOUND, history=HistoryFacts("sqlite:///history.db", 30 * DAY * 1000, 500, **facts)
    )


FAULTS = {
    "a history that does not answer": (
        history(fault="it is a folder"),
        "the history sqlite:///history.db cannot be used",
        "it is a folder",
    ),
    "a history that may not be written": (
        history(refused="give this user the right"),
        "a decision cannot be written to the history",
        "give this user the right",
    ),
    "a folder in which no history can be begun": (
        history(begun=False, refused="give this user the right"),
        "a decision cannot be written to the history",
        "give this user the right",
    ),
    "a decision that is too old": (
        history(age=31 * DAY * 1000),
        "a decision is older than 30d (keep)",
        "eventonce sweep",
    ),
    "too many decisions": (
        history(span=551),
        "it has more decisions than 500 (most)",
        "eventonce sweep",
    ),
    "decisions under another secret": (
        history(hidden=1_200),
        "it has 1,200 digests under a secret that the file does not name",
        "add the secret to `secrets`",
    ),
    "a clock that is ahead": (replace(SOUND, ahead=9_000), "9 s ahead of that of AWS", "NTP"),
    "a clock that is behind": (replace(SOUND, ahead=-60_000), "60 s behind that of AWS", "NTP"),
    "no redrive policy": (queue(dead=""), "no redrive policy", "maxReceiveCount 100"),
    "too few receives": (queue(receives=5), "after 5 receives", "set maxReceiveCount to 100"),
    "dead letters are soon deleted": (
        replace(SOUND, dead=replace(DEAD, retention=4 * DAY)),
        "calls-dead keeps dead letters for 4 days",
        "MessageRetentionPeriod to 1209600",
    ),
    "messages are soon deleted": (
        queue(retention=3 * DAY),
        "the queue calls keeps a message for 3 days",
        "MessageRetentionPeriod to 345600",
    ),
    "messages are held back": (
        queue(delay=900),
        "the queue calls holds every message back for 900 s",
        "DelaySeconds to 0",
    ),
    "large events are refused": (
        queue(largest=1024),
        "the queue calls takes messages of up to 1024 bytes",
        "MaximumMessageSize to 262144",
    ),
    "a partner's events on another bus": (
        delivery(forwarded=False),
        "the rule calls of bus default matches no event of aws.partner/genesys.com",
        'write that bus into [infra], as in bus = "aws.partner/genesys.com/…"',
    ),
    "visibility below six timeouts": (
        queue(visibility=120),
        "hides a message for 120 s, the function calls may run for 60 s",
        "VisibilityTimeout to 360",
    ),
    "no deduplication": (
        fifo(deduplicates=False, group="all"),
        "does not deduplicate",
        "ContentBasedDeduplication",
    ),
    "no message group": (fifo(deduplicates=True, group=""), "names no group", "MessageGroupId"),
    "a disabled rule": (delivery(enabled=False), "is disabled", "enable-rule --name calls"),
    "a disabled rule beside its successor": (
        beside(enabled=False),
        "the rule other of bus default is disabled",
        "or delete it",
    ),
    "few retries": (delivery(retries=2), "tries 2 times", "remove the target's RetryPolicy"),
    "a short age": (delivery(age=300), "within 300 s", "remove the target's RetryPolicy"),
    "undelivered events are lost": (delivery(dead=""), "drops events", "DeadLetterConfig"),
    "a constant": (delivery(input='{"a": 1}'), "by a constant", "remove the target's Input"),
    "a part of the event": (delivery(path="$.detail"), "$.detail alone", "remove the target's"),
    "a transformer without the id": (
        delivery(template='{"a": <detail>}', paths={"detail": "$.detail"}),
        "drops the event's id",
        "remove the target's Input",
    ),
    "an id that the template does not use": (
        delivery(template='{"a": <detail>}', paths={"detail": "$.detail", "id": "$.id"}),
        "drops the event's id",
        "remove the target's Input",
    ),
    "an id under another name": (
        delivery(template='{"i": <id>, "detail": <detail>}', paths=ID_AND_DETAIL),
        "drops the event's id",
        "remove the target's Input",
    ),
    "an id inside another event": (
        delivery(template='{"event": <aws.events.event.json>}'),
        "drops the event's id",
        "remove the target's Input",
    ),
    "the name of the rule in the place of the id": (
        delivery(
            template='{"id": <aws.events.rule-name>, "detail": <detail>}', paths=ID_AND_DETAIL
        ),
        "drops the event's id",
        "remove the target's Input",
    ),
    "an event that quotation marks break": (
        delivery(template='{"id": <id>, "detail": "<aws.events.event.json>"}', paths=ID_AND_DETAIL),
        "drops the event's id",
        "remove the target's Input",
    ),
    "the envelope alone": (
        delivery(template="<aws.events.event>"),
        "the input transformer of the rule calls of bus default drops the event's detail",
        "remove the target's Input",
    ),
    "an id in a sentence": (
        delivery(template='"the event <id> came"', paths=ID_AND_DETAIL),
        "drops the event's id",
        "remove the target's Input",
    ),
    "an id and a detail": (
        delivery(template='{"id": <id>, "detail": <detail>}', paths=ID_AND_DETAIL),
        "drops the event's source, detail-type, time",
        "remove the target's Input",
    ),
    "the whole event as the detail of another": (
        delivery(template='{"id": <id>, "detail": <aws.events.event.json>}', paths=ID_AND_DETAIL),
        "drops the event's source, detail-type, time, detail",
        "remove the target's Input",
    ),
    **{
        f"all but the {name}": (
            delivery(template=ALL_PARTS.replace(f'"{name}":', '"x":'), paths=ALL_PATHS),
            f"bus default drops the event's {name}",
            "remove the target's Input",
        )
        for name in ("source", "detail-type", "time", "detail")
    },
    "a part of the detail": (
        delivery(
            template=ALL_PARTS.replace("<d>", '{"said": "\\"<n>\\""}'),
            paths=ALL_PATHS | ID_AND_DETAIL,
        ),
        "bus default drops the event's detail",
        "remove the target's Input",
    ),
    "two rules of one bus": (
        beside(pattern={"detail-type": [FLOW]}),
        f"calls and other of bus default both deliver {FLOW} events",
        "narrow one pattern",
    ),
    "two buses": (
        beside(bus="calls"),
        "the same events may come by two buses: default (rule calls) and calls (rule other)",
        "from one bus alone",
    ),
    "a partner's bus beside": (
        beside(
            bus="aws.partner/genesys.com/cloud/5a3b/prod", pattern={"account": ["111122223333"]}
        ),
        "may come by two buses",
        "from one bus alone",
    ),
    "two targets of one rule": (
        beside(rule="calls", target="again"),
        "two targets for the same events: queue, again",
        "remove-targets --rule calls --event-bus-name default --ids again",
    ),
    "a topic beside": (
        beside(rule="calls", target="fan", to=TOPIC_ARN),
        "two targets for the same events: queue, fan; by the topic calls-fan",
        "Or end the queue's subscription to the topic calls-fan",
    ),
    "a policy that names the bus": (
        queue(policy=policy("arn:aws:events:eu-central-1:111122223333:event-bus/default")),
        "does not let the rule calls of bus default send",
        RULE_ARN,
    ),
    "no policy": (queue(policy={}), "does not let the rule calls", "sqs:SendMessage"),
    "a policy for another service": (
        queue(policy=policy(RULE_ARN, Principal={"Service": "sns.amazonaws.com"})),
        "does not let the rule calls",
        "events.amazonaws.com",
    ),
    "a policy that denies": (
        queue(policy=denying(Condition={"ArnNotEquals": {"aws:SourceArn": f"{RULE_ARN}-2"}})),
        "does not let the rule calls",
        "the statement Never of the queue's policy",
    ),
    "a policy that denies, beside one that cannot be judged": (
        queue(
            policy={"Statement": [*denying()["Statement"], *denying(Condition=VPC)["Statement"]]}
        ),
        "does not let the rule calls",
        "the statement Never",
    ),
    "a policy for another queue": (
        queue(policy=policy(RULE_ARN, Resource=f"{QUEUE_ARN}-2")),
        "does not let the rule calls",
        "sqs:SendMessage",
    ),
    "a policy that takes a wildcard for a text": (
        queue(policy=policy(Condition={"StringEquals": {"aws:SourceArn": f"{RULE_ARN[:-2]}*"}})),
        "does not let the rule calls",
        "sqs:SendMessage",
    ),
    "a key that nobody may use": (
        queue(key="alias/aws/sqs"),
        "encrypted with alias/aws/sqs",
        "SqsManagedSseEnabled",
    ),
    "a mapping that is off": (
        replace(SOUND, mappings=(replace(MAPPING, enabled=False),)),
        "is disabled",
        "--uuid 1-2-3 --enabled",
    ),
    "no partial batch responses": (
        replace(SOUND, mappings=(replace(MAPPING, partial=False),)),
        "does not take partial batch responses",
        "ReportBatchItemFailures",
    ),
    "a filter": (
        filtered({"body": {"detail": {"direction": ["inbound"]}}}),
        "the mapping from the queue to the function calls has a filter that loses events",
        "--uuid 1-2-3 --filter-criteria '{}'",
    ),
    "a filter of the same field": (
        filtered({"body": {"source": ["aws.partner/genesys.com"]}}),
        "has a filter that loses events",
        "--filter-criteria",
    ),
    "a filter for a queue that no rule was seen for": (
        replace(filtered({"body": DELIVERY.pattern}), targets=()),
        "has a filter that loses events",
        "--filter-criteria",
    ),
    "a filter for what the rule does not send": (
        filtered({"body": DELIVERY.pattern}, template="<aws.events.event.json>"),
        "has a filter that loses events",
        "--filter-criteria",
    ),
    "two functions for one queue": (
        replace(SOUND, mappings=(MAPPING, SourceMapping("4-5-6", "bills:live"))),
        "the functions bills, calls all receive from the queue",
        "a queue of its own",
    ),
    "no concurrency": (
        replace(SOUND, functions=(replace(FUNCTION, concurrency=0),)),
        "a reserved concurrency of 0",
        "delete-function-concurrency",
    ),
    "an event that Lambda gives up is lost": (
        direct(dead=""),
        "the function calls has no place for an event that Lambda gives up after 3 attempts",
        "give it an on-failure destination",
    ),
    "an event that Lambda tries once is lost": (
        direct(attempts=1, dead=""),
        "gives up after 1 attempt",
        "give it an on-failure destination",
    ),
    "Lambda gives an event up soon": (
        direct(age=60),
        "Lambda tries to invoke the function calls for 60 s",
        "--maximum-event-age-in-seconds 21600",
    ),
    "a missing right": (
        replace(SOUND, denied=(Denied(ROLE, "sqs:DeleteMessage", QUEUE_ARN),)),
        f"{ROLE} may not sqs:DeleteMessage on {QUEUE_ARN}",
        "eventonce infra iam",
    ),
    "a missing right, and another that could not be asked for": (
        replace(SOUND, asked_rights=(), denied=(Denied(ROLE, "sqs:DeleteMessage", QUEUE_ARN),)),
        f"{ROLE} may not sqs:DeleteMessage on {QUEUE_ARN}",
        "eventonce infra iam",
    ),
    "a queue that keeps for long": (
        queue(retention=14 * DAY),
        "remembers for 10 days, and a copy can come 19 days later",
        'remember = "19d"',
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_as_the_only_fault_with_its_remedy(name: str) -> None:
    facts, what, fix = FAULTS[name]
    ((said, remedy),) = faults(facts)
    assert what in said
    assert fix in remedy


@pytest.mark.parametrize(
    ("pattern", "taken", "fault"),
    [
        ({"detail-type": ["v2.users.{id}.presence"]}, ["v2.detail.*"], True),
        ({"detail-type": [{"prefix": "v2.users."}]}, ["v2.detail.*", "v2.flows"], True),
        ({"$or": [{"detail-type": ["a"]}, {"detail-type": ["b"]}]}, ["c"], True),
        ({"$or": [{"detail-type": ["a"]}, {"detail-type": ["b"]}]}, ["b"], False),
        ({"detail-type": ["v2.users.{id}.presence"]}, ["v2.detail.*", "*"], False),
        ({"detail-type": ["v2.users.{id}.presence"]}, [], False),
        ({"detail-type": [{"anything-but": ["v2.flows"]}]}, ["v2.detail.*"], False),
        ({"source": ["com.nobody"]}, ["v2.detail.*"], False),
    ],
)
def test_a_rule_of_a_bus_that_delivers_only_events_without_a_sink_is_found(
    pattern: dict[str, Any], taken: list[str], fault: bool
) -> None:
    found = faults(delivery(pattern=pattern), replace(SETTINGS, taken=taken))
    assert [what for what, _ in found] == [
        "the rule calls of bus default brings only events that no sink takes"
    ] * fault
    assert faults(delivery(pattern=pattern, path="$"), replace(SETTINGS, taken=taken)) == found


def test_a_mapping_that_is_off_shares_no_events() -> None:
    off = replace(SOUND, mappings=(MAPPING, SourceMapping("4-5-6", "bills", enabled=False)))
    assert [what for what, _ in faults(off)] == [
        "the mapping from the queue to the function bills is disabled"
    ]


def test_a_short_delay_of_the_queue_is_no_fault() -> None:
    assert faults(queue(delay=60)) == []


@pytest.mark.parametrize(
    ("settings", "facts", "what", "fix"),
    [
        (state(lease="10m"), SOUND, "of a state is 600 s (own)", "VisibilityTimeout to 600"),
        (changed(lease="2m"), WORKER, "the longest lease is 120 s (own)", 'visibility = "120s"'),
        (state(lease="2m"), WORKER, "the longest lease is 120 s (own)", 'visibility = "120s"'),
        (state(lease="5m"), DIRECT, "120 s after it began", "lease to 60 s"),
        (changed(timeout="60s"), SOUND, "a handler for 60 s (own)", "above 60 s"),
        (changed(attempts=100), SOUND, "after 100 attempts", "set maxReceiveCount to 200"),
        (charged("2d"), Facts(), "webhook remembers for 2 days,", 'remember = "4d"'),
        (changed(remember="1h"), Facts(), "remembers for 1 hour,", 'remember = "1d"'),
    ],
)  # fmt: skip
def test_a_rule_that_does_not_fit_the_set_up_is_found(
    settings: FileFacts, facts: Facts, what: str, fix: str
) -> None:
    ((said, remedy),) = faults(facts, settings)
    assert what in said
    assert fix in remedy


@pytest.mark.parametrize("facts", [SOUND, DIRECT])
def test_a_long_lease_of_a_fact_is_no_fault_for_a_function(facts: Facts) -> None:
    assert faults(facts, changed(lease="1h")) == []


@pytest.mark.parametrize(
    "facts",
    [
        fifo(deduplicates=True, group="all"),
        delivery(template="<aws.events.event.json>"),
        delivery(template=ALL_PARTS, paths=ALL_PATHS),
        delivery(template="<all>", paths={"all": "$"}),
        delivery(path="$"),
        queue(policy=policy("arn:aws:events:*:111122223333:rule/*")),
        queue(policy=policy(RULE_ARN, Action=["sqs:*"], Principal="*")),
        queue(policy=policy(Condition={"ArnNotEquals": {"aws:SourceArn": "arn:aws:sns:*"}})),
        queue(policy=policy(Condition={"StringLike": {"aws:SourceArn": f"{RULE_ARN[:-2]}*"}})),
        queue(policy=denying(Condition={"Bool": {"aws:SecureTransport": "false"}})),
        queue(policy=denying(Condition={"BoolIfExists": {"aws:PrincipalIsAWSService": "false"}})),
        queue(policy=denying(Principal={"AWS": "arn:aws:iam::111122223333:root"})),
        queue(policy=denying(Action=["sqs:DeleteMessage", "sqs:Receive*"])),
        queue(policy=denying(NotAction="sqs:Send*")),
        queue(policy=denying(Resource=f"{QUEUE_ARN}-2", Condition=VPC)),
        queue(policy=denying(Condition={"ArnNotLike": {"aws:SourceArn": RULE_ARN}} | VPC)),
        beside(pattern={"source": ["aws.connect"]}),
        of_two_organisations(),
        beside(bus="aws.partner/auth0.com/a/auth0.logs", pattern={"detail-type": ["Auth0 log"]}),
        DIRECT,
        filtered({"body": {"x": ["y"]}}, {"body": {"source": ["x", *DELIVERY.pattern["source"]]}}),
        replace(SOUND, mappings=(MAPPING, SourceMapping("4-5-6", "calls:live"))),
        # This function gets its events from a queue only.
        replace(SOUND, functions=(replace(FUNCTION, invoked=AsyncFacts(1, 60)),)),
    ],
)
def test_a_set_up_that_only_resembles_a_fault_has_no_fault(facts: Facts) -> None:
    assert faults(facts) == []


@pytest.mark.parametrize(
    ("facts", "what"),
    [
        (queue(key="1-2-3"), "whether events.amazonaws.com may use the key 1-2-3"),
        (delivery(to=TOPIC_ARN), "whether the topic calls-fan passes on all that the rule calls"),
        (delivery(role=ROLE), "whether the rule calls of bus default may send"),
        (delivery(forwarded=None), "whether events of aws.partner/genesys.com are forwarded"),
        (Facts(hidden=True), "how late a copy can come"),
        (
            replace(SOUND, mappings=(replace(MAPPING, filter_key="1-2-3"),)),
            "whether the mapping from the queue to the function calls has a filter: the key 1-2-3",
        ),
        (direct(attempts=2), "needs lambda_handler(consumer, attempts=2)"),
        *(
            (queue(policy=it), f"lets the rule calls of bus default send: its statement {which}")
            for it, which in (
                (denying(Condition=VPC), "Never"),
                (denying(NotPrincipal={"AWS": "111122223333"}, Condition=VPC), "Never"),
                (denying(Condition={"ArnEquals": {"aws:SourceArn": "*"}}), "Never"),
                (denying(Condition={"ArnEquals": {"aws:SourceArn": "${aws:x}"}}), "Never"),
                (
                    policy(RULE_ARN, Condition={"StringEquals": {"aws:SourceOrgID": "o"}}),
                    "number 1",
                ),
                (
                    policy(Condition={"ForAnyValue:ArnLike": {"aws:SourceArn": RULE_ARN}}),
                    "number 1",
                ),
            )
        ),
    ],
)
def test_a_fact_that_could_not_be_read_is_reported_as_not_checked(facts: Facts, what: str) -> None:
    (one,) = [it for _, it in findings(facts, SETTINGS) if it.state != "ok"]
    assert one.state == "not checked"
    assert what in one.what


def test_a_slow_answer_is_not_reported_as_a_wrong_clock() -> None:
    assert [ahead_of(theirs, 1_000, 90_000) for theirs in (1_000, 50_000, 90_000)] == [0, 0, 0]
    assert ahead_of(400, 1_000, 90_000) == 600
    assert ahead_of(90_100, 1_000, 90_000) == -100


def test_a_misspelt_topic_is_a_fault_and_a_type_of_the_user_is_not_checked() -> None:
    unknown = [UnknownPattern("sink.match", "v2.nothing", ""), UnknownPattern("on", "mine", "")]
    found = [it for _, it in findings(SOUND, replace(SETTINGS, patterns=unknown))]
    assert [it.what for it in found if not it.fine] == [str(unknown[0])]
    assert [it.what[:2] for it in found if it.state == "not checked"] == ["on"]


def test_a_pattern_that_cannot_be_read_is_not_checked(run: Run) -> None:
    Path("far.py").write_text("@consumer.on(FAR)\ndef take(job): ...\n")
    said = run("doctor", "--handler", "far:consumer").out
    assert "not checked: far.py:1: on: the pattern cannot be checked" in said
    assert "every pattern matches" not in said


OVERLAPS = [
    ({}, {"source": ["a"]}, True),
    ({"source": ["a"]}, {"source": ["b", "a"]}, True),
    ({"source": ["a"]}, {"source": ["b"]}, False),
    ({"source": [{"prefix": "ab"}]}, {"source": [{"prefix": "a"}]}, True),
    ({"source": [{"prefix": "ab"}]}, {"source": [{"prefix": "ac"}]}, False),
    ({"source": [{"prefix": "ab"}]}, {"source": [{"suffix": "z"}]}, True),
    ({"source": [{"wildcard": "a*c"}]}, {"source": ["abd"]}, False),
    ({"source": [{"anything-but": ["a"]}]}, {"source": ["a"]}, False),
    ({"source": [{"anything-but": {"prefix": "a"}}]}, {"source": ["ab"]}, False),
    ({"source": [{"anything-but": "a"}]}, {"source": ["b"]}, True),
    ({"source": [{"anything-but": {"equals-ignore-case": "a"}}]}, {"source": ["b"]}, True),
    ({"source": [{"prefix": "a"}]}, {"source": ["a" * 2000]}, True),
    ({"source": ["a" * 2000]}, {"source": ["a" * 2000]}, True),
    ({"source": ["a" * 2000]}, {"source": ["a" * 1999 + "b"]}, False),
    ({"source": [{"anything-but": "a"}]}, {"source": [{"prefix": "a"}]}, True),
    ({"detail": {"n": [1]}}, {"detail": {"n": [2]}}, False),
    ({"detail": {"n": [1]}}, {"detail": {"m": [2]}}, True),
    ({"detail": {"n": [{"numeric": [">", 1]}]}}, {"detail": {"n": [7]}}, True),
    ({"detail": {"n": [{"exists": False}]}}, {"detail": {"n": [1]}}, False),
    ({"detail": {"n": [{"exists": False}]}}, {"detail": {"n": [{"exists": False}]}}, True),
    ({"$or": [{"source": ["a"]}, {"detail-type": ["t"]}]}, {"source": ["b"]}, True),
    (
        {"$or": [{"source": ["a"]}, {"detail-type": ["t"]}]},
        {"source": ["b"], "detail-type": ["u"]},
        False,
    ),
]  # fmt: skip


@pytest.mark.parametrize(("one", "other", "both"), OVERLAPS)
def test_patterns_overlap_if_an_event_may_match_both(
    one: dict[str, Any], other: dict[str, Any], both: bool
) -> None:
    assert patterns.overlap(one, other) is both
    assert patterns.overlap(other, one) is both


COVERED = [
    ({}, {"source": ["a"]}, True),
    ({"source": ["a"]}, {}, False),
    ({"source": ["a", "b"]}, {"source": ["b"], "detail-type": ["t"]}, True),
    ({"source": ["a"]}, {"source": ["a", "b"]}, False),
    ({"detail": {"n": [{"numeric": [">", 1]}]}}, {"detail": {"n": [{"numeric": [">", 1]}]}}, True),
    ({"detail": {"n": [1]}}, {"detail": {"m": [1]}}, False),
    ({"source": [{"prefix": "aws."}]}, {"source": [{"prefix": "aws.partner/"}, "aws.ec2"]}, True),
    ({"source": [{"prefix": "aws.partner/"}]}, {"source": [{"prefix": "aws."}]}, False),
    ({"source": [{"prefix": "aws."}]}, {"source": [{"suffix": "aws."}]}, False),
    ({"source": [{"suffix": ".x"}]}, {"source": [{"suffix": "a.x"}, "b.x"]}, True),
    ({"detail": {"n": [{"exists": True}]}}, {"detail": {"n": [1, {"prefix": "a"}]}}, True),
    ({"detail": {"n": [{"exists": True}]}}, {"detail": {"n": [{"exists": False}]}}, False),
    ({"$or": [{"source": ["a"]}, {"source": ["b"]}]}, {"source": ["b"]}, True),
    ({"source": ["a"]}, {"$or": [{"source": ["a"]}, {"detail-type": ["t"]}]}, False),
]


@pytest.mark.parametrize(("wide", "narrow", "covered"), COVERED)
def test_a_pattern_covers_another_if_it_matches_each_event_of_the_other(
    wide: dict[str, Any], narrow: dict[str, Any], covered: bool
) -> None:
    assert patterns.covers(wide, narrow) is covered


def test_a_shared_type_is_named_only_if_a_pattern_names_types() -> None:
    topics = {"detail-type": [{"prefix": "v2.detail.events.conversation"}]}
    assert patterns.shared_type(topics, {"detail-type": [FLOW]}) == FLOW
    assert patterns.shared_type({"source": ["a"]}, {}) == ""


def test_the_principal_of_a_session_is_its_role() -> None:
    session = "arn:aws:sts::111122223333:assumed-role/calls/i-1"
    assert _principal(session) == ROLE
    assert _principal("arn:aws:iam::111122223333:user/me") == "arn:aws:iam::111122223333:user/me"


def test_a_store_in_memory_is_a_fault() -> None:
    (memory,) = store_findings("memory:")
    assert not memory.fine


def test_a_store_that_takes_no_write_is_a_fault(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/a.db?wait=0"
    with closing(SQLiteStore(tmp_path / "a.db")) as store:
        assert all(it.fine for it in store_findings(uri))
        with store.transaction():
            (fault,) = [it for it in store_findings(uri) if not it.fine]
    assert fault.what == CAN_WRITE
    assert "locked by another" in fault.fix


def test_a_set_up_without_aws_is_checked_except_for_aws(run: Run) -> None:
    missing = run("doctor")
    assert (missing.code, "MISSING" in missing.out, "1 fault in" in missing.out) == (1, True, True)
    run("store", "create")
    found = run("doctor")
    assert found.code == 0, found.out
    assert "not checked: AWS: no queue or function is named" in found.out
    assert "; 1 not checked" in found.out
    assert "sound" not in found.out


@pytest.mark.parametrize(
    "facts",
    [
        history(age=30 * DAY * 1000, span=550),
        history(begun=False),
    ],
)
def test_a_sound_history_has_no_fault(facts: Facts) -> None:
    assert faults(facts) == []
    assert [it.what for area, it in findings(facts, SETTINGS) if area == "history"]


def test_the_history_of_the_file_is_checked_without_a_change(run: Run, tmp_path: Path) -> None:
    config, path = tmp_path / "crm.toml", tmp_path / "history.db"
    config.write_text(
        f'store = "sqlite:///{tmp_path}/store.db"\nsecrets = ["a secret of enough length"]\n'
        f'[history]\nstore = "sqlite:///{path}"\nmost = 1\n'
    )
    run("store", "create", "-c", config)

    def told() -> dict[str, str]:
        (found,) = run("doctor", "-c", config, "--json").documents
        return {it["what"]: it["state"] for it in found["checks"] if it["area"] == "history"}

    uri = f"sqlite:///{path}"
    assert told() == {
        f"the history {uri} is not begun yet: `run` and `serve` begin it": "ok",
        "a decision can be written to the history": "ok",
    }
    assert not path.exists(), "nothing is changed"
    with History(uri, secrets=[b"another secret of enough length"]) as kept:
        made = Consumer("memory:", name="crm", handler=lambda _: None)
        made.observers.append(kept.observer(made))
        made.process([call(number, conversationId="c") for number in range(2)])
        kept.flush()
        before = path.read_bytes()
        assert told() == {
            f"the history {uri} answers, and its tables are those of this version": "ok",
            "a decision can be written to the history": "ok",
            "no decision is older than 30d (keep)": "ok",
            "it has more decisions than 1 (most)": "failed",
            "it has 2 digests under a secret that the file does not name": "failed",
        }
        assert path.read_bytes() == before
    for one in tmp_path.glob("history.db*"):
        one.unlink()
    path.write_text("no database" * 100)
    assert told() == {f"the history {uri} cannot be used": "failed"}


def test_a_history_that_takes_no_write_is_a_fault(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/history.db?wait=0"
    History(uri).close()
    assert history_facts(uri, "30d", 5, ()).refused == ""
    with closing(sqlite3.connect(tmp_path / "history.db")) as other:
        other.execute("BEGIN IMMEDIATE")
        assert "locked" in history_facts(uri, "30d", 5, ()).refused
