"""The Genesys presets in use: events that legitimately repeat run, copies and old versions not."""

from __future__ import annotations

from typing import Any

import pytest

from tests.rows.bodies import (
    ACTIVITY,
    ATTRIBUTES,
    CAMPAIGN,
    MEMBER,
    PRESENCE,
    SNAPSHOT,
    STATISTICS,
    TRANSCRIPTION,
    WORKITEM,
)
from tests.rows.outcomes import Events, Story, again, at, statuses
from tests.rows.row import CALL, MS, QUEUE, USER, detail_event, genesys


def acd(kind: str, session: str, queue: str, time: int) -> dict[str, Any]:
    return detail_event(kind, sessionId=session, queueId=queue, eventTime=time)


def member(joined: bool, second: int, **more: Any) -> dict[str, Any]:
    body = {**MEMBER, "joined": joined, **more}
    return genesys("v2.routing.queues.{id}.users", body, QUEUE, timestamp=at(second))


def presence(definition: str, second: int, millisecond: int = 0, **more: Any) -> dict[str, Any]:
    body = {
        **PRESENCE,
        "presenceDefinition": {"id": definition},
        "modifiedDate": at(second, millisecond),
        **more,
    }
    return genesys("v2.users.{id}.presence", body, USER)


def snapshot(state: str, second: int, conversation: str = CALL) -> dict[str, Any]:
    body = {**SNAPSHOT, "id": conversation, "participants": [{"id": "p1", "state": state}]}
    return genesys("v2.users.{id}.conversations", body, USER, timestamp=at(second))


def statistics(count: int, second: int) -> dict[str, Any]:
    interval = STATISTICS["data"][0]["interval"]
    data = [{"interval": interval, "metrics": [{"metric": "oWaiting", "stats": {"count": count}}]}]
    body = {**STATISTICS, "data": data}
    return genesys("v2.analytics.queues.{id}.observations", body, QUEUE, timestamp=at(second))


OPERATION = {"eventEntity": {"id": "operation-1"}, "timestamp": MS}

LEGITIMATE = {
    "a transfer: two queue visits of one conversation": [
        acd("acd.start", "s1", "sales", MS),
        acd("acd.end", "s1", "sales", MS + 9000),
        acd("acd.start", "s2", "support", MS + 9100),
        acd("acd.end", "s2", "support", MS + 20_000),
    ],
    "a call rejected and queued again: the agent's session ends twice": [
        detail_event("user.start", sessionId="u1", userId="ada"),
        detail_event("user.end", sessionId="u1", userId="ada", eventTime=MS + 8000),
        detail_event("user.start", sessionId="u2", userId="ada", eventTime=MS + 9000),
        detail_event("user.end", sessionId="u2", userId="ada", eventTime=MS + 60_000),
    ],
    "two sessions end in the same millisecond": [
        detail_event("user.end", sessionId="u1"),
        detail_event("user.end", sessionId="u2"),
        detail_event("user.end", sessionId="u2", participantId="another"),
    ],
    "a message reopened: wrap-up comes again": [
        detail_event("acw", wrapupCode="open"),
        detail_event("acw", wrapupCode="open", eventTime=MS + 3_600_000),
        detail_event("acw", wrapupCode="open", eventTime=MS + 7_200_000),
    ],
    "acw and wrapup tell of one act on two topics": [
        detail_event("acw", wrapupCode="sold"),
        detail_event("wrapup", wrapupCode="sold"),
    ],
    "two codes for one session in the same millisecond": [
        detail_event("wrapup", wrapupCode="sold"),
        detail_event("wrapup", wrapupCode="call back"),
    ],
    "two users take the same presence in the same millisecond": [
        genesys("v2.users.{id}.presence", PRESENCE, USER),
        genesys("v2.users.{id}.presence", PRESENCE, "another"),
    ],
    "a trunk goes down: no conversation, and at once on two trunks": [
        genesys("v2.operations.events.{id}", {**OPERATION, "entityId": trunk}, "operation-1")
        for trunk in ("trunk-1", "trunk-2")
    ],
    "several outcomes of one flow": [
        detail_event("flow.outcome", flowOutcomeId="o1", flowOutcomeStartTime=MS),
        detail_event("flow.outcome", flowOutcomeId="o2", flowOutcomeStartTime=MS),
    ],
    "an attribute set, changed and set back": [
        genesys(
            "v2.detail.events.conversation.{id}.attributes",
            {**ATTRIBUTES, "attributes": {"tier": tier}, "eventTime": MS + step},
        )
        for step, tier in enumerate(("gold", "silver", "gold"))
    ],
    "an utterance first tentative, then final": [
        genesys(
            "v2.conversations.{id}.transcription",
            {**TRANSCRIPTION, "transcripts": [{"utteranceId": "u", "isFinal": final}]},
        )
        for final in (False, True)
    ],
    "a conversation that returns to an earlier state": [
        snapshot("connected", 0),
        snapshot("held", 5),
        snapshot("connected", 9),
        snapshot("held", 11),
    ],
    "an agent who joins, leaves and joins a queue": [
        member(True, 0),
        member(False, 5),
        member(True, 9),
    ],
    "a counter that goes up and down": [statistics(1, 0), statistics(2, 1), statistics(1, 2)],
    "a user back at an earlier presence": [
        presence("available", 0),
        presence("meal", 5),
        presence("available", 9),
    ],
    "a station left and taken again": [
        genesys("v2.users.{id}.station", {"associatedStation": name}, USER, timestamp=at(second))
        for second, name in enumerate(("desk 4", None, "desk 4"))
    ],
    "a late fact is late, and not dropped": [
        acd("acd.end", "s1", "sales", MS + 9000),
        acd("acd.start", "s1", "sales", MS),
    ],
}


