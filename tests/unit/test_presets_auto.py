"""`auto` on unknown sources: none of their events is lost, though a changed copy may run."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from eventonce import presets
from tests.rows.outcomes import at, statuses, together
from tests.rows.relayed import relayed
from tests.rows.row import bridge, detail_event, genesys

Events = list[dict[str, Any]]


def without_id(detail: dict[str, Any], **more: Any) -> dict[str, Any]:
    """An event without an id, as an incomplete input transformer makes it."""
    return {"source": "com.acme.shop", "detail-type": "changed", "detail": detail, **more}


def differing_in(name: str) -> Events:
    ended = {"state": "ended", "timestamp": at(45)}
    return [{**ended, name: f"{name}-1"}, {**ended, name: f"{name}-2"}]


def call(status: str, second: int) -> dict[str, Any]:
    return {"conversationId": "conv-1", "status": status, "timestamp": at(second)}


def nested(status: str, second: int) -> dict[str, Any]:
    return {"conversationId": "conv-1", "timestamp": at(second), "data": {"status": status}}


def interaction(status: str, second: int) -> dict[str, Any]:
    return {"interactionId": "i-1", "state": status, "timestamp": at(second)}


HELD = [("connected", 1), ("held", 11), ("connected", 21)]


def as_lines(detail: Callable[[str, int], dict[str, Any]]) -> Events:
    return [detail(*one) for one in HELD]


def by_a_relay(detail: Callable[[str, int], dict[str, Any]]) -> Events:
    return [
        relayed("call", detail(*one), id=f"id-{number}", time=at(one[1]))
        for number, one in enumerate(HELD)
    ]


DIFFERENT: dict[str, Events] = {
    "told by a request's id": differing_in("requestId"),
    "told by a correlation id": differing_in("correlationId"),
    "told by a delivery's id": differing_in("deliveryId"),
    "told by a trace's id": differing_in("traceId"),
    "told by when it was received": differing_in("receivedAt"),
    "told by a counter": differing_in("retryCount"),
    "told by a request's id, by a relay": [
        relayed("probe", detail, id="") for detail in differing_in("requestId")
    ],
    "told by an id while the time is the same": [
        {"timestamp": at(45), "requestId": "r-1", "status": "ok"},
        {"timestamp": at(45), "requestId": "r-2", "status": "ok"},
    ],
    "two within a second": [
        {"timestamp": at(45, 100), "status": "ok"},
        {"timestamp": at(45, 700), "status": "ok"},
    ],
    "two whose time stands in the envelope alone": [
        without_id({"light": "green"}, time="2026-03-03T09:30:45Z"),
        without_id({"light": "green"}, time="2026-03-03T09:30:46Z"),
    ],
    "two whose request stands beside one key": [
        {"IdempotencyKey": "k-1", "requestId": "r-1"},
        {"IdempotencyKey": "k-2", "requestId": "r-1"},
    ],
    "two participants at the same moment": [
        {"conversationId": "c", "state": "held", "timestamp": at(1), "participant": "p-1"},
        {"conversationId": "c", "state": "held", "timestamp": at(1), "participant": "p-2"},
    ],
    "two seats of one concert": [
        {"eventId": "concert-1", "eventType": "sold", "seat": 4},
        {"eventId": "concert-1", "eventType": "sold", "seat": 5},
    ],
    "two payloads of one order": [
        {"id": "order-1", "timestamp": at(1), "payload": {"state": "paid"}},
        {"id": "order-1", "timestamp": at(1), "payload": {"state": "packed"}},
    ],
    "told by what stands beside the payload": [
        {"timestamp": at(1), "status": status, "payload": {"order": 1}} for status in ("a", "b")
    ],
    "told by what stands beside the payload of a known relay": [
        {"source": "nice", "queue": queue, "payload": {"interactionId": 1, "timestamp": at(1)}}
        for queue in ("a", "b")
    ],
    "two sources that say the same at the same moment": [
        without_id({"light": "green", **own}, source=source, time=at(1))
        for own in ({}, {"timestamp": at(1)})
        for source in ("a", "b")
    ],
    "two schedules at the same moment": [
        without_id({}, source="aws.events", resources=[rule], time=at(1)) for rule in ("a", "b")
    ],
    "one idempotency key in two sources": [
        without_id({"IdempotencyKey": "k-1", "order": 1}, source=source) for source in ("a", "b")
    ],
    "a return, as plain lines": as_lines(call),
    "a return deeper down, as plain lines": as_lines(nested),
    "a return of an interaction, as plain lines": as_lines(interaction),
    "a return, under a relay's ids": by_a_relay(call),
    "a return deeper down, under a relay's ids": by_a_relay(nested),
    "a return of an interaction, under a relay's ids": by_a_relay(interaction),
    "a return without a time, under a relay's ids": [
        relayed("call", {"conversationId": "conv-1", "status": status}, id=f"id-{number}")
        for number, (status, _) in enumerate(HELD)
    ],
    "a return of an interaction without a time, under a relay's ids": [
        relayed("call", {"interactionId": "i-1", "state": status}, id=f"id-{number}")
        for number, (status, _) in enumerate(HELD)
    ],
}


@pytest.mark.parametrize("events", DIFFERENT.values(), ids=DIFFERENT)
def test_events_that_differ_in_any_field_run_and_their_copies_are_duplicates(
    events: Events,
) -> None:
    assert statuses("auto", events) == ["done"] * len(events)
    assert statuses("auto", [*events, *events])[len(events) :] == ["duplicate"] * len(events)


UNIDENTIFIED: dict[str, Events] = {
    "a plain line": [{"agent": "ada", "state": state} for state in ("idle", "busy", "idle")],
    "an envelope that lost its id and time": [
        without_id({"agent": "ada", "state": state}) for state in ("idle", "busy", "idle")
    ],
    "content that says when it was created, and no more": [
        {"order": 1, "createdAt": at(1), "state": state} for state in ("paid", "held", "paid")
    ],
    "a payload under a relay's name": [
        {"source": "nice", "payload": {"interactionId": "i-1", "state": state}}
        for state in ("held", "connected", "held")
    ],
    "nothing at all": [{}, {}, {}],
    "an id that may be an entity's": [
        {"id": "order-1", "payload": {"state": state}} for state in ("paid", "held", "paid")
    ],
}


@pytest.mark.parametrize("events", UNIDENTIFIED.values(), ids=UNIDENTIFIED)
@pytest.mark.parametrize("preset", ["auto", "relayed"])
def test_an_event_without_a_transport_id_and_a_time_runs_at_every_delivery(
    preset: str, events: Events
) -> None:
    assert statuses(preset, [*events, *events]) == ["done"] * 2 * len(events)
    assert together(preset, [*events, *events]) == ["done"] * 2 * len(events)


NO_TIMES: list[Any] = [
    *("noon", "07:00", "N/A", "2026-13-45T00:00:00Z", "1970-01-01T00:00:00Z"),
    *("0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", 0, -1, 7, True, 2**60, {}, [1]),
]


@pytest.mark.parametrize("time", NO_TIMES, ids=str)
@pytest.mark.parametrize("name", ["timestamp", "time", "eventTime", "updatedAt"])
def test_a_value_that_is_no_real_time_proves_no_copy(name: str, time: Any) -> None:
    line = {"light": "green", name: time}
    assert statuses("auto", [line] * 3) == ["done"] * 3


@pytest.mark.parametrize("time", NO_TIMES, ids=str)
@pytest.mark.parametrize("preset", ["genesys", "auto", "genesys:latest"])
def test_a_genesys_event_without_a_real_time_is_keyed_by_its_transport_id(
    preset: str, time: Any
) -> None:
    start = detail_event("acd.start", eventTime=time)
    other = {**start, "id": "another"}
    assert statuses(preset, [start, other, start]) == ["done", "done", "duplicate"]


@pytest.mark.parametrize("time", NO_TIMES, ids=str)
def test_a_version_without_a_real_time_is_a_fact_and_never_stale(time: Any) -> None:
    def presence(modified: Any, id: str) -> dict[str, Any]:
        body = {
            "source": "PURECLOUD",
            "presenceDefinition": {"id": "meal"},
            "modifiedDate": modified,
        }
        return {**genesys("v2.users.{id}.presence", body), "id": id}

    events = [presence(at(1), "1"), presence(time, "2"), presence(time, "3"), presence(time, "3")]
    assert statuses("genesys:latest", events) == ["done", "done", "done", "duplicate"]


LOOKALIKES: dict[str, Events] = {
    "a queue's message": [
        {"messageId": "m-1", "status": status, "body": {"text": "hi"}}
        for status in ("sent", "read")
    ],
    "a queue's message with a text": [
        {"messageId": "m-1", "status": status, "body": '{"text": "hi"}'}
        for status in ("sent", "read")
    ],
    "a topic's notice": [
        {"Type": "Notification", "MessageId": "1", "Level": level, "Message": {"text": "hi"}}
        for level in (1, 2)
    ],
    "a topic's record": [
        {"Sns": {"Message": {"text": "hi"}, "MessageId": "1"}, "Level": level} for level in (1, 2)
    ],
    "a bus": [
        {"EventId": name, "Data": {"n": 1, "timestamp": at(1)}, "Metadata": {}}
        for name in ("a", "b")
    ],
}


@pytest.mark.parametrize("preset", presets.names())
@pytest.mark.parametrize("events", LOOKALIKES.values(), ids=LOOKALIKES)
def test_an_event_that_only_looks_like_a_carrier_keeps_the_fields_that_distinguish_it(
    preset: str, events: Events
) -> None:
    assert "duplicate" not in statuses(preset, events)


CHANGE = "Conversation Status Change"


def test_a_known_shape_from_another_source_is_keyed_by_its_transport_id() -> None:
    """A type alone proves no source: without the fields of its shape a rule is not applied."""
    crm = bridge("com.acme.crm", CHANGE, {"conversation_id": "c", "status": "ended"})
    events = [crm, {**crm, "id": "another"}, crm]
    assert statuses("auto", events) == ["done", "done", "duplicate"]
    for kind in (CHANGE, "interaction.routing.update", "interaction.analytics.contact"):
        for source in ("aws.partner/acme.com/1/crm", "aws.connect"):
            detail = {"event_id": "e", "interaction-id": "i", "state": "s", "timestamp": at(1)}
            event = bridge(source, kind, detail)
            assert statuses("auto", [event, {**event, "id": "another"}]) == ["done", "done"]


def test_events_with_one_entity_id_are_never_merged_by_that_id() -> None:
    orders = [{"id": "order-1", "payload": {"state": state}} for state in ("paid", "packed")]
    for preset in presets.names():
        assert statuses(preset, [*orders, *orders]) in (["done"] * 4, ["invalid"] * 4), preset

    def message(id: str, order: dict[str, Any]) -> dict[str, Any]:
        return {"messageId": id, "body": json.dumps(order)}

    returned = [message("1", orders[0]), message("2", orders[1]), message("3", orders[0])]
    for preset in presets.names():
        assert statuses(preset, [*returned, returned[2]]) == [*["done"] * 3, "duplicate"], preset


def test_an_event_from_a_queue_has_the_id_of_its_message() -> None:
    def message(id: str) -> dict[str, Any]:
        return {"messageId": id, "body": '{"agent": "ada", "state": "idle"}'}

    events = [message("1"), message("2"), message("1")]
    assert statuses("auto", events, every=60) == ["done", "done", "duplicate"]


def test_an_idempotency_key_with_other_content_is_a_conflict_and_not_lost() -> None:
    one = {"IdempotencyKey": "${id}", "requestId": "r-1"}
    assert statuses("auto", [one, {**one, "requestId": "r-2"}]) == ["done", "conflict"]


def test_an_event_of_a_known_relay_with_a_new_time_and_request_id_is_a_duplicate() -> None:
    detail = {"event_id": "e-1", "status": "ended", "requestId": "r-1", "timestamp": at(1)}
    again = {**detail, "requestId": "r-2", "timestamp": at(9)}
    events = [relayed("call", detail), relayed("call", again, id="another")]
    assert statuses("auto", events) == ["done", "duplicate"]
