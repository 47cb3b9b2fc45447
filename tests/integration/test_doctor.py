"""`eventonce doctor` on an emulated account: the stack of `infra apply` is sound, and each fault
that is planted in it is found, by itself and with its remedy."""

from __future__ import annotations

import io
import json
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import boto3
import msgspec
import pytest

from eventonce.clock import wall_clock
from eventonce.doctor import look, storage
from eventonce.infra import iam
from eventonce.infra.iam import QUEUE_RIGHTS, STORE_RIGHTS
from eventonce.infra.stack import deploy
from eventonce.infra.topology import Infra, Topology, topology_of
from eventonce.stores import open_schema
from tests.helpers import Run
from tests.integration.infra.account import HERE
from tests.integration.infra.asked import allows, asking, given
from tests.servers.aws import REGION
from tests.servers.http import Handler, served
from tests.servers.postgres import Cluster
from tests.servers.valkey import Node

SOURCE = "com.example.doctor"
PATTERN = json.dumps({"source": [SOURCE]})
NAME = "doctored"
BUS = "doctored-bus"


class Account(NamedTuple):
    """The emulated account, and the names of the stack in it."""

    endpoint: str
    client: Callable[[str], Any]
    store: str
    arn: str
    url: str
    topology: Topology

    def attribute(self, **values: str) -> None:
        self.client("sqs").set_queue_attributes(QueueUrl=self.url, Attributes=values)

    @property
    def mapping(self) -> dict[str, Any]:
        found = self.client("lambda").list_event_source_mappings(EventSourceArn=self.arn)
        (one,) = found["EventSourceMappings"]
        return dict(one)

    @property
    def target(self) -> dict[str, Any]:
        (one,) = self.client("events").list_targets_by_rule(Rule=NAME)["Targets"]
        return dict(one)


@pytest.fixture(scope="module")
def account(endpoint: str) -> Account:
    client = cache(lambda service: boto3.client(service, REGION, endpoint_url=endpoint))
    client("s3").create_bucket(
        Bucket=NAME, CreateBucketConfiguration={"LocationConstraint": REGION}
    )
    code = io.BytesIO()
    with zipfile.ZipFile(code, "w") as packed:
        packed.writestr("function.py", "def handler(event, context): ...")
    client("s3").put_object(Bucket=NAME, Key="function.zip", Body=code.getvalue())
    store = f"dynamodb://{NAME}?region={REGION}&endpoint={endpoint}"
    infra = Infra(source=SOURCE, region=REGION, endpoint=endpoint, code=f"s3://{NAME}/function.zip")
    topology = topology_of(infra, name=NAME, store=store)
    deploy(infra, topology, store=store)
    # The emulator's CloudFormation leaves the table's expiry out.
    open_schema(store).migrate()
    url = client("sqs").get_queue_url(QueueName=NAME)["QueueUrl"]
    arn = f"arn:aws:sqs:{REGION}:000000000000:{NAME}"
    return Account(endpoint, client, store, arn, url, topology)


class Doctor:
    """The command with the file of the stack."""

    def __init__(self, run: Run, account: Account) -> None:
        self.run, self.account = run, account

    def __call__(self, *args: str, text: str = "", store: str = "", endpoint: str = "") -> Any:
        """The answer of `doctor --json`, with this text in the file too."""
        where = f'region = "{REGION}"\nendpoint = "{endpoint or self.account.endpoint}"'
        head = f'name = "{NAME}"\nstore = "{store or self.account.store}"\npresets = ["genesys"]'
        Path("eventonce.toml").write_text(f"{head}\n{text}\n[infra]\n{where}\n")
        done = self.run("doctor", "--json", *args)
        document = json.loads(done.out)
        assert done.code == any(it["fix"] for it in document["checks"]), document
        return document

    def faults(self, *args: str, **said: str) -> list[tuple[str, str]]:
        return [(it["what"], it["fix"]) for it in self(*args, **said)["checks"] if it["fix"]]


@pytest.fixture
def doctor(run: Run, account: Account) -> Doctor:
    return Doctor(run, account)


def test_with_a_store_alone_aws_is_not_checked(run: Run, account: Account) -> None:
    Path("eventonce.toml").write_text(f'name = "{NAME}"\nstore = "{account.store}"\n')
    found = json.loads(run("doctor", "--json").out)
    unseen = [it["what"] for it in found["checks"] if it["state"] == "not checked"]
    assert "AWS: no queue or function is named; --queue names one" in unseen
    assert found["sound"] is False


