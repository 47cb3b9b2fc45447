"""The parts of the end-to-end tests: an emulated account, calls on its bus with copies of every
origin, and a queue at the end in which each effect is counted."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import boto3

from tests.helpers import until
from tests.servers.aws import emulated, ministack

BUS = "calls"
SOURCE = "com.example.genesys"
"""Not `aws.partner/…`: as on AWS only the partner may put such events, and the emulator takes a
partner's events but delivers none."""
TYPE = "v2.detail.events.conversation.{id}.user.end"
SINK = "effects"


def call(name: str, *, do: str = "", seconds: float = 0) -> dict[str, Any]:
    """The detail of a Genesys event, with an instruction for its handler."""
    return {
        "topicName": f"v2.detail.events.conversation.{name}.user.end",
        "version": "2",
        "timestamp": "2026-05-04T09:15:27.482Z",
        "eventBody": {
            "eventTime": 1777886127391,
            "conversationId": name,
            "participantId": "c6a53fd2",
            "sessionId": "1b8e4c38",
            "do": do,
            "seconds": seconds,
        },
    }


HANDLER = """
import os, time
from pathlib import Path
import boto3
from eventonce.sinks import SQSQueue

# Made here, which no time-out of a function counts.
sink = SQSQueue("sqs://effects", client=boto3.client("sqs"))

def handle(job):
    body = job.event.body
    if body["do"] == "fail twice" and job.attempt < 3:
        raise LookupError("not yet")
    if body["do"] == "hang once" and job.attempt == 1:
        Path(os.environ["FOLDER"], "hanging").touch()
        time.sleep(600)
    if body["do"] == "take long":
        time.sleep(body["seconds"])
    sink(job)
"""
"""A handler that sends each event on; the planned faults happen before that."""


class Account:
    """An emulated account: its bus, its queues, and the effects at the end."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.sqs = boto3.client("sqs")
        self.events = boto3.client("events")
        self.sink = self.sqs.create_queue(QueueName=SINK)["QueueUrl"]

    def close(self) -> None:
        self.sqs.close()
        self.events.close()

    def url(self, queue: str) -> str:
        return str(self.sqs.get_queue_url(QueueName=queue)["QueueUrl"])

    def put(self, *calls: dict[str, Any]) -> None:
        """Put these calls on the bus."""
        entries = [
            {
                "EventBusName": BUS,
                "Source": f"{SOURCE}/cloud",
                "DetailType": TYPE,
                "Detail": json.dumps(detail),
            }
            for detail in calls
        ]
        answer = self.events.put_events(Entries=entries)
        assert answer["FailedEntryCount"] == 0, answer

    def rule(self, name: str, queue: str) -> str:
        """A second rule for the same events and the same queue; returns its ARN."""
        names = ["QueueArn"]
        found = self.sqs.get_queue_attributes(QueueUrl=self.url(queue), AttributeNames=names)
        pattern = json.dumps({"source": [{"prefix": SOURCE}]})
        made = self.events.put_rule(Name=name, EventBusName=BUS, EventPattern=pattern)
        target = {"Id": "queue", "Arn": found["Attributes"]["QueueArn"]}
        self.events.put_targets(Rule=name, EventBusName=BUS, Targets=[target])
        return str(made["RuleArn"])

    def archive(self) -> None:
        """Archive the events that are put on the bus from now on."""
        bus = self.events.describe_event_bus(Name=BUS)["Arn"]
        self.events.create_archive(ArchiveName="all", EventSourceArn=bus)

    def replay(self) -> None:
        """Put all archived events on the bus again, as a replay."""
        archive = self.events.describe_archive(ArchiveName="all")
        now = datetime.now(UTC)
        self.events.start_replay(
            ReplayName="again",
            EventSourceArn=archive["ArchiveArn"],
            EventStartTime=now - timedelta(hours=1),
            EventEndTime=now + timedelta(hours=1),
            Destination={"Arn": archive["EventSourceArn"]},
        )
        until(lambda: self.events.describe_replay(ReplayName="again")["State"] == "COMPLETED")

    def redeliver(self, queue: str, events: Sequence[str]) -> None:
        """Send the same events once more, with the ids they had."""
        for event in events:
            self.sqs.send_message(QueueUrl=self.url(queue), MessageBody=event)

    def drained(self, queue: str) -> None:
        """Wait until this queue has no message, visible or invisible, for some moments."""
        url, quiet = self.url(queue), [0]
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]

        def empty() -> bool:
            time.sleep(0.1)
            found = self.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=names)
            quiet[0] = 0 if any(map(int, found["Attributes"].values())) else quiet[0] + 1
            return quiet[0] == 3

        until(empty)

    def effects(self) -> list[str]:
        """Every event in the queue at the end; the events stay there."""
        found: list[str] = []
        while True:
            answer = self.sqs.receive_message(
                QueueUrl=self.sink, MaxNumberOfMessages=10, VisibilityTimeout=600
            )
            if not answer.get("Messages"):
                break
            found += [message["Body"] for message in answer["Messages"]]
        for body in found:
            self.sqs.send_message(QueueUrl=self.sink, MessageBody=body)
        return found

    def counted(self) -> Counter[str]:
        """How often each call had its effect."""
        return Counter(
            json.loads(event)["detail"]["eventBody"]["conversationId"] for event in self.effects()
        )


@contextmanager
def account() -> Iterator[Account]:
    """An account of its own, which boto3 finds in this process and its child processes."""
    with emulated(), ministack() as endpoint:
        os.environ["AWS_ENDPOINT_URL"] = endpoint
        try:
            made = Account(endpoint)
            yield made
            made.close()
        finally:
            del os.environ["AWS_ENDPOINT_URL"]


def deploy(name: str, code: str, *, timeout: int = 60, **env: str) -> str:
    """A function of this name; returns its ARN. The emulator's Python has eventonce."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as package:
        package.writestr("function.py", code)
        package.writestr("handling.py", HANDLER)
    client = boto3.client("lambda")
    made = client.create_function(
        FunctionName=name,
        Runtime=f"python{sys.version_info.major}.{sys.version_info.minor}",
        Handler="function.handler",
        Role=f"arn:aws:iam::000000000000:role/{name}",
        Code={"ZipFile": archive.getvalue()},
        Timeout=timeout,
        Environment={"Variables": env},
    )
    client.close()
    return str(made["FunctionArn"])


def apply(config: Path, *options: str) -> dict[str, Any]:
    """`eventonce infra apply`, as a user types it."""
    command = [*(sys.executable, "-m", "eventonce", "infra", "apply"), "--config", str(config)]
    done = subprocess.run(
        [*command, *options, "--json"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found
