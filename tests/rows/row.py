"""An event that a preset's rule must take, and the envelopes around such events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from eventonce import envelope
from eventonce.types import Event

ORG = "6f0c1f4e-6a5b-4c55-9d1a-2f1f5a0c7e11"
USER = "0b7b5a52-2f53-4c0e-8a55-51d6c1e0aa01"
QUEUE = "1c9d3a7e-7b1a-4f57-9a31-0d6d2f9b4402"
CALL = "7f2f0c1d-9e0a-4d13-8d43-b4a6f2f7cc03"
MS = 1_772_530_245_126
ISO = "2026-03-03T09:30:45.126Z"
PUBLISHED = "2026-03-03T09:30:45.431Z"


class Row(NamedTuple):
    """An event a preset's rule must take."""

    rule: str
    event: dict[str, Any]
    headers: Mapping[str, str] = {}
    hands_on: Mapping[str, str] = {}
    """Parts that may be missing, and the rule that takes the event then."""
    timed: bool = False
    """Whether the envelope's own time is part of what the event says."""
    transport: bool = False
    """Whether the key is the transport's own, so that a second publish is another fact."""
    auto: str = ""
    """The rule that takes the event under `auto`, where it is another one."""
    under: str = ""
    """The preset, where the rule's name does not begin with it."""

    @property
    def preset(self) -> str:
        return self.under or self.rule.partition(".")[0]

    @property
    def name(self) -> str:
        return f"{self.preset}/{self.rule}"

    def read(self) -> Event:
        return read(self.event, self.headers)


def read(event: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> Event:
    return envelope.read(event, headers=headers or {})


def bridge(source: str, kind: str, detail: Any, **more: Any) -> dict[str, Any]:
    """An EventBridge envelope around a detail."""
    return {
        "version": "0",
        "id": "3d1b8a52-0c4e-0e55-7a10-5f2c7b9d4e01",
        "detail-type": kind,
        "source": source,
        "account": "210987654321",
        "time": "2026-03-03T09:30:45Z",
        "region": "eu-central-1",
        "resources": [],
        "detail": detail,
        **more,
    }


def genesys(kind: str, body: Any, *ids: str, timestamp: str | None = PUBLISHED) -> dict[str, Any]:
    """A Genesys Cloud notification over EventBridge; `ids` fill the template."""
    topic = kind
    for one in ids or (CALL,):
        topic = topic.replace("{id}", one, 1)
    detail = {
        "topicName": topic.replace("{id}", "another"),
        "version": "2",
        "eventBody": body,
        "metadata": {"CorrelationId": "b6a1f0a8-55a2-4bd6-9f61-9a5c7a4a1e01"},
    }
    if timestamp is not None:
        detail["timestamp"] = timestamp
    return bridge(f"aws.partner/genesys.com/cloud/{ORG}/desk-events", kind, detail)


def session(**more: Any) -> dict[str, Any]:
    """The body of a conversation detail event."""
    return {
        "eventTime": MS,
        "conversationId": CALL,
        "participantId": "a2d5c1f0-1111-4a7e-8a44-7d7f0a1b2c04",
        "sessionId": "c4e6d2f1-2222-4b8f-9b55-8e8a1b2c3d05",
        "mediaType": "VOICE",
        "direction": "INBOUND",
        **more,
    }


def detail_event(kind: str, **more: Any) -> dict[str, Any]:
    return genesys(f"v2.detail.events.conversation.{{id}}.{kind}", session(**more))


def without(body: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name not in names}
