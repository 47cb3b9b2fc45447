"""The other sources and standards."""

from __future__ import annotations

from typing import Any

from tests.rows.row import ISO, MS, Row, bridge, without

SHOP: dict[str, Any] = {
    "payload": {"id": 5_223_452_934_372, "updated_at": "2026-03-03T10:30:45+01:00"},
    "metadata": {
        "X-Shopify-Topic": "orders/paid",
        "X-Shopify-Shop-Domain": "tea.example",
        "X-Shopify-Event-Id": "event-1",
        "X-Shopify-Webhook-Id": "delivery-1",
    },
}
CHANGE = {
    "transactionKey": "0005e192-9e62-2554-3880-3c3718bd6308",
    "sequenceNumber": 1,
    "recordIds": ["001RM000004UF9sYAG"],
    "commitTimestamp": MS,
}
STRIPE = {
    "id": "evt_1",
    "object": "event",
    "created": 1_772_530_245,
    "data": {"object": {"id": "cus_1", "object": "customer"}},
    "pending_webhooks": 1,
    "type": "customer.created",
}
CONNECTED = {
    "eventType": "CONNECTED_TO_AGENT",
    "contactId": "contact-1",
    "initialContactId": "contact-0",
    "channel": "VOICE",
    "initiationTimestamp": "2026-03-03T09:28:00.000Z",
    "queueInfo": {"enqueueTimestamp": "2026-03-03T09:29:00.000Z"},
    "agentInfo": {"connectedToAgentTimestamp": ISO},
}
SALESFORCE = "aws.partner/salesforce.com/00D000000000001/0YL000000000001"

OTHERS = [
    Row(
        "eventbridge.own-id",
        {"eventId": "m-1", "eventType": "turned", "light": "green", "createdAt": ISO},
        hands_on={"id": "transport-id"},
    ),
    Row(
        "eventbridge.cloudevent",
        {"specversion": "1.0", "id": "B-1", "source": "/calls", "type": "ended", "data": {"n": 1}},
        hands_on={"id": "transport-id"},
        auto="cloudevents",
    ),
    Row(
        "eventbridge",
        bridge("aws.ec2", "EC2 Instance State-change Notification", {"state": "stopped"}),
        hands_on={"id": "transport-id"},
        transport=True,
    ),
    Row(
        "cloudevents",
        {
            "specversion": "1.0",
            "id": "A-1",
            "source": "/contact-centre/calls",
            "type": "com.example.call.ended",
            "data": {"call": 1},
        },
    ),
    Row(
        "cloudevents.binary",
        {"call": 1, "outcome": "sold"},
        headers={
            "CE-SpecVersion": "1.0",
            "CE-Source": "/calls",
            "CE-Id": "A-1",
            "CE-Type": "ended",
        },
    ),
    Row(
        "cloudevents.relayed",
        bridge(
            "acme", "ended", {"specversion": "1.0", "id": "A-1", "source": "/calls", "data": {}}
        ),
        hands_on={"detail.source": "transport-id", "detail.id": "transport-id"},
    ),
    Row("stripe", bridge("aws.partner/stripe.com/ed_1", "customer.created", STRIPE)),
    Row("stripe.webhook", STRIPE),
    Row(
        "shopify",
        bridge("aws.partner/shopify.com/11/tea", "shopifyWebhook", SHOP),
        hands_on={'detail.metadata."X-Shopify-Event-Id"': "shopify.without-id"},
    ),
    Row(
        "shopify.without-id",
        bridge(
            "aws.partner/shopify.com/11/tea",
            "shopifyWebhook",
            {**SHOP, "metadata": without(SHOP["metadata"], "X-Shopify-Event-Id")},
        ),
    ),
    Row(
        "shopify.webhook",
        SHOP["payload"],
        headers={"X-Shopify-Event-Id": "event-1", "X-Shopify-Topic": "orders/paid"},
        hands_on={"headers.x-shopify-event-id": "transport-id"},
    ),
    Row(
        "auth0",
        bridge(
            "aws.partner/auth0.com/tenant-1/auth0.logs",
            "Auth0 log",
            {"log_id": "80020260303", "data": {"log_id": "80020260303", "date": ISO, "type": "s"}},
        ),
        hands_on={"detail.log_id": "auth0.data"},
    ),
    Row(
        "auth0.data",
        bridge(
            "aws.partner/auth0.com/tenant-1/auth0.logs",
            "Auth0 log",
            {"data": {"log_id": "80020260303", "date": ISO, "type": "s"}},
        ),
    ),
    Row(
        "salesforce.change",
        bridge(SALESFORCE, "AccountChangeEvent", {"payload": {"ChangeEventHeader": CHANGE}}),
    ),
    Row(
        "salesforce.platform",
        bridge(SALESFORCE, "Call_Ended__e", {"payload": {"EventUuid": "uuid-1", "Call__c": "7"}}),
        hands_on={"detail.payload.EventUuid": "transport-id"},
    ),
    Row(
        "salesforce.platform-flat",
        bridge(SALESFORCE, "Call_Ended__e", {"EventUuid": "uuid-1", "Call__c": "7"}),
        hands_on={"detail.EventUuid": "transport-id"},
    ),
    Row(
        "zendesk",
        bridge(
            "aws.partner/zendesk.com/1/default",
            "Support Ticket: Comment Created",
            {"ticket_event": {"meta": {"sequence": {"id": "SEQ1", "position": 1, "total": 2}}}},
        ),
    ),
    Row(
        "zendesk.webhook",
        {"id": "01HZ", "type": "zen:event-type:ticket.created", "detail": "ticket 7"},
        headers={"X-Zendesk-Webhook-Id": "webhook-1"},
    ),
    Row("connect.contact", bridge("aws.connect", "Amazon Connect Contact Event", CONNECTED)),
    Row(
        "connect.contact-updated",
        bridge(
            "aws.connect",
            "Amazon Connect Contact Event",
            {
                **CONNECTED,
                "eventType": "CONTACT_DATA_UPDATED",
                "updatedProperties": ["UserDefinedAttributes"],
            },
        ),
        transport=True,
    ),
    Row(
        "standard-webhooks",
        {"type": "invoice.paid", "timestamp": ISO, "data": {"id": "invoice-1"}},
        headers={"webhook-id": "msg_1", "webhook-timestamp": "1772530245"},
        hands_on={"headers.webhook-id": "transport-id"},
    ),
]
