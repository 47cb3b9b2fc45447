"""The unit of all figures: `json.loads` of a 1 KB event on this machine, now."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from typing import Final

EVENT = json.dumps(
    {
        "version": "0",
        "id": "6a7e8feb-b491-4cf7-a9f1-bf3703467718",
        "detail-type": "v2.detail.events.conversation.{id}.user.end",
        "source": "aws.partner/genesys.com/cloud/0b5f2a3c-57f4-4b50-8a14-3d8f6a1c9e77/orders",
        "account": "111122223333",
        "time": "2026-05-04T09:15:27Z",
        "region": "eu-central-1",
        "resources": [],
        "detail": {
            "topicName": "v2.detail.events.conversation.4c0f1f5e-8f0d-4f57-9b1a-f2f0a8f6c.user.end",
            "version": "2",
            "timestamp": "2026-05-04T09:15:27.482Z",
            "metadata": {"CorrelationId": "8d1f3f5a-93dc-4a3b-a6c2-0f5f4f3a2b1c"},
            "eventBody": {
                "eventTime": 1777886127391,
                "conversationId": "4c0f1f5e-8f0d-4f57-9b1a-f2f0a8f6c1d9",
                "participantId": "c6a53fd2-6a4e-4d0a-9e37-7b1f7e0b5a10",
                "sessionId": "1b8e4c38-5d7c-4a6b-bb0d-4e2f3a9c8d71",
                "userId": "9f0e1d2c-3b4a-4958-8776-655443322110",
                "disconnectType": "PEER",
                "mediaType": "VOICE",
                "provider": "Edge",
                "direction": "INBOUND",
                "ani": "tel:+4989123456",
                "dnis": "tel:+4930987654",
                "divisionId": "2f1e0d3c-4b5a-4697-8879-a0b1c2d3e4f5",
                "queueId": "7a6b5c4d-3e2f-4a1b-9c8d-0e1f2a3b4c5d",
                "interactingDurationMs": 184223,
            },
        },
    }
).encode()
"""An event of the usual shape and size, with made-up names and numbers; bytes, as events arrive."""


clock: Final[Callable[[], float]] = (
    time.process_time
    if os.environ.get("EVENTONCE_BENCH_CLOCK") == "processor"
    else time.perf_counter
)
"""Seconds. `EVENTONCE_BENCH_CLOCK=processor` counts only those in which this process works, for a
machine with other load. Waits for the disk are then left out."""


def json_loads(repeat: int = 1_000) -> float:
    """Return the seconds to decode the event now; measure it often during a long measurement."""
    started = clock()
    for _ in range(repeat):
        json.loads(EVENT)
    return (clock() - started) / repeat