@pytest.mark.parametrize("events", LEGITIMATE.values(), ids=LEGITIMATE)
def test_events_that_repeat_legitimately_run_every_time_and_their_copies_do_not(
    events: Events,
) -> None:
    assert statuses("genesys", events) == ["done"] * len(events)
    copies = [again(event) for event in events]
    assert statuses("genesys", [*events, *copies])[len(events) :] == ["duplicate"] * len(copies)
    assert statuses("auto", [*events, *copies])[len(events) :] == ["duplicate"] * len(copies)


def notified(topic: str, body: dict[str, Any], correlation: str = "") -> dict[str, Any]:
    """An event as a WebSocket delivers it: without a transport id and without a time."""
    metadata = {"metadata": {"CorrelationId": correlation}} if correlation else {}
    return {"topicName": topic, "eventBody": body, **metadata}


OVER_SOCKET: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "presence": (
        f"v2.users.{USER}.presence",
        {"source": "PURECLOUD", "presenceDefinition": {"id": "available"}, "message": ""},
        {"source": "PURECLOUD", "presenceDefinition": {"id": "meal"}, "message": ""},
    ),
    "a level": ("v2.outbound.campaigns.c.progress", {"percentage": 40}, {"percentage": 50}),
    "a snapshot": (f"v2.users.{USER}.conversations", {"id": CALL, "n": 1}, {"id": CALL, "n": 2}),
    "a summary": (f"v2.users.{USER}.conversations.summaries", {"summaryId": 1}, {"summaryId": 2}),
    "a topic nobody knows": ("v2.of.the.year", {"light": "green"}, {"light": "red"}),
}


@pytest.mark.parametrize("preset", ["genesys", "genesys:latest", "auto"])
@pytest.mark.parametrize("notice", OVER_SOCKET.values(), ids=OVER_SOCKET)
def test_an_immediate_return_over_a_websocket_runs(
    notice: tuple[str, dict[str, Any], dict[str, Any]], preset: str
) -> None:
    topic, one, other = notice
    bodies = (one, other, one)
    assert statuses(preset, [notified(topic, body) for body in bodies]) == ["done"] * 3
    told = [notified(topic, body, f"c-{n}") for n, body in enumerate(bodies)]
    assert statuses(preset, [*told, *told]) == [*["done"] * 3, *["duplicate"] * 3]


@pytest.mark.parametrize("preset", ["genesys", "genesys:latest", "auto"])
@pytest.mark.parametrize(
    "topic",
    [
        "v2.detail.events.conversation.{id}.acd.edn",
        "v2.detail.events.conversation.{id}.acd.end",
        "v2.user.{id}.presence",
        "v2.users.{id}.routingStatus",
        "v2.quality.evaluations",
        "v2.outbound.campaigns.{id}",
        "v2.flows.instances.flow.{id}",
        "V2.Users.Presence",
        "",
    ],
)
def test_an_event_with_a_mistyped_topic_or_without_its_fields_runs(preset: str, topic: str) -> None:
    """No event is refused, because each has a transport id."""
    event = genesys(topic or "v2.users.{id}.presence", {"note": 1})
    if not topic:
        del event["detail"]["topicName"]
    untold = {**event, "detail": {"note": ""}}
    for one in (event, untold):
        assert statuses(preset, [one, one]) == ["done", "duplicate"]
    assert statuses(preset, [untold, {**untold, "id": "another"}]) == ["done", "done"]