def test_the_stack_of_infra_apply_is_sound(doctor: Doctor, account: Account) -> None:
    found = doctor()
    assert [it for it in found["checks"] if it["state"] != "ok"] == []
    assert found["sound"] is True
    said = doctor.run("doctor")
    assert said.code == 0
    first, *_, last = said.out.splitlines()
    assert first == (
        f"account 000000000000, principal arn:aws:iam::000000000000:root, region {REGION}"
    )
    assert last == f"the set-up is sound: no fault in {len(found['checks'])} checks"
    areas = dict.fromkeys(it["area"] for it in found["checks"])
    assert list(areas) == ["account", "store", "queue", "buses", "function", "rights", "rules"]


def test_the_doctor_policy_gives_exactly_the_rights_that_the_doctor_needs(
    doctor: Doctor, account: Account
) -> None:
    policy = iam.policy("doctor", account.topology, HERE)
    with asking() as asked:
        doctor()
    assert [one for one in asked if not allows(policy, one)] == []
    assert {one.action for one in asked} == given(policy)


def test_the_doctor_policy_is_exact_if_old_dead_letters_are_dropped(
    doctor: Doctor, account: Account
) -> None:
    topology = msgspec.structs.replace(account.topology, drops_letters=True)
    policy = iam.policy("doctor", topology, HERE)
    with asking() as asked:
        doctor(text='keep_letters = "90d"')
    assert [one for one in asked if not allows(policy, one)] == []
    assert {one.action for one in asked} == given(policy)


# Each function plants one fault, and repairs it at the end.

Plant = Callable[[Account], Any]


@contextmanager
def attribute(account: Account, name: str, value: str, queue: str = NAME) -> Iterator[None]:
    sqs = account.client("sqs")
    url = sqs.get_queue_url(QueueName=queue)["QueueUrl"]
    held = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    sqs.set_queue_attributes(QueueUrl=url, Attributes={name: value})
    yield
    sqs.set_queue_attributes(QueueUrl=url, Attributes={name: held[name]})


@contextmanager
def mapping(account: Account, **wrong: Any) -> Iterator[None]:
    one, client = account.mapping, account.client("lambda")
    right = {
        "Enabled": True,
        "FunctionResponseTypes": one["FunctionResponseTypes"],
        "FilterCriteria": {"Filters": []},
    }
    client.update_event_source_mapping(UUID=one["UUID"], **wrong)
    yield
    client.update_event_source_mapping(UUID=one["UUID"], **right)


@contextmanager
def target(account: Account, without: str = "", **wrong: Any) -> Iterator[None]:
    events, right = account.client("events"), account.target
    changed = {name: value for name, value in right.items() if name != without} | wrong
    events.put_targets(Rule=NAME, Targets=[changed])
    yield
    events.put_targets(Rule=NAME, Targets=[right])


@contextmanager
def twice(account: Account) -> Iterator[None]:
    events = account.client("events")
    events.put_targets(Rule=NAME, Targets=[account.target | {"Id": "again"}])
    yield
    events.remove_targets(Rule=NAME, Ids=["again"])


@contextmanager
def fanned(account: Account, endpoint: str = "") -> Iterator[None]:
    """The rule reaches a topic too, to which the queue subscribes, or another endpoint."""
    events, sns = account.client("events"), account.client("sns")
    topic = sns.create_topic(Name="fan")["TopicArn"]
    sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=endpoint or account.arn)
    events.put_targets(Rule=NAME, Targets=[account.target | {"Id": "fan", "Arn": topic}])
    yield
    events.remove_targets(Rule=NAME, Ids=["fan"])
    sns.delete_topic(TopicArn=topic)


@contextmanager
def admitting(account: Account, queue: str, rule: str) -> Iterator[None]:
    """The queue with a policy that admits this rule, too."""
    sqs = account.client("sqs")
    url = sqs.get_queue_url(QueueName=queue)["QueueUrl"]
    held = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["Policy"])["Attributes"]
    policy = json.loads(held["Policy"])
    own = policy["Statement"][0]
    other = own | {"Sid": "Other", "Condition": {"ArnEquals": {"aws:SourceArn": rule}}}
    with attribute(account, "Policy", json.dumps(policy | {"Statement": [own, other]}), queue):
        yield


