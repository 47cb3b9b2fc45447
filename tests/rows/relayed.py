"""Events that relays and test benches send."""

from __future__ import annotations

from typing import Any

from tests.rows.row import ISO, MS, Row, bridge


def relayed(kind: str, detail: Any, **more: Any) -> dict[str, Any]:
    return bridge("genesys.cloud", kind, detail, **more)


RELAYED = [
    Row(
        "relayed.analytics-contact",
        relayed("interaction.analytics.contact", {"interaction-id": "i-1", "timestamp": ISO}),
        hands_on={"detail.interaction-id": "relayed.hash-timed"},
    ),
    Row(
        "relayed.routing-update",
        relayed(
            "interaction.routing.update",
            {"interaction-id": "i-1", "state": "QUEUED", "timestamp": ISO},
        ),
        hands_on={
            "detail.interaction-id": "relayed.hash-timed",
            "detail.state": "relayed.interaction",
            "detail.timestamp": "relayed.hash",
        },
    ),
    Row(
        "relayed.status-change",
        relayed(
            "Conversation Status Change",
            {"event_id": "evt-1", "conversation_id": "conv-1", "status": "ended"},
        ),
        hands_on={"detail.event_id": "relayed.hash"},
    ),
    Row(
        "relayed.event-id",
        relayed("interaction.ended", {"event-id": "e-1", "interaction-id": "i-1"}),
        hands_on={"detail.event-id": "relayed.hash"},
    ),
    Row(
        "relayed.event_id",
        relayed("call", {"event_id": "evt-1", "status": "ended"}),
        hands_on={"detail.event_id": "relayed.hash"},
    ),
    Row(
        "relayed.eventId",
        relayed("call", {"eventId": "e-1", "eventType": "ended", "conversationId": "conv-1"}),
        hands_on={"detail.eventId": "relayed.hash"},
    ),
    Row(
        "relayed.idempotency-key",
        {"IdempotencyKey": "key-1", "Source": "genesys-cloud", "call": "conv-1"},
        hands_on={"detail.IdempotencyKey": "relayed.hash"},
    ),
    Row(
        "relayed.idempotency-key-beside",
        relayed("call", {"conversation": "conv-1"}, IdempotencyKey="key-1"),
        hands_on={"envelope.IdempotencyKey": "relayed.hash"},
    ),
    Row(
        "relayed.interaction",
        relayed("interaction.held", {"interaction-id": "i-1", "hold": 2, "timestamp": ISO}),
        hands_on={
            "detail.interaction-id": "relayed.hash-timed",
            "detail.timestamp": "relayed.hash",
        },
    ),
    Row(
        "relayed.id",
        relayed(
            "conversation:call:status",
            {"id": "e-1", "type": "call", "state": "connected", "timestamp": MS},
        ),
        hands_on={"detail.id": "relayed.hash-timed", "detail.timestamp": "relayed.hash"},
    ),
    Row(
        "relayed.status",
        relayed(
            "conversation:call:status",
            {"conversationId": "conv-1", "status": "connected", "timestamp": 1_772_530_245.126},
        ),
        hands_on={
            "detail.conversationId": "relayed.hash-timed",
            "detail.status": "relayed.conversation",
            "time(detail.timestamp)": "relayed.hash",
        },
    ),
    Row(
        "relayed.data",
        relayed(
            "GenesysEvent",
            {
                "type": "conversation:call:updated",
                "data": {"id": "conv-1", "state": "held"},
                "timestamp": ISO,
            },
        ),
        hands_on={"detail.data.id": "relayed.hash-timed", "detail.timestamp": "relayed.hash"},
    ),
    Row(
        "relayed.payload",
        {"payload": {"interactionId": "i-1", "state": "ended", "timestamp": ISO}},
        hands_on={"detail.interactionId": "relayed.hash-timed", "detail.timestamp": "relayed.hash"},
        auto="auto.timed",
    ),
    Row(
        "relayed.interaction-newest-timed",
        relayed("Interaction Held", {"interactionId": "i-1", "state": "held", "timestamp": ISO}),
        hands_on={
            "detail.interactionId": "relayed.hash-timed",
            "time(detail.timestamp)": "relayed.interaction-newest",
        },
    ),
    Row(
        "relayed.interaction-newest",
        relayed("interaction.held", {"interactionId": "i-1", "state": "held"}),
        hands_on={"detail.interactionId": "relayed.hash", "time(time)": "relayed.hash"},
        timed=True,
        transport=True,
        auto="eventbridge",
    ),
    Row(
        "relayed.newest-timed",
        relayed("call", {"interactionId": "i-1", "state": "held", "timestamp": ISO}),
        hands_on={
            "detail.interactionId": "relayed.hash-timed",
            "time(detail.timestamp)": "relayed.newest",
        },
    ),
    Row(
        "relayed.newest",
        relayed("call", {"interactionId": "i-1", "state": "held"}),
        hands_on={"detail.interactionId": "relayed.hash", "time(time)": "relayed.hash"},
        timed=True,
        transport=True,
        auto="eventbridge",
    ),
    Row(
        "relayed.conversation",
        bridge(
            "com.mycompany.test",
            "TestEvent",
            {
                "conversationId": "conv-1",
                "timestamp": 1_772_530_245.126,
                "data": {"status": "connected"},
            },
        ),
        hands_on={
            "detail.conversationId": "relayed.hash-timed",
            "detail.timestamp": "relayed.hash",
        },
    ),
    Row(
        "relayed.hash-timed",
        bridge("acme.bench", "probe", {"light": "green", "timestamp": ISO}),
        hands_on={"detail.timestamp": "relayed.hash"},
        auto="eventbridge",
    ),
    Row(
        "relayed.hash",
        bridge("acme.bench", "probe", {"light": "green"}),
        transport=True,
        auto="eventbridge",
    ),
]
