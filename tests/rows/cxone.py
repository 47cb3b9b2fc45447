"""NICE CXone."""

from __future__ import annotations

from tests.rows.row import ISO, Row, bridge, without

CASE = {
    "brand": {"id": 1092},
    "case": {"id": "29311884", "status": "open", "statusUpdatedAt": ISO},
    "message": {"id": "message-1"},
}
ACD = {
    "Type": "CallContactEvent",
    "contactId": "446744073709551616",
    "masterId": "446744073709551001",
    "status": "Disconnected",
    "finalState": False,
    "lastStateChangeTimeUtc": ISO,
    "lastStateChangeTime": "2026-03-03T02:30:45.126Z",
}

CXONE = [
    Row(
        "cxone.digital",
        {
            "eventId": "5c1f7a7e-1a51-4b32-8d0e-0d3a4e5f6a01",
            "eventObject": "Case",
            "eventType": "CaseStatusChanged",
            "createdAt": ISO,
            "traceId": "trace-1",
            "data": CASE,
        },
        hands_on={"detail.eventId": "cxone.digital-without-id", "detail.eventType": "transport-id"},
    ),
    Row(
        "cxone.digital-without-id",
        bridge(
            "acme.cxone", "digital", {"eventType": "MessageCreated", "createdAt": ISO, "data": CASE}
        ),
        hands_on={"detail.eventType": "transport-id"},
    ),
    Row(
        "cxone.postback",
        {
            "eventId": "request-1",
            "postback": {"eventType": "ThreadRecovered", "data": {"thread": {"id": "t-1"}}},
        },
        hands_on={"detail.postback.eventType": "transport-id"},
    ),
    Row(
        "cxone.in-s3",
        {
            "eventId": "5c1f7a7e-1a51-4b32-8d0e-0d3a4e5f6a02",
            "eventType": "EventInS3",
            "createdAt": ISO,
            "data": {
                "s3Object": {"url": "https://bucket.example/one?signature=a"},
                "originEvent": {"eventType": "MessageCreated"},
            },
        },
        hands_on={"detail.eventType": "transport-id"},
    ),
    Row(
        "cxone.contact",
        bridge("acme.cxone", "acd", ACD),
        hands_on={"detail.Type": "transport-id", "detail.contactId": "cxone.acd-untimed"},
    ),
    Row(
        "cxone.contact-camel",
        bridge("acme.cxone", "acd", {**without(ACD, "Type"), "type": "CallContactEvent"}),
        hands_on={
            "detail.type": "transport-id",
            "detail.contactId": "transport-id",
            "detail.lastStateChangeTimeUtc": "transport-id",
        },
    ),
    Row(
        "cxone.contact-pascal",
        bridge(
            "acme.cxone",
            "acd",
            {
                "Type": "CallContactEvent",
                "ContactID": "446744073709551616",
                "Status": "Active",
                "FinalState": "False",
                "LastStateChangeTimeUTC": ISO,
            },
        ),
        hands_on={"detail.Type": "transport-id", "detail.ContactID": "cxone.acd-untimed"},
    ),
    Row(
        "cxone.acd",
        {"Type": "AgentState", "CurrentState": "Available", "StartTimeUTC": ISO},
        hands_on={"detail.Type": "transport-id", "detail.StartTimeUTC": "cxone.acd-untimed"},
        auto="auto.unidentified",
    ),
    Row(
        "cxone.acd-untimed",
        bridge("nice", "acd", {"Type": "AgentState", "CurrentState": "Available"}),
        transport=True,
        auto="eventbridge",
    ),
]
