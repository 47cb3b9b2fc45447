"""The trace context that came with an event: where its transport has it, and under which names.

Only carried here, as text; `otel` reads it, where somebody traces.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from eventonce.envelope.jsontext import members, string
from eventonce.types import NO_HEADERS

W3C: Final = ("traceparent", "tracestate")
"""Headers of a request, and attributes of a message or a CloudEvent."""

XRAY: Final = "x-amzn-trace-id"
"""The header of AWS X-Ray; of a queue's message it is the system attribute `AWSTraceHeader`."""

XRAY_ATTRIBUTE: Final = "AWSTraceHeader"

_VALUES: Final = ("stringValue", "StringValue", "Value")
"""The text of an attribute, as Lambda, SQS and SNS name it."""


def of_headers(headers: Mapping[str, str]) -> Mapping[str, str]:
    """The context of a request; header names are in lower case."""
    if W3C[0] in headers or XRAY in headers:
        return {name: headers[name] for name in (*W3C, XRAY) if name in headers}
    return NO_HEADERS


def of_message(fields: Mapping[str, Any]) -> Mapping[str, str]:
    """The context of a message of SQS or SNS, as the service or Lambda gives it."""
    known = fields.get("attributes") or fields.get("Attributes")
    sent = fields.get("messageAttributes") or fields.get("MessageAttributes")
    if not sent and type(known) is dict and XRAY_ATTRIBUTE not in known:
        # Nearly all messages.
        return NO_HEADERS
    found: dict[str, str] = {}
    attributes = members(sent)
    for name in W3C:
        if name in attributes:
            attribute = members(attributes[name])
            found[name] = "".join(string(attribute.get(value)) for value in _VALUES)
    system = members(known)
    if XRAY_ATTRIBUTE in system:
        found[XRAY] = string(system[XRAY_ATTRIBUTE])
    return found or NO_HEADERS
