"""Genesys Cloud, every topic as a fact."""

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
    TRANSCRIPTION,
    VOICEMAIL,
    WORKITEM,
)
from tests.rows.row import (
    CALL,
    ISO,
    MS,
    ORG,
    QUEUE,
    USER,
    Row,
    bridge,
    detail_event,
    genesys,
    without,
)

NOTICE_UNTIMED = {"detail.timestamp": "genesys.notice-untimed"}

GENESYS = [
    Row("genesys.session", detail_event("acd.end", queueId=QUEUE, disconnectType="TRANSFER")),
    Row("genesys.flow", detail_event("flow.end", flowId="flow-1", flowVersion="7.0")),
    Row(
        "genesys.flow-outcome",
        detail_event("flow.outcome", flowOutcomeId="outcome-1", flowOutcomeStartTime=MS - 9000),
    ),
    Row("genesys.wrapup", detail_event("acw", wrapupCode="sold", wrapupDurationMs=8100)),
    Row("genesys.contact", detail_event("contact", externalContactId="contact-1")),
    Row("genesys.attributes", genesys("v2.detail.events.conversation.{id}.attributes", ATTRIBUTES)),
    Row(
        "genesys.detail",
        detail_event("coffee.break"),
        hands_on={"body.eventTime": "genesys.notice", "hash(detail.eventBody)": "genesys.notice"},
    ),
    Row(
        "genesys.snapshot",
        genesys("v2.users.{id}.conversations.calls", SNAPSHOT, USER),
        hands_on=NOTICE_UNTIMED,
    ),
    Row(
        "genesys.queue-member",
        genesys("v2.routing.queues.{id}.users", MEMBER, QUEUE),
        hands_on=NOTICE_UNTIMED,
    ),
    Row(
        "genesys.statistics",
        genesys("v2.analytics.queues.{id}.observations", STATISTICS, QUEUE),
        hands_on=NOTICE_UNTIMED,
    ),
    Row(
        "genesys.level-untimed",
        genesys("v2.outbound.campaigns.{id}.progress", {"percentage": 40}, timestamp=None),
        transport=True,
    ),
    Row("genesys.transcription", genesys("v2.conversations.{id}.transcription", TRANSCRIPTION)),
    Row(
        "genesys.audit",
        genesys(
            "v2.audits.entitytype.{id}.entityid.{id}",
            {"id": "audit-1", "action": "Delete", "eventTime": "2026-03-03T09:30:45.000Z"},
            "OAuthClient",
            "client-1",
        ),
    ),
    Row(
        "genesys.presence",
        genesys("v2.users.{id}.presence", PRESENCE, USER),
        hands_on={"body.modifiedDate": "genesys.presence-timed"},
    ),
    Row(
        "genesys.presence-timed",
        genesys("v2.users.{id}.presence", without(PRESENCE, "modifiedDate"), USER),
        hands_on={"detail.timestamp": "genesys.notice-untimed"},
    ),
    Row(
        "genesys.routing-status",
        genesys(
            "v2.users.{id}.routingStatus",
            {"id": USER, "routingStatus": {"status": "INTERACTING", "startTime": ISO}},
            USER,
        ),
    ),
    Row(
        "genesys.activity",
        genesys("v2.users.{id}.activity", ACTIVITY, USER),
        hands_on={"body.routingStatus.startTime": "genesys.activity-presence"},
    ),
    Row(
        "genesys.activity-presence",
        genesys("v2.users.{id}.activity", without(ACTIVITY, "routingStatus"), USER),
        hands_on={"body.presence.modifiedDate": "genesys.activity-timed"},
    ),
    Row(
        "genesys.activity-timed",
        genesys("v2.users.{id}.activity", without(ACTIVITY, "routingStatus", "presence"), USER),
    ),
    Row(
        "genesys.metric",
        genesys(
            "v2.analytics.conversation.{id}.metrics",
            {
                "recordId": "record-1",
                "metric": "tTalk",
                "metricDate": ISO,
                "sessionId": "session-1",
                "value": 39674,
            },
        ),
    ),
    Row(
        "genesys.operation",
        genesys(
            "v2.operations.events.{id}",
            {
                "eventEntity": {"id": "operation-1"},
                "entityId": "trunk-1",
                "timestamp": MS,
                "conversationId": CALL,
                "previousValue": "UP",
                "currentValue": "DOWN",
            },
            "operation-1",
        ),
    ),
    Row(
        "genesys.post-contact",
        genesys(
            "v2.outbound.email.campaigns.contact.postContact",
            {"conversationId": CALL, "outboundContactId": "contact-1", "eventTime": MS},
        ),
    ),
    Row(
        "genesys.pre-contact",
        genesys(
            "v2.outbound.messaging.campaigns.contact.preContact",
            {"outboundCampaignId": "c-1", "outboundContactId": "contact-1", "eventTime": MS},
        ),
    ),
    Row("genesys.outbound-config", genesys("v2.outbound.campaigns.{id}", CAMPAIGN, "campaign-1")),
    Row(
        "genesys.evaluation",
        genesys("v2.quality.evaluations", EVALUATION),
        hands_on={"body.version": "genesys.evaluation-timed"},
    ),
    Row(
        "genesys.evaluation-timed",
        genesys("v2.quality.evaluations", without(EVALUATION, "version")),
    ),
    Row("genesys.workitem", genesys("v2.taskmanagement.workitems.{id}", WORKITEM, "workitem-1")),
    Row("genesys.voicemail", genesys("v2.users.{id}.voicemail.messages", VOICEMAIL, USER)),
    Row(
        "genesys.journey",
        genesys(
            "v2.journey.sessions.{id}.web.events",
            {"id": "journey-1", "eventType": "WebEvent", "createdDate": ISO},
            "visit-1",
        ),
    ),
    Row(
        "genesys.external-contact",
        genesys("v2.externalcontacts.contacts.{id}", CONTACT, "contact-1"),
    ),
    Row(
        "genesys.flow-execution",
        genesys(
            "v2.flows.instances.flow.{id}",
            {"executionId": "execution-1", "endDateTime": ISO, "executionItemsTruncated": False},
            "flow-1",
        ),
    ),
    Row(
        "genesys.notice",
        genesys("v2.users.{id}.station", {"associatedStation": {"name": "desk 4"}}, USER),
        hands_on=NOTICE_UNTIMED,
    ),
    Row(
        "genesys.notice-untimed",
        genesys("v2.users.{id}.geolocation", {"city": "Graz"}, USER, timestamp=None),
        transport=True,
    ),
    Row(
        "genesys.forwarded",
        bridge(
            "acme.relay",
            "Genesys",
            {
                "topicName": f"v2.users.{USER}.station",
                "eventBody": {"associatedStation": {"name": "desk 4"}},
                "timestamp": ISO,
                "metadata": {"CorrelationId": "relay-1"},
            },
        ),
        hands_on={
            "topic": "transport-id",
            "hash(detail.eventBody)?": "transport-id",
            "detail.timestamp": "genesys.forwarded-untimed",
        },
    ),
    Row(
        "genesys.forwarded-untimed",
        bridge(
            "acme.relay",
            "Genesys",
            {
                "topicName": f"v2.users.{USER}.station",
                "eventBody": {"name": "desk 4"},
                "metadata": {"CorrelationId": "relay-1"},
            },
        ),
        hands_on={"topic": "transport-id", "hash(detail.eventBody)?": "transport-id"},
        transport=True,
    ),
    Row(
        "genesys.unnamed",
        bridge(
            f"aws.partner/genesys.com/cloud/{ORG}/desk-events",
            "something.else",
            {"topicName": "something.else", "note": "no body", "timestamp": ISO},
        ),
    ),
]
