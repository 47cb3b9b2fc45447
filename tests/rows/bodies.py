"""Bodies of Genesys notifications that several tests vary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tests.rows.row import CALL, ISO, MS, QUEUE, USER

PRESENCE: Final[Mapping[str, Any]] = {
    "source": "PURECLOUD",
    "presenceDefinition": {"id": "presence-available", "systemPresence": "AVAILABLE"},
    "primary": True,
    "message": "back at noon",
    "modifiedDate": ISO,
}
ACTIVITY: Final[Mapping[str, Any]] = {
    "id": USER,
    "routingStatus": {"status": "IDLE", "startTime": ISO},
    "presence": {"modifiedDate": "2026-03-03T09:29:00.000Z"},
    "outOfOffice": {"modifiedDate": "2026-03-01T08:00:00.000Z"},
    "activeQueueIds": [QUEUE],
    "dateActiveQueuesChanged": "2026-03-03T08:00:00.000Z",
}
SNAPSHOT: Final[Mapping[str, Any]] = {
    "id": CALL,
    "participants": [{"id": "p1", "purpose": "agent", "state": "connected"}],
}
STATISTICS: Final[Mapping[str, Any]] = {
    "group": {"queueId": QUEUE, "mediaType": "voice"},
    "data": [
        {
            "interval": "2026-03-03T09:30:00.000Z/2026-03-03T10:00:00.000Z",
            "metrics": [{"metric": "nOffered", "stats": {"count": 4}}],
        }
    ],
}
MEMBER: Final[Mapping[str, Any]] = {
    "id": USER,
    "queueId": QUEUE,
    "joined": True,
    "user": {"id": USER},
}
CAMPAIGN: Final[Mapping[str, Any]] = {
    "id": "campaign-1",
    "name": "Spring",
    "dateModified": ISO,
    "version": 12,
}
EVALUATION: Final[Mapping[str, Any]] = {
    "id": "evaluation-1",
    "eventType": "RELEASED",
    "eventTime": ISO,
    "status": "FINISHED",
    "version": 3,
}
WORKITEM: Final[Mapping[str, Any]] = {
    "id": "workitem-1",
    "operation": "EDIT",
    "dateModified": ISO,
    "changes": [{"field": "statusId", "newValue": "open"}],
}
VOICEMAIL: Final[Mapping[str, Any]] = {
    "id": "voicemail-1",
    "action": "read",
    "modifiedDate": ISO,
    "read": True,
}
CONTACT: Final[Mapping[str, Any]] = {"id": "contact-1", "firstName": "Ada", "modifyDate": ISO}
ATTRIBUTES: Final[Mapping[str, Any]] = {
    "conversationId": CALL,
    "participantId": "a2d5c1f0-1111-4a7e-8a44-7d7f0a1b2c04",
    "eventTime": MS,
    "attributes": {"tier": "gold", "reason for call": "invoice"},
}
TRANSCRIPTION: Final[Mapping[str, Any]] = {
    "eventTime": ISO,
    "conversationId": CALL,
    "communicationId": "comm-1",
    "transcripts": [
        {"utteranceId": "u-2", "isFinal": True, "channel": "EXTERNAL"},
        {"utteranceId": "u-1", "isFinal": True, "channel": "INTERNAL"},
    ],
    "status": {"offsetMs": 23280, "status": "SESSION_ONGOING"},
}
