"""The trace context of an event, of its caller and of a Lambda invocation."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from opentelemetry import context, trace
from opentelemetry.context import Context
from opentelemetry.propagate import extract
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from eventonce.envelope.tracing import XRAY_HEADER

INVOCATION: Final = "_X_AMZN_TRACE_ID"
"""The variable that has the trace context of a Lambda invocation."""

_PART: Final = re.compile(r"\s*(Root|Parent|Sampled)\s*=\s*([0-9a-fA-F-]+)\s*")
_ROOT: Final = re.compile(r"1-([0-9a-fA-F]{8})-([0-9a-fA-F]{24})")
_SPAN: Final = re.compile(r"[0-9a-fA-F]{16}")


class Caller(NamedTuple):
    """The span of the sender of an event."""

    span: SpanContext
    context: Context
    joined: bool = True
    """Whether a batch may join the sender's trace. An X-Ray trace that is not sampled is only
    linked: AWS sends one even if X-Ray is off, and a batch that joins it would not be exported."""


def caller_of(carried: Mapping[str, str]) -> Caller | None:
    """Return the sender of an event by its trace headers; None if they name no span."""
    found = extract(carried, Context())
    span = trace.get_current_span(found).get_span_context()
    return Caller(span, found) if span.is_valid else xray(carried.get(XRAY_HEADER, ""))


def ambient() -> Context | None:
    """Return the current context or that of the Lambda invocation; None if neither has a span."""
    if trace.get_current_span().get_span_context().is_valid:
        return context.get_current()
    invoker = xray(os.environ.get(INVOCATION, ""))
    return invoker.context if invoker is not None and invoker.joined else None


def xray(header: str) -> Caller | None:
    """Return the sender by a header of X-Ray; None if the header names no span."""
    said = {part[1]: part[2] for part in map(_PART.fullmatch, header.split(";")) if part}
    root, parent = _ROOT.fullmatch(said.get("Root", "")), said.get("Parent", "")
    if not root or not _SPAN.fullmatch(parent):
        return None
    sampled = said.get("Sampled") == "1"
    flags = TraceFlags(TraceFlags.SAMPLED if sampled else TraceFlags.DEFAULT)
    ids = int(root[1] + root[2], 16), int(parent, 16)
    span = SpanContext(*ids, is_remote=True, trace_flags=flags)
    if not span.is_valid:
        return None
    return Caller(span, trace.set_span_in_context(NonRecordingSpan(span), Context()), sampled)
