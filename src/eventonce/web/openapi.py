"""The OpenAPI description, made from what the receiver answers with: its structs and its tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

import eventonce
from eventonce.config import Serve
from eventonce.core.status import MEANINGS
from eventonce.envelope.headers import SNS_TYPE
from eventonce.http_report import Report
from eventonce.web.authentication import Gate
from eventonce.web.health import Health
from eventonce.web.refusals import KINDS, Refusal
from eventonce.web.signatures import SCHEMES

EVENTS: Final = "/events"
HEALTH: Final = "/health"
READY: Final = "/ready"
DESCRIPTION: Final = "/openapi.json"

MEANS: Final = {
    200: "Every event is settled, or kept as a dead letter if others beside it were settled.",
    400: "No event, or its key is incomplete; kept as a dead letter.",
    422: "The same key with other content; kept as a dead letter.",
    429: "Another run holds an event, or its handler is still running: send again.",
    503: "A handler failed, the store is away, or too much is under way: send again.",
}
"""Of the statuses that report on events."""

_REPORTED: Final = frozenset(means.http for means in MEANINGS.values())
_BODY: Final = {
    "description": "One event, an array of them, or one a line. What is no event becomes a letter, "
    "and the others beside it go on.",
    "required": True,
    "content": {
        "application/json": {
            "schema": {"anyOf": [{"type": "object"}, {"type": "array"}]},
            "example": {
                "id": "6a7e8feb-b491-4cf7-a9f1-bf3703467718",
                "detail-type": "order.paid",
                "source": "com.example.shop",
                "time": "2026-05-04T09:15:27Z",
                "detail": {"order": 7},
            },
        },
        "application/x-ndjson": {"schema": {"description": "One event a line."}},
    },
}


def description(settings: Serve, gate: Gate) -> dict[str, Any]:
    """The OpenAPI 3.1 document of a receiver with these settings."""
    _, schemas = msgspec.json.schema_components(
        (Report, Refusal, Health), ref_template="#/components/schemas/{name}"
    )
    schemes = _schemes(settings, gate)
    post: dict[str, Any] = {
        "operationId": "send",
        "summary": "Send events",
        "requestBody": _BODY,
        "responses": {
            str(status): _response(status) for status in sorted(_REPORTED | KINDS.keys() - {404})
        },
    }
    if schemes:
        post["security"] = [{name: []} for name in schemes]
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "eventonce receiver",
            "summary": "Every event is settled once, however often it is sent.",
            "version": eventonce.__version__,
        },
        "paths": {
            EVENTS: {"post": post},
            HEALTH: {"get": _probe("alive", "Whether the process answers", (200,))},
            READY: {
                "get": _probe(
                    "ready", "Whether the store answers and events get through", (200, 503)
                )
            },
            DESCRIPTION: {"get": _document()},
        },
        "components": {"schemas": schemas, "securitySchemes": schemes},
    }


def _response(status: int) -> dict[str, Any]:
    found = []
    if status in _REPORTED:
        found.append(_schema(Report))
    if status in KINDS:
        found.append(_schema(Refusal))
    described: dict[str, Any] = {
        "description": MEANS[status] if status in _REPORTED else KINDS[status].means,
        "content": _json(found[0] if len(found) == 1 else {"anyOf": found}),
    }
    if status in (429, 503):
        described["headers"] = _header("Retry-After", "Seconds", {"type": "integer", "minimum": 1})
    if status == 401:
        described["headers"] = _header("WWW-Authenticate", "What is asked for", {"type": "string"})
    return described


def _schemes(settings: Serve, gate: Gate) -> dict[str, Any]:
    known: dict[str, dict[str, str]] = {
        "api key": {"type": "apiKey", "in": "header", "name": settings.api_key_header},
        "basic": {"type": "http", "scheme": "basic"},
    }
    for scheme in SCHEMES:
        known[scheme.way] = {"type": "apiKey", "in": "header", "name": scheme.headers[0]}
    known["sns"] = {
        "type": "apiKey",
        "in": "header",
        "name": SNS_TYPE,
        "description": "A message of Amazon SNS: its signature stands in the body.",
    }
    known["signature"]["description"] = "Standard Webhooks, with webhook-id and webhook-timestamp."
    return {way.replace(" ", "_"): known[way] for way in gate.ways}


def _probe(name: str, summary: str, statuses: tuple[int, ...]) -> dict[str, Any]:
    response = {"description": summary, "content": _json(_schema(Health))}
    return {
        "operationId": name,
        "summary": summary,
        "responses": {str(status): response for status in statuses},
    }


def _document() -> dict[str, Any]:
    return {
        "operationId": "describe",
        "summary": "This description",
        "responses": {
            "200": {"description": "OpenAPI 3.1", "content": _json({"type": "object"})},
        },
    }


def _schema(struct: type[msgspec.Struct]) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{struct.__name__}"}


def _json(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _header(name: str, means: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    return {name: {"description": means, "required": True, "schema": schema}}