@contextmanager
def rule(account: Account, pattern: str, bus: str = "default") -> Iterator[None]:
    """Another rule that reaches the queue, and is admitted by this queue and by the queue for
    undelivered events."""
    events = account.client("events")
    if bus != "default":
        events.create_event_bus(Name=bus)
    where = {"EventBusName": bus}
    made = events.put_rule(Name="another", EventPattern=pattern, **where)["RuleArn"]
    events.put_targets(Rule="another", Targets=[account.target], **where)
    with ExitStack() as policies:
        for queue in (NAME, f"{NAME}-undelivered"):
            policies.enter_context(admitting(account, queue, made))
        yield
    events.remove_targets(Rule="another", Ids=["queue"], **where)
    events.delete_rule(Name="another", **where)
    if bus != "default":
        events.delete_event_bus(Name=bus)


@contextmanager
def disabled(account: Account) -> Iterator[None]:
    account.client("events").disable_rule(Name=NAME)
    yield
    account.client("events").enable_rule(Name=NAME)


@contextmanager
def timeout(account: Account, seconds: int) -> Iterator[None]:
    client = account.client("lambda")
    client.update_function_configuration(FunctionName=NAME, Timeout=seconds)
    yield
    client.update_function_configuration(FunctionName=NAME, Timeout=60)


@contextmanager
def throttled(account: Account) -> Iterator[None]:
    client = account.client("lambda")
    client.put_function_concurrency(FunctionName=NAME, ReservedConcurrentExecutions=0)
    yield
    client.delete_function_concurrency(FunctionName=NAME)


@contextmanager
def powerless(account: Account) -> Iterator[None]:
    """The function's role may not delete messages."""
    iam, client = account.client("iam"), account.client("lambda")
    role = client.get_function_configuration(FunctionName=NAME)["Role"].rpartition("/")[2]
    denied = {"Effect": "Deny", "Action": "sqs:DeleteMessage", "Resource": "*"}
    document = json.dumps({"Version": "2012-10-17", "Statement": [denied]})
    iam.put_role_policy(RoleName=role, PolicyName="deny", PolicyDocument=document)
    yield
    iam.delete_role_policy(RoleName=role, PolicyName="deny")


@contextmanager
def unlimited(account: Account) -> Iterator[None]:
    """The table keeps its items for ever."""
    table = account.client("dynamodb")

    def expire(*, enabled: bool) -> None:
        said = {"Enabled": enabled, "AttributeName": "expiration"}
        table.update_time_to_live(TableName=NAME, TimeToLiveSpecification=said)

    expire(enabled=False)
    yield
    expire(enabled=True)


TRANSFORMER = {"InputPathsMap": {"d": "$.detail"}, "InputTemplate": '{"detail": <d>}'}
BUS_ARN = f"arn:aws:events:{REGION}:000000000000:event-bus/default"
NOT_THE_RULE = json.dumps(
    {
        "Statement": [
            {
                "Effect": "Allow",
                "Principal": {"Service": "events.amazonaws.com"},
                "Action": "sqs:SendMessage",
                "Resource": "*",
                "Condition": {"ArnEquals": {"aws:SourceArn": BUS_ARN}},
            }
        ]
    }
)

OF_PARTNER = json.dumps({"source": [{"prefix": "aws.partner/genesys.com"}]})

