"""Genesys Cloud, the topics that describe a state."""

from __future__ import annotations

from tests.rows.bodies import (
    ACTIVITY,
    ATTRIBUTES,
    CAMPAIGN,
    CONTACT,
    EVALUATION,
    MEMBER,
    PRESENCE,
    SNAPSHOT,
    STATISTICS,
    VOICEMAIL,
    WORKITEM,
)
from tests.rows.genesys import NOTICE_UNTIMED
from tests.rows.row import ISO, QUEUE, USER, Row, genesys, without

TIMED = "genesys:latest.activity-timed"

LATEST = [
    Row(
        "genesys:latest.presence",
        genesys("v2.users.{id}.presence", PRESENCE, USER),
        hands_on={"body.modifiedDate": "genesys.presence-timed"},
    ),
    Row(
        "genesys:latest.routing-status",
        genesys(
            "v2.users.{id}.routingStatus",
            {"id": USER, "routingStatus": {"status": "INTERACTING", "startTime": ISO}},
            USER,
        ),
    ),
    Row(
        "genesys:latest.activity",
        genesys("v2.users.{id}.activity", ACTIVITY, USER),
        hands_on={
            "time(max(body.routingStatus.startTime, body.presence.modifiedDate, "
            "body.outOfOffice.modifiedDate, body.dateActiveQueuesChanged))": TIMED
        },
    ),
    Row(
        "genesys:latest.activity-presence",
        genesys("v2.users.{id}.activity", without(ACTIVITY, "routingStatus"), USER),
        hands_on={
            "time(max(body.presence.modifiedDate, body.outOfOffice.modifiedDate, "
            "body.dateActiveQueuesChanged))": "genesys:latest.activity-timed"
        },
    ),
    Row(
        "genesys:latest.activity-timed",
        genesys("v2.users.{id}.activity", without(ACTIVITY, "routingStatus", "presence"), USER),
    ),
    Row(
        "genesys:latest.conversation",
        genesys("v2.users.{id}.conversations.calls", SNAPSHOT, USER),
        hands_on=NOTICE_UNTIMED,
    ),
    Row(
        "genesys:latest.queue-member",
        genesys("v2.routing.queues.{id}.users", MEMBER, QUEUE),
        hands_on=NOTICE_UNTIMED,
    ),
    Row(
        "genesys:latest.statistics",
        genesys("v2.analytics.queues.{id}.observations", STATISTICS, QUEUE),
        hands_on=NOTICE_UNTIMED,
    ),
    Row(
        "genesys:latest.outbound-config",
        genesys("v2.outbound.campaigns.{id}", CAMPAIGN, "campaign-1"),
    ),
    Row(
        "genesys:latest.evaluation",
        genesys("v2.quality.evaluations", EVALUATION),
        hands_on={"body.version": "genesys.evaluation-timed"},
    ),
    Row(
        "genesys:latest.workitem",
        genesys("v2.taskmanagement.workitems.{id}", WORKITEM, "workitem-1"),
    ),
    Row("genesys:latest.voicemail", genesys("v2.users.{id}.voicemail.messages", VOICEMAIL, USER)),
    Row(
        "genesys:latest.external-contact",
        genesys("v2.externalcontacts.contacts.{id}", CONTACT, "contact-1"),
    ),
    Row(
        "genesys:latest.attributes",
        genesys("v2.detail.events.conversation.{id}.attributes", ATTRIBUTES),
    ),
]
