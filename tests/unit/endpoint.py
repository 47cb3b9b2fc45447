"""A receiver over the memory store, whose handler runs or fails as the test says."""

from __future__ import annotations

from typing import Any

import msgspec

from eventonce import Consumer, Job, Rule
from eventonce.web import Serve, receiver

RULE = Rule(name="call", match="call", key=["detail.call"], verify=["detail.amount?"], attempts=2)
STATE = Rule(
    name="agent",
    match="agent",
    subject=["detail.agent"],
    order="detail.version",
    state=["detail.on"],
    at="detail.at",
    unchanged_within="1h",
)
PATIENT: dict[str, Any] = {"answer_within": "1m", "body_timeout": "1m"}
"""Settings with which a sender gets the outcome of an event, however slow this machine is."""

OPEN = Serve(anyone_may_send_events=True, **PATIENT)


def call(name: str, **detail: Any) -> dict[str, Any]:
    fields = {"call": name, **detail}
    return {"id": name, "detail-type": "call", "source": "s", "detail": fields}


class Endpoint:
    """A receiver whose handler raises the exceptions in `failing`, by the name of the call."""

    def __init__(self, store: Any = "memory:", settings: Serve = OPEN, **rule: Any) -> None:
        rules = [msgspec.structs.replace(RULE, **rule), STATE]
        self.ran: list[str] = []
        self.consumer = Consumer(store, name="endpoint", rules=rules, handler=self._handle)
        self.app = receiver(self.consumer, settings)
        self.failing: dict[str, Exception] = {}

    def _handle(self, job: Job) -> None:
        name = job.event.detail.get("call", "state")
        if name in self.failing:
            raise self.failing[name]
        self.ran.append(name)

    def letters(self) -> list[bytes]:
        return [letter.event for letter in self.consumer.letters()]
