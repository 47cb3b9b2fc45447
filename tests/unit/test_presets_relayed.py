"""CXone and relayed events in use: what is a copy, what is not, what is out of date."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.rows.cxone import ACD
from tests.rows.outcomes import Story, at, statuses
from tests.rows.relayed import relayed
from tests.rows.row import bridge

# --- CXone ---


def test_a_cxone_contact_is_told_by_its_state_and_ids_beyond_floats_survive() -> None:
    def acd_event(**more: Any) -> dict[str, Any]:
        return bridge("acme.cxone", "acd", {**ACD, **more})

    events = [
        acd_event(),
        acd_event(finalState=True),
        acd_event(contactId="446744073709551617"),
        acd_event(contactId=446_744_073_709_551_616),
        acd_event(contactId=446_744_073_709_551_617),
        acd_event(status="Active"),
        acd_event(lastStateChangeTimeUtc="2026-03-03T09:30:46.126Z"),
    ]
    tenant_time = acd_event(lastStateChangeTime="2026-03-03T03:30:45.126Z")
    assert statuses("cxone", [*events, tenant_time]) == ["done"] * 7 + ["duplicate"]


def test_a_cxone_reply_shares_its_callers_id_and_is_still_its_own_fact() -> None:
    asked = {"eventId": "request-1", "eventType": "SendMessage", "data": {"text": "hello"}}
    replied = {"eventId": "request-1", "postback": {"eventType": "MessageSent", "data": {}}}
    failed = {"eventId": "request-1", "postback": {"eventType": "MessageRefused", "data": {}}}
    assert statuses("cxone", [asked, replied, failed, replied]) == [*["done"] * 3, "duplicate"]


# --- relayed: the shapes of the recipes that go round ---


def status_notice(status: str, timestamp: Any) -> dict[str, Any]:
    detail = {"conversationId": "conv-1", "status": status, "timestamp": timestamp}
    return relayed("conversation:call:status", detail)


def interaction(state: str, time: str, **more: Any) -> dict[str, Any]:
    return relayed("interaction", {"interactionId": "i-1", "state": state, **more}, time=time)


def minute(timestamp: Any, status: str = "connected") -> dict[str, Any]:
    detail = {"conversationId": "conv-1", "timestamp": timestamp, "data": {"status": status}}
    return bridge("com.mycompany.test", "TestEvent", detail)


def routed(state: str, timestamp: Any) -> dict[str, Any]:
    detail = {"interaction-id": "i-1", "state": state, "timestamp": timestamp}
    return relayed("interaction.routing.update", detail)


def closed(detail: dict[str, Any]) -> dict[str, Any]:
    return relayed("interaction.analytics.contact", detail)


def typed(kind: str, state: str) -> dict[str, Any]:
    return relayed("GenesysEvent", {"type": kind, "data": {"id": "conv-1", "state": state}})


T = 1_772_530_245.0

RELAYED: dict[str, Story] = {
    "a status said twice within half a second": [
        (status_notice("connected", T), "done"),
        (status_notice("connected", T), "duplicate"),
        (status_notice("connected", T + 0.3), "unchanged"),
        (status_notice("held", T + 0.4), "done"),
        (status_notice("connected", T + 0.45), "done"),
        (status_notice("connected", T + 0.96), "done"),
        (status_notice("held", T + 0.2), "stale"),
    ],
    "the newest of an interaction, by whole seconds": [
        (interaction("queued", "2026-03-03T09:30:45Z"), "done"),
        (interaction("queued", "2026-03-03T09:30:45Z"), "duplicate"),
        (interaction("alerting", "2026-03-03T09:30:45Z"), "done"),
        (interaction("connected", "2026-03-03T09:30:47Z"), "done"),
        (interaction("held", "2026-03-03T09:30:46Z"), "stale"),
        (interaction("connected", "2026-03-03T10:30:00Z"), "unchanged"),
    ],
    "the newest of an interaction, by its own time": [
        (interaction("queued", "2026-03-03T09:31:00Z", timestamp=at(1)), "done"),
        (interaction("connected", "2026-03-03T09:30:00Z", timestamp=at(2)), "done"),
        (interaction("queued", "2026-03-03T09:39:00Z", timestamp=at(1)), "stale"),
    ],
    "a conversation stamped anew with each try": [
        (minute(T), "done"),
        (minute(T + 9), "duplicate"),
        (minute(T + 9, "held"), "done"),
        (minute(T + 70), "done"),
    ],
    "a routing update whose milliseconds differ": [
        (routed("QUEUED", at(1, 100)), "done"),
        (routed("QUEUED", at(1, 900)), "duplicate"),
        (routed("CONNECTED", at(1, 900)), "done"),
        (routed("QUEUED", at(2, 100)), "done"),
    ],
    "the closing snapshot of an interaction": [
        (closed({"interaction-id": "i-1", "handled": 41}), "done"),
        (closed({"interaction-id": "i-1", "handled": 42}), "duplicate"),
        (closed({"interaction-id": "i-2", "handled": 41}), "done"),
        (closed({"handled": 41}), "done"),
        (closed({"handled": 41}), "duplicate"),
        (closed({"interaction-id": "", "handled": 43}), "done"),
        (closed({"interaction-id": "", "handled": 44}), "done"),
    ],
    "many events of one conversation, each with its type": [
        (typed("conversation:call:updated", "held"), "done"),
        (typed("conversation:call:updated", "held"), "duplicate"),
        (typed("conversation:call:updated", "connected"), "done"),
        (typed("routing:queue-member:added", "connected"), "done"),
    ],
    "an id by any of its names": [
        (relayed("a", {"event_id": "e-1", "status": "ended"}), "done"),
        (relayed("a", {"event_id": "e-1", "status": "ended", "timestamp": 7}), "duplicate"),
        (relayed("a", {"event_id": "e-1", "status": "begun"}), "conflict"),
        (relayed("b", {"id": "e-1"}), "done"),
        (relayed("b", {"id": "e-1"}), "duplicate"),
        (relayed("c", {"event-id": "e-1"}), "done"),
        (relayed("c", {"eventId": "e-1"}), "done"),
    ],
    "a template that nobody filled in loses nothing unseen": [
        ({"IdempotencyKey": "${id}", "call": 1}, "done"),
        ({"IdempotencyKey": "${id}", "call": 1}, "duplicate"),
        ({"IdempotencyKey": "${id}", "call": 2}, "conflict"),
    ],
    "an idempotency key beside the detail": [
        (relayed("a", {"call": 1}, IdempotencyKey="k-1"), "done"),
        (relayed("a", {"call": 1}, IdempotencyKey="k-1", id="another"), "duplicate"),
        (relayed("a", {"call": 2}, IdempotencyKey="k-1"), "conflict"),
        (relayed("a", {"call": 1}, IdempotencyKey="k-2"), "done"),
    ],
    "a payload": [
        ({"payload": {"interactionId": "i-1", "state": "held"}}, "done"),
        ({"payload": {"state": "held", "interactionId": "i-1"}}, "duplicate"),
        ({"payload": {"interactionId": "i-1", "state": "ended"}}, "done"),
    ],
    "content alone, without what a relay writes anew": [
        ({"light": "green", "traceId": "a", "metadata": {"CorrelationId": "a"}}, "done"),
        ({"light": "green", "traceId": "b", "metadata": {"CorrelationId": "b"}}, "duplicate"),
        ({"light": "red", "traceId": "b", "metadata": {"CorrelationId": "b"}}, "done"),
        ({"light": "green", "timestamp": at(1, 100)}, "done"),
        ({"light": "green", "timestamp": at(1, 300)}, "duplicate"),
        ({"light": "green", "timestamp": at(9)}, "done"),
    ],
    "a part that cannot be told makes the event invalid": [
        (routed("QUEUED", "noon"), "invalid"),
        (relayed("interaction.routing.update", {"state": "QUEUED", "timestamp": 1}), "invalid"),
        (relayed("Conversation Status Change", {"conversation_id": "c"}), "invalid"),
    ],
}


@pytest.mark.parametrize("story", RELAYED.values(), ids=RELAYED)
def test_relayed_shapes_come_to_their_expected_outcomes(
    story: Story,
) -> None:
    events, expected = [event for event, _ in story], [status for _, status in story]
    assert statuses("relayed", events) == expected


NO_TIME = {
    "a status": lambda state: relayed("call", {"conversationId": "conv-1", "status": state}),
    "an interaction": lambda state: relayed("call", {"interaction-id": "i-1", "state": state}),
    "a type and its data": lambda state: typed("conversation:call:updated", state),
    "a payload": lambda state: {"payload": {"interactionId": "i-1", "state": state}},
    "an id alone": lambda state: {
        "source": "nice",
        "detail-type": "call",
        "detail": {"interactionId": "i-1", "state": state},
    },
}


@pytest.mark.parametrize("event", NO_TIME.values(), ids=NO_TIME)
def test_without_any_time_a_return_is_told_from_a_copy_by_five_minutes(
    event: Callable[[str], dict[str, Any]],
) -> None:
    calls = [event("connected"), event("held"), event("connected")]
    assert statuses("relayed", calls, every=160) == ["done"] * 3
    assert statuses("relayed", [calls[0], calls[0]], every=160) == ["done", "duplicate"]
