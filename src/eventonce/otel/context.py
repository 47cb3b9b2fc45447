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

from eventonce.envelope.tracing import XRAY

INVOCATION: Final = "_X_AMZN_TRACE_ID"
"""The variable in which Lambda tells a function the context of its invocation."""

_PART: Final = re.compile(r"\s*(Root|Parent|Sampled)\s*=\s*([0-9a-fA-F-]+)\s*")
_ROOT: Final = re.compile(r"1-([0-9a-fA-F]{8})-([0-9a-fA-F]{24})")
_SPAN: Final = re.compile(r"[0-9a-fA-F]{16}")


class Caller(NamedTuple):
    """The span of whoever sent an event."""

    span: SpanContext
    context: Context
    joined: bool = True
    """Whether a batch may become part of its trace. One of X-Ray that is not sampled is only
    linked: AWS sends it wherever X-Ray is off, and whoever traces otherwise would see nothing."""


def caller_of(carried: Mapping[str, str]) -> Caller | None:
    """The sender of an event by what came with it; None for none, or what cannot be read."""
    found = extract(carried, Context())
    span = trace.get_current_span(found).get_span_context()
    return Caller(span, found) if span.is_valid else xray(carried.get(XRAY, ""))


def ambient() -> Context | None:
    """The context that has a span: the caller's own, or the one of Lambda's invocation."""
    if trace.get_current_span().get_span_context().is_valid:
        return context.get_current()
    invoker = xray(os.environ.get(INVOCATION, ""))
    return invoker.context if invoker is not None and invoker.joined else None


def xray(header: str) -> Caller | None:
    """The sender by a header of X-Ray, None if it names no span."""
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
