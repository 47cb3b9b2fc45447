"""The trace context of an event: its place in each transport, and its names there.

Here the context is only text; `otel` reads it if tracing is on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from eventonce.envelope.jsontext import members, string
from eventonce.types import NO_HEADERS

W3C: Final = ("traceparent", "tracestate")
"""The names as headers of a request, and as attributes of a message or a CloudEvent."""

XRAY_HEADER: Final = "x-amzn-trace-id"
"""The header of AWS X-Ray; of a queue's message it is the system attribute `AWSTraceHeader`."""

XRAY_ATTRIBUTE: Final = "AWSTraceHeader"

_VALUES: Final = ("stringValue", "StringValue", "Value")
"""The field with the text of an attribute, in Lambda, SQS and SNS."""


def of_headers(headers: Mapping[str, str]) -> Mapping[str, str]:
    """Return the context of a request; header names are in lower case."""
    if W3C[0] in headers or XRAY_HEADER in headers:
        return {name: headers[name] for name in (*W3C, XRAY_HEADER) if name in headers}
    return NO_HEADERS


def of_message(fields: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the context of a message of SQS or SNS, as the service or Lambda gives it."""
    known = fields.get("attributes") or fields.get("Attributes")
    sent = fields.get("messageAttributes") or fields.get("MessageAttributes")
    if not sent and type(known) is dict and XRAY_ATTRIBUTE not in known:
        # A shortcut for nearly all messages.
        return NO_HEADERS
    found: dict[str, str] = {}
    attributes = members(sent)
    for name in W3C:
        if name in attributes:
            attribute = members(attributes[name])
            found[name] = "".join(string(attribute.get(value)) for value in _VALUES)
    system = members(known)
    if XRAY_ATTRIBUTE in system:
        found[XRAY_HEADER] = string(system[XRAY_ATTRIBUTE])
    return found or NO_HEADERS
