"""Events made for the tests, after the shapes that really arrive."""

from __future__ import annotations

import json
from typing import Any

from eventonce.envelope import read
from eventonce.types import Event

ORG = "0b4c7e6a-2f51-4d0e-9a39-51c1f1c5a001"
SOURCE = f"aws.partner/genesys.com/cloud/{ORG}/orders"
ACD_END = "v2.detail.events.conversation.{id}.acd.end"
TIME = 1_765_551_865_126


def body(**changes: Any) -> dict[str, Any]:
    """The eventBody of a call leaving a queue."""
    return {
        "eventTime": TIME,
        "conversationId": "c-1",
        "participantId": "p-1",
        "sessionId": "s-1",
        "mediaType": "VOICE",
        "queueId": "q-1",
        "connectedDurationMs": 39674,
        **changes,
    }


def classic(detail: Any = None, **changes: Any) -> dict[str, Any]:
    """The EventBridge envelope around a detail, that of a call leaving a queue unless given."""
    if detail is None:
        detail = {
            "topicName": "v2.detail.events.conversation.c-1.acd.end",
            "version": "2",
            "eventBody": body(),
            "metadata": {"CorrelationId": "corr-1"},
            "timestamp": "2025-12-12T15:04:25.431Z",
        }
    envelope = {
        "version": "0",
        "id": "7a1d6f3e-0d6b-0c52-9c11-3a1d5f6b8c01",
        "detail-type": ACD_END,
        "source": SOURCE,
        "account": "123456789012",
        "time": "2025-12-12T15:04:25Z",
        "region": "eu-west-1",
        "resources": [],
        "detail": detail,
    }
    envelope.update({name.replace("_", "-"): value for name, value in changes.items()})
    return envelope


def raw(value: Any) -> bytes:
    return json.dumps(value).encode()


def event(detail: Any = None, **changes: Any) -> Event:
    return read(raw(classic(detail, **changes)))
