"""The printed policies against the requests of the code: all rights that it needs, and no other."""

from __future__ import annotations

import json
import secrets
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from eventonce import Consumer, Job, Reject, Retry
from eventonce.aws import lambda_handler
from eventonce.aws.sqs import Queue
from eventonce.cli import main
from eventonce.config import Config, load
from eventonce.errors import EventonceError
from eventonce.infra import iam
from eventonce.infra.stack import deploy
from eventonce.infra.topology import Topology, topology_of
from eventonce.sources import SQSSource
from eventonce.types import Letter
from eventonce.worker import Worker, WorkerSettings
from tests.helpers import PATIENCE, until
from tests.integration.infra.account import HERE, Client
from tests.integration.infra.asked import Asked, allows, asking, given
from tests.servers.aws import REGION


@pytest.fixture
def said(endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """A configuration with every part that sends requests to AWS."""
    monkeypatch.chdir(tmp_path)
    name, where = f"c-{secrets.token_hex(4)}", f"region={REGION}&endpoint={endpoint}"
    Path("eventonce.toml").write_text(
        f"""
        name = "{name}"
        store = "dynamodb://{name}?{where}"
        letters = "sqs://{name}-letters?{where}"
        keep_letters = "90d"
        presets = []
        [[rule]]
        name = "fact"
        match = {{ type = "fact" }}
        key = ["detail.id"]
        verify = ["detail.content"]
        lease = "1500ms"
        attempts = 2
        [[rule]]
        name = "state"
        match = {{ type = "state" }}
        subject = ["detail.id"]
        order = "detail.version"
        lease = "1500ms"
        [infra]
        source = "com.example"
        region = "{REGION}"
        endpoint = "{endpoint}"
        [worker]
        queue = "sqs://{name}?{where}"
        [[sink]]
        match = "to-queue"
        to = "sqs://{name}-out.fifo?{where}"
        [[sink]]
        match = "to-bus"
        to = "events://{name}-orders?{where}"
        """
    )
    return load(Path("eventonce.toml"))


@pytest.fixture
def topology(said: Config) -> Topology:
    return topology_of(
        said.infra,
        name=said.name,
        store=said.store,
        letters=said.letters,
        keep_letters=said.keep_letters,
        sinks=[sink.to for sink in said.sink],
    )


@pytest.fixture
def made(said: Config, topology: Topology, client: Client) -> Topology:
    deploy(said.infra, topology)
    # The emulator's CloudFormation passes over a table's expiry.
    expiry = {"AttributeName": "expiration", "Enabled": True}
    client("dynamodb").update_time_to_live(TableName=topology.name, TimeToLiveSpecification=expiry)
    fifo = {"FifoQueue": "true"}
    client("sqs").create_queue(QueueName=f"{topology.name}-out.fifo", Attributes=fifo)
    client("events").create_event_bus(Name=f"{topology.name}-orders")
    return topology


def policy(role: iam.Role, topology: Topology) -> dict[str, Any]:
    return iam.policy(role, topology, HERE)


def held_to(said: dict[str, Any], asked: set[Asked], *without: str) -> None:
    """The policy gives the rights of these requests, on their resources, and no other right."""
    assert {one for one in asked if not allows(said, one)} == set(), "asked for and not given"
    assert given(said, *without) - {one.action for one in asked} == set(), "given, never asked for"


def event(type: str, id: str, do: str = "", **detail: Any) -> dict[str, Any]:
    said = {"id": id, "do": do, **detail}
    return {
        "id": secrets.token_hex(8),
        "source": "com.example",
        "detail-type": type,
        "detail": said,
    }


def events_of_every_kind() -> list[dict[str, Any]]:
    """New facts and copies, another content, versions, failures, a rejection, a long run. The
    tests add a body that is no event."""
    return [
        *(event("fact", f"f-{number}") for number in range(4)),
        event("fact", "f-0"),
        event("fact", "f-1", content="another"),
        *(event("state", "s", version=version) for version in (1, 3, 2)),
        event("fact", "fails", "fail"),
        event("fact", "later", "later"),
        event("fact", "rejected", "reject"),
        event("fact", "long", "wait"),
        event("to-queue", "q"),
        event("to-bus", "b"),
    ]


def add_handlers(consumer: Consumer, long: float) -> None:
    tried: set[str] = set()

    @consumer.on("fact")
    @consumer.on("state")
    def handle(job: Job) -> None:
        match job.event.detail["do"]:
            case "fail":
                raise RuntimeError("always")
            case "later" if job.event.detail["id"] not in tried:
                tried.add(job.event.detail["id"])
                raise Retry("once", after=1)
            case "reject":
                raise Reject("never")
            case "wait":
                time.sleep(long)


def twice_given_up(consumer: Consumer) -> None:
    """A dead letter of several items that is kept a second time, with other content: the unused
    parts are dropped. The store keeps the dead letters that are too large for the queue."""
    large = Letter(secrets.token_hex(8), "c", "dead", "r", "", b"", secrets.token_bytes(700_000), 1)
    consumer.admin.put_letters([large])
    consumer.admin.put_letters([replace(large, event=secrets.token_bytes(700_000))])


def put_old_letter(said: Config) -> None:
    """A dead letter that is too old to be kept, and that the next read drops."""
    with said.consumer() as consumer:
        old = Letter(secrets.token_hex(8), said.name, "dead", "r", "", b"", b"{}", 1)
        consumer.admin.put_letters([old])


def test_the_worker_policy_gives_exactly_the_rights_that_the_worker_needs(
    said: Config, made: Topology, client: Client
) -> None:
    """A run with renewals of lease and visibility, failures, conflicts, dead letters, two sinks."""
    put_old_letter(said)
    sqs = client("sqs")
    url = sqs.get_queue_url(QueueName=made.queue)["QueueUrl"]
    bodies = [json.dumps(one) for one in events_of_every_kind()] + ["no event"]
    for body in bodies:
        sqs.send_message(QueueUrl=url, MessageBody=body)
    with asking(sqs) as asked:
        with said.consumer() as consumer:
            add_handlers(consumer, long=2.5)
            source = SQSSource(Queue.from_uri(said.worker.queue), visibility=2.0, wait=1)
            worker = Worker(consumer, source, WorkerSettings(concurrency=8, receivers=1, drain=10))
            ended: list[Any] = []
            thread = threading.Thread(target=lambda: ended.append(worker.run()), daemon=True)
            thread.start()
            until(lambda: _is_empty(sqs, url))
            worker.stop()
            thread.join(PATIENCE)
            until(lambda: not list(consumer.admin.letters(said.name)))
            twice_given_up(consumer)
        assert [report.error for report in ended] == [None]
    held_to(policy("worker", made), asked)


def _is_empty(sqs: Any, url: str) -> bool:
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    left = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
    return all(left[name] == "0" for name in names)


class Context:
    """The context that Lambda gives beside the event."""

    aws_request_id = "r"

    def get_remaining_time_in_millis(self) -> int:
        return 60_000


def test_the_lambda_policy_gives_exactly_the_rights_that_the_function_needs(
    said: Config, made: Topology
) -> None:
    bodies = [json.dumps(one) for one in events_of_every_kind()] + ["no event"]
    records = [
        {"messageId": str(number), "eventSource": "aws:sqs", "body": body, "attributes": {}}
        for number, body in enumerate(bodies)
    ]
    put_old_letter(said)
    with asking() as asked, said.consumer() as consumer:
        add_handlers(consumer, long=1.0)
        handler = lambda_handler(consumer)
        answer = handler({"Records": records}, Context())
        assert len(answer["batchItemFailures"]) == 2, "the failed one, and the later one"
        handler({"Records": records}, Context())
        twice_given_up(consumer)
    printed = policy("lambda", made)
    held_to(printed, asked, "Poll", "Logs")
    # Lambda itself sends these requests, in the function's name: its documentation lists them.
    others = {it["Sid"]: it["Action"] for it in printed["Statement"]}
    poll = ["sqs:DeleteMessage", "sqs:GetQueueAttributes", "sqs:ReceiveMessage"]
    assert (others["Poll"], others["Logs"]) == (
        # The first request is the function's own, for `Retry(after=…)`.
        ["sqs:ChangeMessageVisibility", *poll],
        ["logs:CreateLogStream", "logs:PutLogEvents"],
    )


def run_command(*args: str) -> None:
    with pytest.raises(SystemExit) as stop:
        main(list(args))
    assert not stop.value.code, args


def test_the_operate_policy_gives_exactly_the_rights_that_the_commands_need(
    said: Config, made: Topology, client: Client, endpoint: str
) -> None:
    sqs = client("sqs")
    url = sqs.get_queue_url(QueueName=made.dead)["QueueUrl"]
    for kind in ("to-queue", "to-bus"):
        sqs.send_message(QueueUrl=url, MessageBody=json.dumps(event(kind, "dead")))
    kept = said.consumer()
    lost = [event("to-queue", f"l-{number}") for number in range(3)]
    kept.admin.put_letters(
        [
            Letter(f"{number:032x}", made.name, "dead", "r", "", b"", json.dumps(one).encode(), 1)
            for number, one in enumerate(lost)
        ]
    )
    Path("event.json").write_text(json.dumps(lost[0]))
    with asking(sqs) as asked:
        where = f"sqs://{made.dead}?region={REGION}&endpoint={endpoint}"
        for place in ("store", where):
            run_command("letters", "list", "--from", place)
        run_command("letters", "redrive", "--from", "store")
        run_command("letters", "redrive", "--from", where)
        run_command("letters", "drop", "--from", "store", "--yes")
        run_command("stats")
        run_command("sweep")
        run_command("show", "event.json")
        run_command("forget", "event.json", "--yes")
        run_command("store", "check")
        with said.consumer() as consumer:
            add_handlers(consumer, long=0)
            # An event that is given up once more is a dead letter again, and is kept as such.
            consumer.process([event("fact", "again", "reject")])
            consumer.redrive(consumer.letters())
            twice_given_up(consumer)
            consumer.process([event("state", "s", version=1)] * 2)
    kept.close()
    held_to(policy("operate", made), asked)


def test_the_send_policy_gives_exactly_the_rights_that_sending_needs(
    made: Topology, endpoint: str
) -> None:
    Path("event.json").write_text(json.dumps(event("fact", "sent")))
    reached = ("--region", REGION, "--endpoint", endpoint)
    with asking() as asked:
        run_command("send", "event.json", "--bus", made.bus, *reached)
        run_command("send", "event.json", "--queue", f"sqs://{made.queue}", *reached)
    held_to(policy("send", made), asked)


def test_the_capture_policy_gives_exactly_the_rights_that_capturing_needs(
    said: Config, topology: Topology, endpoint: str, client: Client
) -> None:
    deploy(said.infra, topology, capture=True)
    client("logs").create_log_group(logGroupName=topology.capture_log_group)
    url = client("sqs").get_queue_url(QueueName=topology.capture_queue)["QueueUrl"]
    client("sqs").send_message(QueueUrl=url, MessageBody=json.dumps(event("fact", "sent")))
    reached = ("--region", REGION, "--endpoint", endpoint)
    with asking() as asked:
        run_command("capture", "--queue", f"sqs://{topology.capture_queue}", *reached)
        run_command(
            "capture", "--log-group", topology.capture_log_group, "-o", "logs.jsonl", *reached
        )
    held_to(policy("capture", topology), asked)


def test_the_apply_policy_gives_exactly_the_rights_that_applying_needs(
    said: Config, topology: Topology, client: Client
) -> None:
    """Without a stack, on a stack that exists, and with a deployment that fails. The requests that
    CloudFormation sends in the caller's name are not seen here: the unit tests have AWS' own list
    of these."""
    new = replace(topology, bus=f"{topology.name}-bus")
    with asking() as asked:
        deploy(said.infra, new, dry_run=True)
        deploy(said.infra, new)
        with pytest.raises(EventonceError, match="rolled back"):
            deploy(said.infra, replace(new, pattern={"source": "not a list"}))
    printed = policy("apply", new)
    held_to(printed, asked, "Transform", *iam.MADE)
