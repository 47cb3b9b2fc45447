"""CXone and relayed events in use: copies, different events, and old versions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.rows.cxone import ACD
from tests.rows.outcomes import Story, at, statuses
from tests.rows.relayed import relayed
from tests.rows.row import bridge, without

# --- CXone ---


def test_a_cxone_contact_is_identified_by_its_state_and_ids_beyond_floats_stay_exact() -> None:
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


def test_a_cxone_reply_with_the_id_of_its_request_is_a_fact_of_its_own() -> None:
    asked = {"eventId": "request-1", "eventType": "SendMessage", "data": {"text": "hello"}}
    replied = {"eventId": "request-1", "postback": {"eventType": "MessageSent", "data": {}}}
    failed = {"eventId": "request-1", "postback": {"eventType": "MessageRefused", "data": {}}}
    assert statuses("cxone", [asked, replied, failed, replied]) == [*["done"] * 3, "duplicate"]


# --- relayed: the shapes of common recipes ---


def status_notice(status: str, timestamp: Any, **more: Any) -> dict[str, Any]:
    detail = {"conversationId": "conv-1", "status": status, "timestamp": timestamp, **more}
    return relayed("conversation:call:status", detail)


def interaction(state: str, time: str, **more: Any) -> dict[str, Any]:
    return relayed("interaction", {"interactionId": "i-1", "state": state, **more}, time=time)


def minute(timestamp: Any, status: str = "connected") -> dict[str, Any]:
    detail = {"conversationId": "conv-1", "timestamp": timestamp, "data": {"status": status}}
    return bridge("com.mycompany.test", "TestEvent", detail)


def routed(
    state: str, timestamp: Any, interaction: str = "i-1", id: str = "1", **more: Any
) -> dict[str, Any]:
    detail = {"interaction-id": interaction, "state": state, "timestamp": timestamp, **more}
    return relayed("interaction.routing.update", detail, id=id)


def closed(detail: dict[str, Any]) -> dict[str, Any]:
    return relayed("interaction.analytics.contact", detail)


def typed(kind: str, state: str, **more: Any) -> dict[str, Any]:
    return relayed("GenesysEvent", {"type": kind, "data": {"id": "conv-1", "state": state}}, **more)


def told(kind: str, state: str, **more: Any) -> dict[str, Any]:
    return relayed(kind, {"interactionId": "i-1", "state": state}, **more)


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
    "a status said twice, the second time of another participant": [
        (status_notice("connected", T), "done"),
        (status_notice("connected", T, participant="p-2"), "done"),
        (status_notice("connected", T + 0.3, participant="p-1"), "done"),
    ],
    "the newest of an interaction, by whole seconds": [
        (interaction("queued", "2026-03-03T09:30:45Z"), "done"),
        (interaction("queued", "2026-03-03T09:30:45Z"), "duplicate"),
        (interaction("alerting", "2026-03-03T09:30:45Z"), "done"),
        (interaction("connected", "2026-03-03T09:30:47Z"), "done"),
        (interaction("held", "2026-03-03T09:30:46Z"), "stale"),
        (interaction("connected", "2026-03-03T10:30:00Z"), "done"),
    ],
    "a return of an interaction within a second, under ids of their own": [
        (told("call", "queued", id="1"), "done"),
        (told("call", "alerting", id="2"), "done"),
        (told("call", "queued", id="3"), "done"),
        (told("call", "queued", id="3"), "duplicate"),
    ],
    "the newest of an interaction, whatever its type": [
        (told("Interaction Update", "held", time="2026-03-03T10:00:05Z"), "done"),
        (told("Interaction Ended", "ended", time="2026-03-03T10:00:01Z"), "stale"),
        (told("Interaction Ended", "ended", time="2026-03-03T10:00:05Z"), "done"),
        (told("interaction.ended", "ended", time="2026-03-03T10:00:05Z"), "done"),
        (told("Survey", "ended", time="2026-03-03T10:00:01Z"), "done"),
    ],
    "the newest of an interaction by its own time, whatever its type": [
        (told("Interaction Update", "held", time="2026-03-03T10:00:05Z"), "done"),
        (
            relayed("Interaction Ended", {"interactionId": "i-1", "timestamp": at(1)}),
            "stale",
        ),
    ],
    "the newest of an interaction, by its own time": [
        (interaction("queued", "2026-03-03T09:31:00Z", timestamp=at(1)), "done"),
        (interaction("connected", "2026-03-03T09:30:00Z", timestamp=at(2)), "done"),
        (interaction("queued", "2026-03-03T09:39:00Z", timestamp=at(1)), "stale"),
    ],
    "a conversation that returns within a minute": [
        (minute(T), "done"),
        (minute(T), "duplicate"),
        (minute(T + 9, "held"), "done"),
        (minute(T + 12), "done"),
    ],
    "a routing update that returns within a second": [
        (routed("QUEUED", at(1, 100)), "done"),
        (routed("QUEUED", at(1, 100)), "duplicate"),
        (routed("CONNECTED", at(1, 500)), "done"),
        (routed("QUEUED", at(1, 900)), "done"),
    ],
    "routing updates whose interaction has an empty name": [
        (routed("QUEUED", at(1), interaction="", id="1"), "done"),
        (routed("QUEUED", at(1), interaction="", id="2", queue="q-2"), "done"),
        (routed("QUEUED", at(1), interaction=" ", id="3", queue="q-3"), "done"),
    ],
    "the closing snapshot of an interaction": [
        (closed({"interaction-id": "i-1", "handled": 41}), "done"),
        (closed({"interaction-id": "i-1", "handled": 41, "timestamp": 9}), "duplicate"),
        (closed({"interaction-id": "i-1", "handled": 42}), "conflict"),
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
        (relayed("b", {"id": "e-1"}, time="2026-03-03T09:31:00Z"), "done"),
        (relayed("b", {"id": "e-1", "state": "held"}), "done"),
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
        ({"payload": {"interactionId": "i-1", "state": "held", "timestamp": at(1)}}, "done"),
        ({"payload": {"state": "held", "interactionId": "i-1", "timestamp": at(1)}}, "duplicate"),
        ({"payload": {"interactionId": "i-1", "state": "held", "timestamp": at(2)}}, "done"),
    ],
    "content with its time": [
        ({"light": "green", "timestamp": at(1, 100)}, "done"),
        ({"light": "green", "timestamp": at(1, 100)}, "duplicate"),
        ({"light": "green", "timestamp": at(1, 100), "traceId": "b"}, "done"),
        ({"light": "green", "timestamp": at(1, 300)}, "done"),
        ({"light": "green", "timestamp": "noon"}, "invalid"),
    ],
    "a part that is missing leaves the transport id": [
        (relayed("interaction.routing.update", {"state": "QUEUED", "timestamp": 1}), "done"),
        (relayed("Conversation Status Change", {"conversation_id": "c"}), "done"),
        (relayed("Conversation Status Change", {"conversation_id": "c"}), "duplicate"),
        (relayed("Conversation Status Change", {"conversation_id": "c"}, id="another"), "done"),
    ],
    "an order that cannot be told leaves the transport id": [
        (status_notice("connected", "noon"), "done"),
        (status_notice("connected", "noon"), "duplicate"),
        (status_notice("held", "noon"), "done"),
    ],
}


@pytest.mark.parametrize("story", RELAYED.values(), ids=RELAYED)
def test_relayed_shapes_come_to_their_expected_outcomes(
    story: Story,
) -> None:
    events, expected = [event for event, _ in story], [status for _, status in story]
    assert statuses("relayed", events) == expected


Notice = Callable[..., dict[str, Any]]

NO_TIME: dict[str, Notice] = {
    "a status": lambda state, **more: relayed(
        "call", {"conversationId": "conv-1", "status": state}, **more
    ),
    "an interaction": lambda state, **more: relayed(
        "call", {"interaction-id": "i-1", "state": state}, **more
    ),
    "a type and its data": lambda state, **more: typed("conversation:call:updated", state, **more),
    "the newest": lambda state, **more: told("call", state, **more),
    "an entity with an id": lambda state, **more: relayed(
        "call", {"id": "conv-1", "state": state}, **more
    ),
    "words": lambda state, **more: relayed("call", {"light": state}, **more),
}


@pytest.mark.parametrize("preset", ["relayed", "auto"])
@pytest.mark.parametrize("notice", NO_TIME.values(), ids=NO_TIME)
def test_a_call_that_is_connected_held_and_connected_runs_three_times(
    notice: Notice, preset: str
) -> None:
    states = ("connected", "held", "connected")
    later = [notice(state, id=f"{n}", time=at(n)) for n, state in enumerate(states)]
    assert statuses(preset, later) == ["done"] * 3
    assert statuses(preset, [*later, later[2]])[3:] == ["duplicate"]
    stamped = [without(event, "id") for event in later]
    assert statuses(preset, stamped) == ["done"] * 3


@pytest.mark.parametrize("preset", ["relayed", "auto"])
@pytest.mark.parametrize("notice", NO_TIME.values(), ids=NO_TIME)
def test_the_transport_id_distinguishes_a_return_within_a_second(
    notice: Notice, preset: str
) -> None:
    states = ("connected", "held", "connected")
    at_once = [notice(state, id=f"{n}", time=at(1)) for n, state in enumerate(states)]
    assert statuses(preset, at_once) == ["done"] * 3
    untimed = [without(event, "time") for event in at_once]
    assert statuses(preset, [*untimed, untimed[2]]) == [*["done"] * 3, "duplicate"]
