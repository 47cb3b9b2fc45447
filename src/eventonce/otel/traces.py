"""The spans: one for each batch, linked to the senders of its events, and one for each handler."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from time import time_ns
from typing import Any, Final, NamedTuple

from opentelemetry import context, propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    StatusCode,
    TraceFlags,
    TracerProvider,
)

from eventonce.core.plan import Handler, Plan, Refusal, Run
from eventonce.core.status import DEAD_LETTERS
from eventonce.envelope.tracing import XRAY_HEADER
from eventonce.log import log
from eventonce.otel import conventions
from eventonce.types import Event, Job, Outcome

STATUS: Final = "eventonce.status"
RULE: Final = "eventonce.rule"
ATTEMPT: Final = "eventonce.attempt"
KEY: Final = "eventonce.key"
TYPE: Final = "eventonce.type"
EVENTS: Final = "eventonce.events."
"""The beginning of the attributes that count a batch's outcomes by status."""

INVOCATION: Final = "_X_AMZN_TRACE_ID"
"""The variable that has the trace context of a Lambda invocation."""

_XRAY_PART: Final = re.compile(r"\s*(Root|Parent|Sampled)\s*=\s*([0-9a-fA-F-]+)\s*")
_XRAY_ROOT: Final = re.compile(r"1-([0-9a-fA-F]{8})-([0-9a-fA-F]{24})")
_XRAY_PARENT: Final = re.compile(r"[0-9a-fA-F]{16}")


class Caller(NamedTuple):
    """The span of the sender of an event."""

    span: SpanContext
    context: Context
    joined: bool = True
    """Whether a batch may join the sender's trace. An X-Ray trace that is not sampled is only
    linked: AWS sends one even if X-Ray is off, and a batch that joins it would not be exported."""


class Tracing:
    """The tracer of one consumer."""

    def __init__(self, consumer: str, channel: str, provider: TracerProvider | None) -> None:
        self._consumer = consumer
        self._channel = channel
        self._tracer = trace.get_tracer(conventions.SCOPE, tracer_provider=provider)

    def begin(self, planned: Sequence[Plan | Refusal]) -> BatchSpans | None:
        """Start the spans of a batch; None if that fails."""
        try:
            return self._begun(planned)
        except Exception:  # noqa: BLE001  tracing must stop no work
            log().exception("otel: a batch is not traced")
            return None

    def _begun(self, planned: Sequence[Plan | Refusal]) -> BatchSpans:
        events = [one.event if isinstance(one, Plan) else one.outcome.event for one in planned]
        callers = {
            index: caller
            for index, event in enumerate(events)
            if event is not None and event.trace and (caller := caller_of(event.trace))
        }
        links = [_link(caller, events[index]) for index, caller in callers.items()]
        first = next((event for event in events if event is not None), None)
        said = conventions.described((first and first.channel) or self._channel, self._consumer)
        attributes: dict[str, Any] = {**said, conventions.OPERATION_TYPE: conventions.PROCESS}
        if len(events) > 1:
            attributes[conventions.BATCH_SIZE] = len(events)
        elif first is not None and first.id:
            attributes[conventions.MESSAGE] = first.id
        destination = said.get(conventions.DESTINATION, "")
        parent = ambient()
        span = self._tracer.start_span(
            f"{conventions.PROCESS} {destination}".rstrip(),
            _shared(list(callers.values()), len(events)) if parent is None else parent,
            SpanKind.CONSUMER,
            attributes,
            links,
        )
        # In a batch of several events, the span of a handler links to the sender of its event.
        linked = {id(events[index]): _link(one, None) for index, one in callers.items()}
        inside = trace.set_span_in_context(span, parent)
        return BatchSpans(self._tracer, span, inside, linked if len(events) > 1 else {})


