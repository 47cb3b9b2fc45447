"""Queues of dead letters, as the tests of this folder make, fill and read them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from eventonce import Consumer, Job, Reject, Rule
from eventonce.aws.sqs import Queue
from tests.helpers import call

CALL = Rule(name="call", match="call", key=["detail.call"], verify=["detail.amount"])
NAMELESS = Rule(name="transport", match="nameless", key=["id"])
TOML = """
store = "sqlite:///store.db"
name = "crm"
presets = []
[[rule]]
name = "call"
match = "call"
key = ["detail.call"]
verify = ["detail.amount"]
[[rule]]
name = "transport"
match = "nameless"
key = ["id"]
"""
"""The same rules, as the command line reads them."""


class Made(NamedTuple):
    """A queue of a test's own."""

    uri: str
    client: Any
    name: str

    def create(self, **attributes: str) -> None:
        self.client.create_queue(QueueName=self.name, Attributes=attributes)

    def visible(self) -> list[dict[str, Any]]:
        """The messages that a receiver could get now; they are made visible again at once."""
        queue, found = Queue.from_uri(self.uri), {}
        while some := queue.receive(wait=0, visibility=600):
            found.update({message["MessageId"]: message for message in some})
        queue.delay([(message["ReceiptHandle"], 0) for message in found.values()])
        queue.close()
        return list(found.values())

    def values_of(self, name: str) -> list[str]:
        """The values of an attribute in all messages."""
        return sorted(
            message["MessageAttributes"][name]["StringValue"] for message in self.visible()
        )


Make = Callable[..., Made]


def never(job: Job) -> None:
    raise Reject(f"no customer for {job.event.id}")


def consumer_of(letters: str, handler: Any = never, store: str = "memory:") -> Consumer:
    return Consumer(store, name="crm", rules=[CALL, NAMELESS], handler=handler, letters=letters)


def fill(queue: Made, count: int = 12) -> None:
    """Give up this number of calls, each as a dead letter in this queue."""
    with consumer_of(queue.uri) as consumer:
        consumer.process([call(number) for number in range(count)])


def effects() -> list[int]:
    """The calls that the sink of the command line took."""
    path = Path("effects.jsonl")
    lines = path.read_bytes().splitlines() if path.exists() else []
    return [json.loads(line)["detail"].get("call") for line in lines]