# --- genesys:latest ---


def routing(status: str, second: int, millisecond: int = 0) -> dict[str, Any]:
    started = {"status": status, "startTime": at(second, millisecond)}
    return genesys("v2.users.{id}.routingStatus", {"id": USER, "routingStatus": started}, USER)


def activity(second: int, **more: Any) -> dict[str, Any]:
    return genesys("v2.users.{id}.activity", {**ACTIVITY, **more}, USER, timestamp=at(second))


def campaign(version: int, **more: Any) -> dict[str, Any]:
    return genesys("v2.outbound.campaigns.{id}", {**CAMPAIGN, "version": version, **more}, "c")


def attributes(step: int, **values: str) -> dict[str, Any]:
    body = {**ATTRIBUTES, "attributes": values, "eventTime": MS + step}
    return genesys("v2.detail.events.conversation.{id}.attributes", body)


def workitem(second: int, operation: str = "EDIT") -> dict[str, Any]:
    body = {**WORKITEM, "operation": operation, "dateModified": at(second)}
    return genesys("v2.taskmanagement.workitems.{id}", body, "workitem-1")


LATEST: dict[str, Story] = {
    "presence": [
        (presence("available", 0), "done"),
        (again(presence("available", 0)), "duplicate"),
        (presence("meal", 9), "done"),
        (presence("busy", 5), "stale"),
        (presence("meal", 9, 300), "unchanged"),
        (presence("meal", 9, 300), "duplicate"),
        (presence("meal", 9, 400, message="soup"), "done"),
        (presence("available", 12), "done"),
        (presence("available", 2, source="MICROSOFTTEAMS"), "done"),
    ],
    "routing status": [
        (routing("IDLE", 0), "done"),
        (routing("INTERACTING", 4), "done"),
        (routing("NOT_RESPONDING", 2), "stale"),
        (routing("INTERACTING", 4, 200), "unchanged"),
        (routing("IDLE", 9), "done"),
        (routing("IDLE", 12), "done"),
    ],
    "activity, by the latest of its four times": [
        (activity(1), "done"),
        (activity(9), "duplicate"),
        (activity(10, activeQueueIds=[]), "done"),  # no time changed: the same order, other content
        (activity(11, outOfOffice={"modifiedDate": at(50)}), "done"),
        (activity(12), "stale"),
    ],
    "conversations: each of a user's is its own subject": [
        (snapshot("alerting", 1), "done"),
        (snapshot("connected", 5), "done"),
        (snapshot("alerting", 3), "stale"),
        (snapshot("alerting", 3, conversation="another"), "done"),
        (snapshot("connected", 8), "unchanged"),
        (snapshot("held", 9), "done"),
        (snapshot("connected", 11), "done"),
    ],
    "queue members": [
        (member(True, 1), "done"),
        (member(False, 5), "done"),
        (member(True, 3), "stale"),
        (member(True, 2, user={"id": "another"}), "done"),
        (member(False, 8), "unchanged"),
        (member(True, 9), "done"),
    ],
    "statistics": [
        (statistics(1, 1), "done"),
        (statistics(2, 5), "done"),
        (statistics(1, 3), "stale"),
        (statistics(2, 7), "unchanged"),
        (statistics(1, 9), "done"),
    ],
    "configuration, by its version": [
        (campaign(3), "done"),
        (again(campaign(3)), "duplicate"),
        (campaign(5), "done"),
        (campaign(4), "stale"),
        (campaign(5, name="two writers"), "done"),
    ],
    "work items": [
        (workitem(1, "CREATE"), "done"),
        (workitem(9), "done"),
        (workitem(5), "stale"),
        (again(workitem(9)), "duplicate"),
    ],
    "attributes": [
        (attributes(0, tier="gold"), "done"),
        (attributes(900, tier="silver"), "done"),
        (attributes(500, tier="bronze"), "stale"),
        (attributes(1200, tier="silver"), "unchanged"),
        (attributes(1500, tier="gold"), "done"),
    ],
    "other topics are facts as before": [
        (acd("acd.end", "s1", "sales", MS + 9000), "done"),
        (acd("acd.end", "s1", "sales", MS), "done"),
        (acd("acd.end", "s1", "sales", MS), "duplicate"),
    ],
}


@pytest.mark.parametrize("story", LATEST.values(), ids=LATEST)
def test_under_latest_the_newest_version_wins(story: Story) -> None:
    events, expected = [event for event, _ in story], [status for _, status in story]
    assert statuses("genesys:latest", events) == expected
