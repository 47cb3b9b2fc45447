"""What `auto` takes by rows of its own: what nobody knows by its content, states as facts."""

from __future__ import annotations

from tests.rows.relayed import relayed
from tests.rows.row import ISO, Row

AUTO = [
    Row(
        "auto",
        "relayed.status",
        relayed(
            "conversation:call:status",
            {"conversationId": "conv-1", "status": "alerting", "timestamp": ISO},
        ),
        hands_on={
            "detail.conversationId": "eventbridge",
            "detail.status": "eventbridge",
            "time(detail.timestamp)": "eventbridge",
        },
    ),
    Row(
        "auto",
        "relayed.newest-timed",
        relayed("interaction", {"interactionId": "i-1", "state": "held", "timestamp": ISO}),
        hands_on={"detail.interactionId": "eventbridge", "time(detail.timestamp)": "eventbridge"},
    ),
    Row(
        "auto",
        "auto.id",
        {"id": "m-1", "payload": {"light": "green"}, "timestamp": ISO},
        hands_on={"id": "auto.published"},
    ),
    Row(
        "auto",
        "auto.timed",
        {"light": "green", "timestamp": ISO},
        hands_on={"detail.timestamp": "auto.content"},
    ),
    Row(
        "auto",
        "auto.published",
        {"source": "acme", "detail-type": "probe", "time": ISO, "detail": {"light": "green"}},
        hands_on={"time": "auto.content"},
        timed=True,
    ),
    *(
        Row("auto", f"auto.dated-{name}", {"light": "green", name: ISO})
        for name in (
            *("created", "createdAt", "created_at", "eventTime", "event_time", "occurredAt"),
            *("occurred_at", "updatedAt", "updated_at", "Timestamp"),
        )
    ),
    Row("auto", "auto.dated-data-timestamp", {"light": "green", "data": {"timestamp": ISO}}),
    Row("auto", "auto.content", {"light": "green", "lamp": 7}),
]