class BatchSpans:
    """The span of a batch, and the spans of its handlers."""

    def __init__(
        self, tracer: trace.Tracer, span: Span, inside: Context, links: dict[int, Link]
    ) -> None:
        self._tracer = tracer
        self._span = span
        self._context = inside
        self._links = links
        self._handlers: dict[Run, Span] = {}
        self._ends: dict[Run, int] = {}
        """The end of each handler, in nanoseconds: its span ends once the outcome is known."""

    @contextmanager
    def inside(self, run: Run) -> Iterator[None]:
        """Make the span of a handler the current one."""
        token = None
        try:
            token = self._entered(run)
        except Exception:  # noqa: BLE001  tracing must stop no work
            log().exception("otel: a handler is not traced")
        try:
            yield
        finally:
            self._ends[run] = time_ns()
            if token is not None:
                context.detach(token)

    def _entered(self, run: Run) -> Any:
        event, link = run.plan.event, self._links.get(id(run.plan.event))
        span = self._tracer.start_span(
            f"handle {run.plan.rule.name}",
            self._context,
            attributes={RULE: run.plan.rule.name, TYPE: event.type, ATTEMPT: run.attempt},
            links=[link] if link is not None else None,
        )
        self._handlers[run] = span
        current = trace.set_span_in_context(span, self._context)
        if run.job is not None:
            headers: dict[str, str] = {}
            propagate.inject(headers, current)
            # Baggage is set by senders, and may not be meant for the services a handler calls.
            headers.pop("baggage", None)
            run.job.traced = headers
        return context.attach(current)

    def around(self, run: Run) -> Handler | None:
        """Return the handler of this run, wrapped in its span."""
        handler = run.plan.handler
        if handler is None:
            return None
        if run.plan.asynchronous:

            @wraps(handler)
            async def awaited(job: Job) -> Any:
                with self.inside(run):
                    return await handler(job)

            return awaited

        @wraps(handler)
        def called(job: Job) -> Any:
            with self.inside(run):
                return handler(job)

        return called

    def end(self, outcomes: Sequence[Outcome] | None) -> None:
        """End all spans, with the outcomes of the events."""
        try:
            now = time_ns()
            for run, span in list(self._handlers.items()):
                if outcomes is not None:
                    _tell(span, run.outcome)
                span.end(self._ends.get(run, now))
            if outcomes is not None:
                counts = Counter(one.status for one in outcomes)
                self._span.set_attributes({EVENTS + name: many for name, many in counts.items()})
                if len(outcomes) == 1:
                    _tell(self._span, outcomes[0])
                elif any(map(_is_error, outcomes)):
                    self._span.set_status(StatusCode.ERROR)
            self._span.end(now)
        except Exception:  # noqa: BLE001  tracing must stop no work
            log().exception("otel: a batch is not traced")


def _shared(callers: Sequence[Caller], events: int) -> Context:
    """Return the context of the caller if all events have the same one; otherwise a new trace."""
    spans = {(caller.span.trace_id, caller.span.span_id) for caller in callers}
    if len(spans) == 1 and len(callers) == events and callers[0].joined:
        return callers[0].context
    return Context()


def _link(caller: Caller, event: Event | None) -> Link:
    named = event is not None and event.id
    return Link(caller.span, {conventions.MESSAGE: named} if named else None)


def _tell(span: Span, outcome: Outcome) -> None:
    """Write an outcome to its span, without reasons and error messages: they may hold content."""
    said = {STATUS: outcome.status, RULE: outcome.rule, KEY: outcome.key.hex()}
    if outcome.error is not None:
        said[conventions.ERROR] = type(outcome.error).__name__
    span.set_attributes({name: value for name, value in said.items() if value})
    if _is_error(outcome):
        span.set_status(StatusCode.ERROR)


def _is_error(outcome: Outcome) -> bool:
    return outcome.error is not None or outcome.status in DEAD_LETTERS


def caller_of(carried: Mapping[str, str]) -> Caller | None:
    """Return the sender of an event by its trace headers; None if they name no span."""
    found = propagate.extract(carried, Context())
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
    said = {part[1]: part[2] for part in map(_XRAY_PART.fullmatch, header.split(";")) if part}
    root, parent = _XRAY_ROOT.fullmatch(said.get("Root", "")), said.get("Parent", "")
    if not root or not _XRAY_PARENT.fullmatch(parent):
        return None
    sampled = said.get("Sampled") == "1"
    flags = TraceFlags(TraceFlags.SAMPLED if sampled else TraceFlags.DEFAULT)
    ids = int(root[1] + root[2], 16), int(parent, 16)
    span = SpanContext(*ids, is_remote=True, trace_flags=flags)
    if not span.is_valid:
        return None
    return Caller(span, trace.set_span_in_context(NonRecordingSpan(span), Context()), sampled)
