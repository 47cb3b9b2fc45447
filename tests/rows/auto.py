"""Events that `auto` takes by rows of its own: unknown content, and states as facts."""

from __future__ import annotations

from tests.rows.relayed import relayed
from tests.rows.row import ISO, Row

AUTO = [
    Row(
        "relayed.status",
        relayed(
            "conversation:call:status",
            {"conversationId": "conv-1", "status": "alerting", "timestamp": ISO},
        ),
        hands_on={
            "detail.conversationId": "relayed.hash-timed",
            "detail.status": "relayed.conversation",
            "time(detail.timestamp)": "eventbridge",
        },
        under="auto",
    ),
    Row(
        "relayed.newest-timed",
        relayed("call", {"interactionId": "i-1", "state": "held", "timestamp": ISO}),
        hands_on={
            "detail.interactionId": "relayed.hash-timed",
            "time(detail.timestamp)": "eventbridge",
        },
        under="auto",
    ),
    Row(
        "auto.timed",
        {"light": "green", "timestamp": ISO},
        hands_on={"detail.timestamp": "auto.unidentified"},
    ),
    Row(
        "auto.published",
        {"source": "acme", "detail-type": "probe", "time": ISO, "detail": {"light": "green"}},
        hands_on={"time": "auto.unidentified"},
        timed=True,
    ),
    *(
        Row(
            f"auto.dated-{name}",
            {"light": "green", name: ISO},
            hands_on={f"detail.{name}": "auto.unidentified"},
        )
        for name in (
            *("eventTime", "event_time", "occurredAt", "occurred_at"),
            *("updatedAt", "updated_at", "Timestamp"),
        )
    ),
    Row(
        "auto.dated-data-timestamp",
        {"light": "green", "data": {"timestamp": ISO}},
        hands_on={"detail.data.timestamp": "auto.unidentified"},
    ),
    Row("auto.unidentified", {"light": "green", "lamp": 7}, transport=True),
]