PLANTED: dict[str, tuple[Plant, str, str]] = {
    "visibility": (
        partial(attribute, name="VisibilityTimeout", value="60"),
        "hides a message for 60 s, the function doctored may run for 60 s",
        "VisibilityTimeout to 360",
    ),
    "retention": (
        partial(attribute, name="MessageRetentionPeriod", value="3600"),
        "the queue doctored keeps a message for 1 hour",
        "MessageRetentionPeriod to 345600",
    ),
    "delay": (
        partial(attribute, name="DelaySeconds", value="900"),
        "holds every message back for 900 s",
        "DelaySeconds to 0",
    ),
    "size": (
        partial(attribute, name="MaximumMessageSize", value="1024"),
        "takes messages of up to 1024 bytes",
        "MaximumMessageSize to 262144",
    ),
    "partner": (
        partial(rule, pattern=OF_PARTNER),
        "the rule another of bus default matches no event of aws.partner/genesys.com",
        "Forward them to default",
    ),
    "redrive": (
        partial(attribute, name="RedrivePolicy", value=""),
        "has no redrive policy",
        "maxReceiveCount 100",
    ),
    "receives": (
        partial(
            attribute,
            name="RedrivePolicy",
            value=json.dumps(
                {
                    "deadLetterTargetArn": f"arn:aws:sqs:{REGION}:000000000000:{NAME}-dead",
                    "maxReceiveCount": 3,
                }
            ),
        ),
        "after 3 receives",
        "set maxReceiveCount to 100",
    ),
    "policy": (
        partial(attribute, name="Policy", value=NOT_THE_RULE),
        "does not let the rule doctored",
        "the rule's ARN and not the bus'",
    ),
    "partial": (
        partial(mapping, FunctionResponseTypes=[]),
        "does not take partial batch responses",
        "ReportBatchItemFailures",
    ),
    "off": (partial(mapping, Enabled=False), "is disabled", "--enabled"),
    "filter": (
        partial(mapping, FilterCriteria={"Filters": [{"Pattern": '{"body": {"n": [1]}}'}]}),
        "has a filter that loses events",
        "--filter-criteria '{}'",
    ),
    "transformer": (
        partial(target, InputTransformer=TRANSFORMER),
        "drops the event's id",
        "remove the target's Input",
    ),
    "retries": (
        partial(target, RetryPolicy={"MaximumRetryAttempts": 1}),
        "tries 1 times",
        "remove the target's RetryPolicy",
    ),
    "age": (
        partial(target, RetryPolicy={"MaximumEventAgeInSeconds": 300}),
        "within 300 s",
        "remove the target's RetryPolicy",
    ),
    "undelivered": (
        partial(target, without="DeadLetterConfig"),
        "drops events that it could not deliver",
        "DeadLetterConfig",
    ),
    "undelivered gone": (
        partial(target, DeadLetterConfig={"Arn": f"arn:aws:sqs:{REGION}:000000000000:gone"}),
        "the queue for undelivered events gone does not exist",
        "create",
    ),
    "undelivered refused": (
        partial(attribute, name="Policy", value=NOT_THE_RULE, queue=f"{NAME}-undelivered"),
        f"the policy of the queue {NAME}-undelivered for undelivered events does not let the rule",
        "an event that could not be delivered is lost",
    ),
    "two targets": (twice, "has two targets for the same events", "--ids again"),
    "a topic": (
        fanned,
        "has two targets for the same events: queue, fan; by the topic fan",
        "aws sns unsubscribe",
    ),
    "two rules": (
        partial(rule, pattern=json.dumps({"source": [{"prefix": "com.example"}]})),
        "of bus default both deliver the same events",
        "narrow one pattern",
    ),
    "two buses": (
        partial(rule, pattern=PATTERN, bus=BUS),
        "may come by two buses",
        "deliver from one bus alone",
    ),
    "disabled": (disabled, "the rule doctored of bus default is disabled", "enable-rule"),
    "timeout": (partial(timeout, seconds=100), "may run for 100 s", "VisibilityTimeout to 600"),
    "throttled": (throttled, "a reserved concurrency of 0", "delete-function-concurrency"),
    "rights": (powerless, "may not sqs:DeleteMessage on", "eventonce infra iam"),
    "expiry": (unlimited, "items expire by expiration", "eventonce store migrate"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_found_by_itself(name: str, doctor: Doctor, account: Account) -> None:
    plant, what, fix = PLANTED[name]
    with plant(account):
        ((said, remedy),) = doctor.faults()
    assert what in said
    assert fix in remedy


def test_a_topic_for_another_queue_brings_no_copies(doctor: Doctor, account: Account) -> None:
    with fanned(account, f"{account.arn}-undelivered"):
        assert doctor()["sound"] is True


def test_a_bus_that_forwards_the_events_of_a_partner_is_sound(
    doctor: Doctor, account: Account
) -> None:
    events = account.client("events")
    events.create_event_bus(Name=BUS)
    events.put_rule(Name="forward", EventPattern=OF_PARTNER, EventBusName=BUS)
    events.put_targets(
        Rule="forward", EventBusName=BUS, Targets=[{"Id": "default", "Arn": BUS_ARN}]
    )
    try:
        with rule(account, pattern=OF_PARTNER):
            assert doctor()["sound"] is True
            # The other buses are not checked then.
            (one,) = [it for it in doctor("--bus", "default")["checks"] if it["state"] != "ok"]
            assert one["state"] == "not checked"
            assert "are forwarded to bus default, where the rule another waits" in one["what"]
    finally:
        events.remove_targets(Rule="forward", Ids=["default"], EventBusName=BUS)
        events.delete_rule(Name="forward", EventBusName=BUS)
        events.delete_event_bus(Name=BUS)


def test_a_rule_for_events_that_no_sink_takes_is_found(doctor: Doctor, account: Account) -> None:
    taken = 'sink = [{match = "v2.detail.*", to = "json:loads"}]'
    with rule(account, pattern='{"source": ["com.other"], "detail-type": ["v2.flows"]}'):
        ((what, fix),) = doctor.faults(text=taken)
        assert doctor.faults() == []
        assert doctor.faults("--handler", "json:loads", text=taken) == []
    assert what == "the rule another of bus default brings only events that no sink takes"
    assert "correct its pattern" in fix


def state(lease: str) -> str:
    """A rule for a state with this lease."""
    fields = 'name = "own", subject = "body.id", order = "body.version"'
    return f'rule = [{{{fields}, lease = "{lease}"}}]'


@pytest.mark.parametrize(
    ("text", "what", "fix"),
    [
        ('override = {remember = "1d"}', "remembers for 1 day, and a copy", 'remember = "'),
        ('override = {timeout = "2m"}', "may run for 60 s, a handler for 120 s", "above 120 s"),
        (state("10m"), "the longest lease of a state is 600 s", "VisibilityTimeout to 600"),
        ("override = {attempts = 200}", "after 200 attempts", "maxReceiveCount to 400"),
        ('sink = [{match = "v2.detail.events", to = "stdout:"}]', "matches no", "correct the"),
        ('letters = "sqs://nowhere"', "dead letters nowhere does not exist", "infra apply"),
    ],
)  # fmt: skip
def test_a_file_that_does_not_fit_the_stack_is_found(
    doctor: Doctor, text: str, what: str, fix: str
) -> None:
    found = doctor.faults(text=text)
    assert found
    for said, remedy in found:
        if "may not" not in said:  # the rights to a missing queue are missing, too
            assert what in said
            assert fix in remedy


@contextmanager
def direct(account: Account, **invoked: Any) -> Iterator[None]:
    """A rule that invokes the function itself, with these settings of Lambda."""
    events, queued, client = account.client("events"), account.target, account.client("lambda")
    function = client.get_function_configuration(FunctionName=NAME)
    made = events.put_rule(Name="direct", EventPattern='{"source": ["direct"]}')["RuleArn"]
    to_function = {**queued, "Id": "function", "Arn": function["FunctionArn"]}
    events.put_targets(Rule="direct", Targets=[to_function])
    if invoked:
        client.put_function_event_invoke_config(FunctionName=NAME, **invoked)
    try:
        with admitting(account, f"{NAME}-undelivered", made):
            yield
    finally:
        if invoked:
            client.delete_function_event_invoke_config(FunctionName=NAME)
        events.remove_targets(Rule="direct", Ids=["function"])
        events.delete_rule(Name="direct")


ON_FAILURE_ARN = f"arn:aws:sqs:{REGION}:000000000000:{NAME}-dead"
ON_FAILURE = {"OnFailure": {"Destination": ON_FAILURE_ARN}}


def test_a_lease_that_outlasts_the_retry_of_a_function_is_found(
    doctor: Doctor, account: Account
) -> None:
    with direct(account, DestinationConfig=ON_FAILURE):
        assert doctor()["sound"] is True
        assert doctor.faults(text='override = {lease = "5m"}') == []
        ((what, fix),) = doctor.faults(text=state("5m"))
    assert (
        "retries a lost run of doctored 120 s after it began, the longest lease of a state is 300 s"
        in what
    )
    assert "set the rule's lease to 60 s" in fix


@pytest.mark.parametrize(
    ("invoked", "what", "fix"),
    [
        ({}, "that Lambda gives up after 3 attempts", "an on-failure destination"),
        ({"MaximumRetryAttempts": 0}, "gives up after 1 attempt", "an on-failure destination"),
        (
            {"DestinationConfig": {"OnFailure": {"Destination": f"{ON_FAILURE_ARN}-gone"}}},
            "the queue for events that Lambda gives up doctored-dead-gone does not exist",
            "create it",
        ),
        (
            {"MaximumEventAgeInSeconds": 60, "DestinationConfig": ON_FAILURE},
            "invoke the function doctored for 60 s",
            "--maximum-event-age-in-seconds 21600",
        ),
    ],
)
def test_the_loss_of_an_event_that_lambda_gives_up_is_found(
    doctor: Doctor, account: Account, invoked: dict[str, Any], what: str, fix: str
) -> None:
    with direct(account, **invoked):
        ((said, remedy),) = doctor.faults()
    assert what in said
    assert fix in remedy


def test_a_function_with_a_dead_letter_queue_has_no_fault(doctor: Doctor, account: Account) -> None:
    client = account.client("lambda")
    dead = ON_FAILURE["OnFailure"]["Destination"]
    client.update_function_configuration(FunctionName=NAME, DeadLetterConfig={"TargetArn": dead})
    try:
        with direct(account):
            assert doctor.faults() == []
    finally:
        client.update_function_configuration(FunctionName=NAME, DeadLetterConfig={"TargetArn": ""})


def test_a_handler_for_no_known_topic_is_found(doctor: Doctor) -> None:
    on = '@consumer.on("v2.detail.events.conversation.{id}.flow.{}")\ndef f(job): ...\n'
    start = "from eventonce import Consumer\nconsumer = Consumer()\n"
    Path("sound.py").write_text(start + on.replace("{}", "end"))
    Path("misspelt.py").write_text(start + on.replace("{}", "ended"))
    assert doctor.faults("--handler", "sound:consumer") == []
    ((what, fix),) = doctor.faults("--handler", "misspelt:consumer")
    assert what.startswith("misspelt.py:3: on: ")
    assert "correct the pattern" in fix


def test_an_absent_queue_and_an_absent_function_are_missing(doctor: Doctor) -> None:
    found = doctor("--queue", "nowhere", "--function", "nothing")["checks"]
    missing = [it["what"] for it in found if it["state"] == "missing"]
    assert missing == ["the queue nowhere does not exist", "the function nothing does not exist"]


def test_an_absent_bus_is_missing(doctor: Doctor, run: Run, account: Account) -> None:
    ((what, fix),) = doctor.faults("--bus", "default", "--bus", "nope")
    assert what == "the bus nope does not exist"
    assert "check its name" in fix
    Path("eventonce.toml").write_text(f'store = "{account.store}"\n')
    here = ("--bus", "nope", "--region", REGION, "--endpoint", account.endpoint)
    alone = run("doctor", *here)
    assert (alone.code, "MISSING  the bus nope does not exist" in alone.out) == (1, True)
    assert "not checked: AWS: no queue or function is named" in alone.out


def test_a_named_bus_is_checked_without_the_list_of_buses(doctor: Doctor, account: Account) -> None:
    refused = {"to": account.endpoint, "operations": ("AWSEvents.ListEventBuses",)}
    with served(type("Some", (Refuses,), refused)) as port:
        found = doctor("--bus", "default", endpoint=f"http://127.0.0.1:{port}")["checks"]
    assert "the rule doctored of bus default tries 185 times within 86400 s" in str(found)
    assert [it for it in found if it["fix"]] == []


def test_dead_letters_may_have_their_queue_in_another_region(
    doctor: Doctor, account: Account
) -> None:
    far = boto3.client("sqs", "us-east-1", endpoint_url=account.endpoint)
    far.create_queue(QueueName="far", Attributes={"MessageRetentionPeriod": "86400"})
    found = doctor.faults(text='letters = "sqs://far?region=us-east-1"')
    assert ("the queue far keeps dead letters for 1 day", True) in [
        (what, "1209600" in fix) for what, fix in found
    ]


def test_a_fifo_queue_needs_deduplication_and_a_group(doctor: Doctor, account: Account) -> None:
    sqs, events = account.client("sqs"), account.client("events")
    sqs.create_queue(QueueName="order.fifo", Attributes={"FifoQueue": "true"})
    arn = f"arn:aws:sqs:{REGION}:000000000000:order.fifo"
    events.put_rule(Name="order", EventPattern='{"source": ["order"]}')
    events.put_targets(Rule="order", Targets=[{"Id": "queue", "Arn": arn}])
    said = [what for what, _ in doctor.faults("--queue", "order.fifo")]
    assert "the FIFO queue order.fifo does not deduplicate by content" in said
    assert "the rule order of bus default names no group" in said


# Without rights


def test_the_rights_of_a_worker_are_checked_for_the_caller(
    doctor: Doctor, account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    iam = account.client("iam")
    user = iam.create_user(UserName="worker")["User"]["Arn"]
    key = iam.create_access_key(UserName="worker")["AccessKey"]
    account.client("sqs").create_queue(QueueName="by-hand")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", key["AccessKeyId"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", key["SecretAccessKey"])
    denied = [what for what, _ in doctor.faults("--queue", "by-hand") if "may not" in what]
    queue = f"arn:aws:sqs:{REGION}:000000000000:by-hand"
    assert f"{user} may not sqs:ReceiveMessage on {queue}" in denied
    assert len(denied) == len(QUEUE_RIGHTS) + len(STORE_RIGHTS)


def test_without_credentials_the_rest_is_checked(
    doctor: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    doctor.run("store", "create", "sqlite:///here.db")
    text = 'letters = "sqs://letters"'
    found = doctor("--bus", "default", store="sqlite:///here.db", text=text)["checks"]
    (fault,) = [it for it in found if it["fix"]]
    assert fault["what"] == "AWS does not answer: the account and the principal"
    assert "no AWS credentials were found" in fault["fix"]
    unchecked = [(it["area"], it["what"]) for it in found if it["state"] == "not checked"]
    assert unchecked == [
        ("account", "this machine's clock: AWS did not say its time"),
        ("queue", "the queue doctored (sqs:GetQueueUrl): AWS does not answer"),
        ("queue", "the queue for dead letters letters (sqs:GetQueueUrl): AWS does not answer"),
        ("buses", "the list of buses (events:ListEventBuses): AWS does not answer"),
        ("buses", "how events come in: no rule that was seen brings them"),
        (
            "function",
            "the functions that receive from the queue doctored: its account is not known",
        ),
        ("rights", "the rights of the consumer: its account is not known"),
        ("rules", "how late a copy can come: the retention of the queue was not seen"),
    ]
    said = doctor.run("doctor").out
    assert said.startswith(f"account not known, principal not known, region {REGION}\n")
    assert "every rule remembers" not in said


def test_a_missing_region_is_the_only_fault(
    doctor: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    doctor.run("store", "create", "sqlite:///here.db")
    Path("eventonce.toml").write_text('store = "sqlite:///here.db"\n')
    said = doctor.run("doctor", "--queue", "calls", "--endpoint", doctor.account.endpoint).out
    assert said.partition("\n")[0].endswith(", region not known")
    assert said.count("FAILED") == 1
    assert "Set the region" in said


def test_a_queue_is_found_by_its_url_and_an_unreachable_queue_is_not_checked(
    doctor: Doctor, account: Account
) -> None:
    found = doctor("--queue", f"{account.endpoint}/000000000000/{NAME}")
    assert found["sound"] is True
    gone = doctor("--queue", f"sqs://{NAME}?endpoint=http://127.0.0.1:1")
    assert gone["sound"] is False
    assert {it["state"] for it in gone["checks"] if it["area"] == "queue"} == {"not checked"}
    assert "how late a copy can come" in str(gone["checks"])


class Refuses(Handler):
    """A server that forwards requests to the emulator, except some operations, which it denies."""

    to = ""
    operations: tuple[str, ...] = ()

    def reply(self) -> None:
        body = self.body()
        asked = f"{self.path} {self.headers.get('x-amz-target', '')} {body.decode()}"
        if any(operation in asked for operation in self.operations):
            denied = {"__type": "AccessDeniedException", "message": "not authorized"}
            kind = ("x-amzn-errortype", "AccessDeniedException")
            said = json.dumps(denied)
            if "Action=" in asked:
                # Older services speak XML.
                error = "<Code>AccessDenied</Code><Message>not authorized</Message>"
                said = f"<ErrorResponse><Error>{error}</Error></ErrorResponse>"
            self.answer(403, said.encode(), [kind])
            return
        headers = {name: value for name, value in self.headers.items() if name != "Host"}
        request = urllib.request.Request(
            self.to + self.path, body or None, headers, method=self.command
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            kept = [(name, answer.headers[name]) for name in ("content-type",)]
            self.answer(answer.status, answer.read(), kept)


@pytest.mark.parametrize(
    ("operation", "area", "what"),
    [
        ("AmazonSQS.GetQueueAttributes", "queue", "the queue doctored (sqs:GetQueueAttributes)"),
        ("AWSEvents.ListRuleNamesByTarget", "buses", "the rules of bus default"),
        ("AWSEvents.ListEventBuses", "buses", "the list of buses"),
        ("ListSubscriptions", "buses", "the topics that bring their messages to the queue"),
        ("/event-source-mappings", "function", "the functions that receive from arn:aws:sqs"),
        ("/concurrency", "function", "the concurrency of the function doctored"),
        ("/event-invoke-config", "function", "the asynchronous invocations of the function doc"),
    ],
)
def test_a_part_that_may_not_be_read_is_not_checked(
    doctor: Doctor, account: Account, operation: str, area: str, what: str
) -> None:
    handler = type("Some", (Refuses,), {"to": account.endpoint, "operations": (operation,)})
    with served(handler) as port:
        found = doctor(endpoint=f"http://127.0.0.1:{port}")
    assert found["sound"] is False
    unchecked = [it for it in found["checks"] if it["state"] == "not checked"]
    (one, *_) = [it for it in unchecked if it["what"].startswith(what)]
    assert one["area"] == area
    assert "permission denied (not authorized)" in one["what"]
    assert [it for it in found["checks"] if it["fix"]] == []


class ForeignServer(Handler):
    """A server whose answers are not from AWS."""

    said = b""

    def reply(self) -> None:
        self.body()
        self.answer(200, self.said)


@pytest.mark.parametrize("said", [b"{}", b"<html></html>", b""])
def test_with_foreign_answers_aws_is_not_checked(doctor: Doctor, said: bytes) -> None:
    doctor.run("store", "create", "sqlite:///here.db")
    with served(type("Odd", (ForeignServer,), {"said": said})) as port:
        where = f"http://127.0.0.1:{port}"
        found = doctor("--function", "f", store="sqlite:///here.db", endpoint=where)
    unchecked = {it["area"] for it in found["checks"] if it["state"] == "not checked"}
    assert unchecked >= {"account", "queue", "buses", "function", "rights"}


# Stores


def test_a_redis_that_evicts_and_an_unreachable_redis_are_faults(
    doctor: Doctor, node: Node
) -> None:
    client = node.client()
    client.config_set("maxmemory", "100mb")
    client.config_set("maxmemory-policy", "allkeys-lru")
    client.config_set("appendonly", "yes")
    ((what, fix),) = doctor.faults(store=node.uri)
    assert "allkeys-lru" in what
    assert "noeviction" in fix
    ((what, _),) = doctor.faults(store="redis://127.0.0.1:1/0")
    assert what == "the store redis://127.0.0.1:1… cannot be used"


def test_a_redis_that_does_not_show_its_settings_is_not_checked(doctor: Doctor, node: Node) -> None:
    node.client().execute_command("ACL SETUSER blind on >password ~* &* +@all -info")
    uri = f"redis://blind:password@127.0.0.1:{node.port}"
    found = doctor(store=uri)
    unchecked = [it["what"] for it in found["checks"] if it["state"] == "not checked"]
    assert unchecked == ["its settings are not visible to this user (INFO)"]
    shown = doctor.run("store", "check", uri)
    assert (shown.code, "?        not checked: its settings are" in shown.out) == (0, True)


def test_a_postgresql_without_the_schema_or_without_writes_is_a_fault(
    doctor: Doctor, cluster: Cluster
) -> None:
    assert doctor.faults(store=cluster.uri()) == []
    ((what, fix),) = doctor.faults(store=cluster.uri(options="?schema=elsewhere"))
    assert "has no tables of eventonce" in what
    assert "eventonce store create" in fix
    cluster.execute(
        "ALTER SYSTEM SET default_transaction_read_only = on", "SELECT pg_reload_conf()"
    )
    found = dict(doctor.faults(store=cluster.uri()))
    assert "name the primary" in found["the server takes writes"]


@pytest.mark.parametrize("ahead", [90_000, -90_000])
def test_a_clock_that_is_wrong_is_found(
    doctor: Doctor, node: Node, monkeypatch: pytest.MonkeyPatch, ahead: int
) -> None:
    for module in (look, storage):
        monkeypatch.setattr(module, "wall_clock", lambda: wall_clock() + ahead)
    node.client().config_set("maxmemory", "0")
    node.client().config_set("appendonly", "yes")
    word = "ahead of" if ahead > 0 else "behind"
    found = doctor.faults(store=node.uri)
    assert [what.partition(word)[2] for what, _ in found] == [" that of AWS", " that of the store"]
    assert all("NTP" in fix for _, fix in found)
