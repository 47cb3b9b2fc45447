"""OpenTelemetry: spans that join the trace of the sender of an event, and all metrics."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricsData
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from eventonce import Consumer, Event, Job, Reject, envelope
from eventonce.aws import lambda_handler
from eventonce.core.ports import Delivery
from eventonce.envelope import read_body
from eventonce.errors import ConfigError
from eventonce.metrics import names
from eventonce.otel import instrument
from eventonce.otel.metrics import name_of
from eventonce.otel.traces import xray
from eventonce.stores.memory import MemoryStore
from eventonce.worker.worker import Worker, WorkerSettings
from tests.helpers import call, ruled, statuses, until

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN = "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"
OTHER = f"00-{'7' * 32}-{'8' * 16}-01"
XRAY = f"Root=1-{TRACE[:8]}-{TRACE[8:]};Parent={SPAN};Sampled="


class Traced(NamedTuple):
    """A consumer, and the spans and metrics that it exports."""

    consumer: Consumer
    exporter: InMemorySpanExporter
    reader: InMemoryMetricReader
    provider: TracerProvider

    def batches(self) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.kind is CONSUMER]

    def handlers(self) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.kind is INTERNAL]

    def only(self) -> tuple[ReadableSpan, ReadableSpan]:
        (batch,), (handler,) = self.batches(), self.handlers()
        return batch, handler


CONSUMER, INTERNAL = SpanKind.CONSUMER, SpanKind.INTERNAL


def traced(handler: Any = lambda _: None, channel: str = "sqs:calls", **fields: Any) -> Traced:
    exporter, reader = InMemorySpanExporter(), InMemoryMetricReader()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    consumer = Consumer(MemoryStore(), name="crm", rules=ruled(**fields), handler=handler)
    meters = MeterProvider([reader])
    instrument(consumer, channel=channel, tracer_provider=provider, meter_provider=meters)
    return Traced(consumer, exporter, reader, provider)


def sent(number: int, parent: str = PARENT, **more: str) -> Event:
    (event,) = read_body(call(number), {"traceparent": parent, **more})
    assert isinstance(event, Event)
    return event


def ids(span: ReadableSpan) -> tuple[str, str]:
    """The trace of a span, and its parent."""
    parent = f"{span.parent.span_id:016x}" if span.parent else ""
    return f"{span.context.trace_id:032x}", parent


def linked(span: ReadableSpan) -> list[str]:
    return [f"{link.context.span_id:016x}" for link in span.links]


def own(span: ReadableSpan) -> str:
    return f"{span.context.span_id:016x}"


def test_a_batch_of_one_joins_the_trace_of_its_sender() -> None:
    made = traced()
    made.consumer.process([sent(1)])
    batch, handler = made.only()
    assert ids(batch) == (TRACE, SPAN)
    assert linked(batch) == [SPAN]
    assert ids(handler) == (TRACE, own(batch))
    assert linked(handler) == []
    assert batch.name == "process calls"
    assert handler.name == "handle call"


def test_spans_have_the_attributes_of_the_conventions_and_of_eventonce() -> None:
    made = traced()
    (outcome,) = made.consumer.process([sent(1)])
    batch, handler = made.only()
    assert batch.attributes == {
        "messaging.system": "aws_sqs",
        "messaging.destination.name": "calls",
        "messaging.consumer.group.name": "crm",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.message.id": "id-1",
        "eventonce.events.done": 1,
        "eventonce.status": "done",
        "eventonce.rule": "call",
        "eventonce.key": outcome.key.hex(),
    }
    assert handler.attributes == {
        "eventonce.status": "done",
        "eventonce.rule": "call",
        "eventonce.type": "call",
        "eventonce.attempt": 1,
        "eventonce.key": outcome.key.hex(),
    }


def test_a_batch_of_several_senders_is_a_trace_of_its_own_with_one_link_per_message() -> None:
    made = traced()
    made.consumer.process([sent(1), sent(2, OTHER), call(3)])
    (batch,) = made.batches()
    assert ids(batch)[0] not in (TRACE, "7" * 32)
    assert batch.parent is None
    assert linked(batch) == [SPAN, "8" * 16]
    assert [link.attributes for link in batch.links] == [
        {"messaging.message.id": "id-1"},
        {"messaging.message.id": "id-2"},
    ]
    assert batch.attributes is not None
    assert batch.attributes["messaging.batch.message_count"] == 3
    assert sorted(map(linked, made.handlers())) == [[], [SPAN], ["8" * 16]]
    assert {ids(span) for span in made.handlers()} == {(ids(batch)[0], own(batch))}


def test_events_of_one_request_join_the_trace_of_its_sender_together() -> None:
    made = traced(channel="http:/events")
    body = b"[" + b",".join([call(1), call(2)]) + b"]"
    made.consumer.process(read_body(body, {"traceparent": PARENT, "tracestate": "a=b"}))
    (batch,) = made.batches()
    assert ids(batch) == (TRACE, SPAN)
    assert len(batch.links) == 2
    assert batch.links[0].context.trace_state.get("a") == "b"
    assert batch.attributes is not None
    assert batch.attributes["messaging.system"] == "http"


def test_the_parent_of_a_batch_is_the_span_of_the_caller_before_that_of_the_sender() -> None:
    made = traced()
    with trace.use_span(made.provider.get_tracer("t").start_span("invocation")) as mine:
        made.consumer.process([sent(1)])
    batch, _ = made.only()
    assert own(batch) != f"{mine.get_span_context().span_id:016x}"
    assert ids(batch)[1] == f"{mine.get_span_context().span_id:016x}"
    assert linked(batch) == [SPAN]


def test_the_span_of_a_handler_is_current_while_the_handler_runs_and_is_in_job_trace() -> None:
    seen: list[tuple[str, dict[str, str]]] = []

    def note(job: Job) -> None:
        span = trace.get_current_span().get_span_context()
        seen.append((f"{span.trace_id:032x}-{span.span_id:016x}", dict(job.trace)))

    async def wait(job: Job) -> None:
        await asyncio.sleep(0)
        note(job)

    for handler in (note, wait):
        made = traced(handler)
        made.consumer.process([sent(1)])
        asyncio.run(made.consumer.process_async([sent(2)]))
        with made.consumer.once(sent(3)) as job:
            note(job)
        made.consumer.close()
        spans = [f"{TRACE}-{own(span)}" for span in made.handlers()]
        assert [span for span, _ in seen] == spans
        assert [said for _, said in seen] == [{"traceparent": f"00-{one}-01"} for one in spans]
        assert len(spans) == 3
        seen.clear()
    assert not trace.get_current_span().get_span_context().is_valid


def test_baggage_of_the_caller_is_not_part_of_job_trace() -> None:
    seen: list[Any] = []
    made = traced(lambda job: seen.append((dict(job.trace), baggage.get_baggage("user"))))
    token = context.attach(baggage.set_baggage("user", "u1"))
    try:
        made.consumer.process([call(1)])
    finally:
        context.detach(token)
    ((said, inside),) = seen
    assert list(said) == ["traceparent"]
    assert inside == "u1"


class OneByOne:
    """A source of these messages."""

    hold = 60.0

    def __init__(self, *deliveries: Delivery) -> None:
        self._left = list(deliveries)

    @property
    def ended(self) -> bool:
        return not self._left

    def receive(self, most: int) -> list[Delivery]:
        taken, self._left = self._left[:most], self._left[most:]
        return taken

    def acknowledge(self, deliveries: Any) -> None:
        pass

    postpone = acknowledge

    def close(self) -> None:
        pass


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_worker_joins_the_trace_of_each_message(asynchronous: bool) -> None:
    seen: list[str] = []

    def note(_: Job) -> None:
        seen.append(f"{trace.get_current_span().get_span_context().trace_id:032x}")

    async def wait(job: Job) -> None:
        note(job)

    made = traced(wait if asynchronous else note)
    told = [{"traceparent": PARENT}, {"x-amzn-trace-id": XRAY + "1"}, {"traceparent": OTHER}, {}]
    source = OneByOne(
        *(Delivery(call(at), str(at), str(at), trace=said) for at, said in enumerate(told))
    )
    Worker(made.consumer, source, WorkerSettings(concurrency=2, receivers=1)).run()
    made.consumer.close()
    assert len(made.batches()) == len(made.handlers()) == 4
    by_trace = sorted(ids(span)[0] for span in made.batches())
    assert by_trace.count(TRACE) == 2
    assert by_trace.count("7" * 32) == 1
    assert sorted(seen) == by_trace


@pytest.mark.parametrize(
    ("record", "parent"),
    [
        ({"messageAttributes": {"traceparent": {"stringValue": PARENT}}}, SPAN),
        ({"attributes": {"AWSTraceHeader": XRAY + "1"}}, SPAN),
        ({"attributes": {"AWSTraceHeader": XRAY + "0"}}, ""),
        (
            {
                "messageAttributes": {"traceparent": {"stringValue": OTHER}},
                "attributes": {"AWSTraceHeader": XRAY + "1"},
            },
            "8" * 16,
        ),
    ],
)
def test_lambda_joins_the_trace_of_a_record(record: dict[str, Any], parent: str) -> None:
    made = traced(channel="")
    one = {
        "messageId": "m",
        "receiptHandle": "r",
        "eventSource": "aws:sqs",
        "eventSourceARN": "arn:aws:sqs:eu-west-1:1:orders",
        "body": call(1).decode(),
        **record,
    }
    lambda_handler(made.consumer)({"Records": [one]}, None)
    batch, _ = made.only()
    assert ids(batch)[1] == parent
    assert linked(batch) == [parent or SPAN]
    assert batch.name == "process orders"


def test_lambda_joins_the_trace_of_its_invocation(monkeypatch: pytest.MonkeyPatch) -> None:
    for sampled, parent in (("1", SPAN), ("0", "")):
        monkeypatch.setenv("_X_AMZN_TRACE_ID", XRAY + sampled)
        made = traced()
        lambda_handler(made.consumer)(json.loads(call(1)), None)
        assert ids(made.only()[0])[1] == parent


@pytest.mark.parametrize(
    ("headers", "own_context"),
    [
        ({}, {"traceparent": PARENT}),
        ({"ce-id": "1", "ce-type": "call", "ce-specversion": "1.0", "ce-traceparent": PARENT}, {}),
        ({"traceparent": OTHER}, {"traceparent": PARENT}),
    ],
)
def test_a_batch_joins_the_trace_context_of_a_cloudevent(
    headers: dict[str, str], own_context: dict[str, str]
) -> None:
    whole = {"specversion": "1.0", "id": "1", "source": "s", "type": "call", "data": {"call": 1}}
    body = {"call": 1} if "ce-id" in headers else {**whole, **own_context}
    made = traced()
    made.consumer.process(read_body(json.dumps(body).encode(), headers))
    assert ids(made.only()[0]) == (TRACE, SPAN)


def test_the_trace_context_is_part_of_neither_the_encoded_event_nor_the_key() -> None:
    assert envelope.encode(sent(1)) == envelope.encode(sent(1, OTHER)) == call(1)
    made = traced(lambda _: None)
    assert statuses(made.consumer.process([sent(1), sent(1, OTHER)])) == ["done", "duplicate"]


@pytest.mark.parametrize(
    "parent", ["", "nonsense", f"00-{'0' * 32}-{SPAN}-01", f"ff-{TRACE}-{SPAN}-01", "é" * 5000]
)
def test_a_trace_context_that_cannot_be_read_is_ignored(parent: str) -> None:
    made = traced()
    made.consumer.process([sent(1, parent)])
    batch, _ = made.only()
    assert batch.parent is None
    assert linked(batch) == []


@pytest.mark.parametrize(
    "header",
    ["", "Root=1-5759e988-bd862e3fe1be46a994272793", "Root=x;Parent=y", f"Parent={SPAN};Sampled=1"],
)
def test_an_xray_header_without_a_span_gives_no_trace_context(header: str) -> None:
    assert xray(header) is None


def test_a_span_has_the_class_of_an_error_and_not_its_message() -> None:
    def fail(job: Job) -> None:
        raise (KeyError if job.event.detail["call"] == 1 else Reject)("+49 170 1234567")

    made = traced(fail, attempts=9)
    made.consumer.process([sent(1)])
    made.consumer.process([sent(2)])
    told = [
        (span.attributes["eventonce.status"], span.attributes["error.type"], span.status)
        for span in (*made.batches(), *made.handlers())
        if span.attributes is not None
    ]
    assert [(status, error) for status, error, _ in told] == [
        ("failed", "KeyError"),
        ("dead", "Reject"),
    ] * 2
    for span in made.exporter.get_finished_spans():
        assert span.status.status_code is StatusCode.ERROR
        assert "170 1234567" not in span.to_json(), "no id has a space"


def test_a_copy_has_no_handler_span() -> None:
    made = traced()
    made.consumer.process([call(1)])
    made.consumer.process([call(1)])
    first, second = made.batches()
    assert len(made.handlers()) == 1
    assert second.attributes is not None
    assert second.attributes["eventonce.status"] == "duplicate"
    assert second.status.status_code is StatusCode.UNSET
    assert first.context.trace_id != second.context.trace_id


def test_a_handler_span_ends_with_its_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = iter(range(10**18, 10**18 + 3))
    monkeypatch.setattr("eventonce.otel.traces.time_ns", lambda: next(ends))
    made = traced()
    made.consumer.process([call(1), call(2)])
    spans = [*made.handlers(), *made.batches()]
    assert [span.end_time for span in spans] == [10**18, 10**18 + 1, 10**18 + 2]


class Broken(TracerProvider):
    """A provider whose tracer raises, at once or when a handler begins."""

    def __init__(self, kind: SpanKind) -> None:
        super().__init__()
        self._broken = kind

    def get_tracer(self, *args: Any, **more: Any) -> Any:
        tracer: Any = super().get_tracer(*args, **more)
        start = tracer.start_span

        def start_span(
            name: str, within: Any, kind: SpanKind = INTERNAL, *rest: Any, **more: Any
        ) -> Any:
            if kind is self._broken:
                raise RuntimeError("planted")
            return start(name, within, kind, *rest, **more)

        tracer.start_span = start_span
        return tracer


@pytest.mark.parametrize("kind", [CONSUMER, INTERNAL])
def test_an_error_in_tracing_changes_no_outcome(
    kind: SpanKind, caplog: pytest.LogCaptureFixture
) -> None:
    ran: list[Job] = []
    consumer = Consumer("memory:", rules=ruled(), handler=ran.append)
    instrument(consumer, tracer_provider=Broken(kind), meter_provider=MeterProvider())
    assert statuses(consumer.process([sent(1), sent(2)])) == ["done", "done"]
    assert len(ran) == 2
    assert "not traced" in caplog.text


def test_an_interrupted_batch_ends_its_spans() -> None:
    def interrupt(_: Job) -> None:
        raise KeyboardInterrupt

    made = traced(interrupt)
    with pytest.raises(KeyboardInterrupt):
        made.consumer.process([call(1)])
    batch, handler = made.only()
    assert ids(handler)[1] == own(batch)
    assert not trace.get_current_span().get_span_context().is_valid


def test_an_interrupt_while_spans_are_exported_leaves_no_lease(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two interrupts, as by Ctrl-C twice: the second comes while the spans are exported."""
    runs: list[Job] = []

    def interrupt_once(job: Job) -> None:
        runs.append(job)
        if len(runs) == 1:
            raise KeyboardInterrupt

    def interrupted(*_: Any) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    made = traced(interrupt_once)
    monkeypatch.setattr(InMemorySpanExporter, "export", interrupted)
    with pytest.raises(KeyboardInterrupt):
        made.consumer.process([call(1)])
    assert made.consumer.runtime.gate.held() == []
    assert statuses(made.consumer.process([call(1)])) == ["done"]


def points(data: MetricsData | None) -> Iterator[tuple[str, Any]]:
    assert data is not None
    for resource in data.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                for point in metric.data.data_points:
                    yield metric.name, point


def test_every_metric_is_an_instrument_with_the_numbers_of_the_meter() -> None:
    made = traced(lambda job: 1 / (job.event.detail["call"] - 3), attempts=1)
    made.consumer.process([sent(1), sent(2), sent(1), sent(3), b"no event"])
    found: dict[str, list[Any]] = {}
    for name, point in points(made.reader.get_metrics_data()):
        found.setdefault(name, []).append(point)
    assert found.keys() >= {name_of(metric) for metric in names.METRICS if metric not in EMPTY}
    events = {
        tuple(point.attributes[label] for label in ("consumer", *names.EVENTS.labels)): point.value
        for point in found["eventonce_events"]
    }
    assert events == {
        ("crm", "done", "first_attempt", "call", "call"): 2,
        ("crm", "duplicate", "same_id", "call", "call"): 1,
        ("crm", "dead", "ZeroDivisionError", "call", "call"): 1,
        ("crm", "invalid", "not_an_event", "", ""): 1,
    }
    assert [point.count for point in found["eventonce_handler_seconds"]] == [3]
    assert list(found["eventonce_handler_seconds"][0].explicit_bounds) == list(names.SECONDS)
    assert [point.sum for point in found["eventonce_batch_size"]] == [5]
    assert {point.attributes["call"] for point in found["eventonce_store_call_seconds"]} == {
        "claim",
        "settle",
    }
    (keys,) = found["eventonce_store_keys"]
    assert keys.value == 3
    assert {
        point.attributes["status"]: point.value for point in found["eventonce_dead_letters"]
    } == {
        "dead": 1,
        "conflict": 0,
        "invalid": 1,
    }


EMPTY = (names.STORE_ERRORS, names.RECEIVED, names.LAG_SECONDS, names.STORE_BYTES)
"""Metrics that the events of the test do not fill."""


def test_the_metrics_of_the_conventions_are_exported_too() -> None:
    made = traced(lambda job: 1 / (job.event.detail["call"] - 3), attempts=9)
    made.consumer.process([call(1), call(2), call(1), call(3)])
    said = {
        "messaging.system": "aws_sqs",
        "messaging.destination.name": "calls",
        "messaging.consumer.group.name": "crm",
        "messaging.operation.name": "process",
    }
    found = list(points(made.reader.get_metrics_data()))
    consumed = [point for name, point in found if name == "messaging.client.consumed.messages"]
    assert [(point.value, point.attributes) for point in consumed] == [(4, said)]
    took = [point for name, point in found if name == "messaging.process.duration"]
    assert [(point.count, dict(point.attributes)) for point in took] == [
        (2, said),
        (1, {**said, "error.type": "ZeroDivisionError"}),
    ]


def test_a_consumer_is_instrumented_once() -> None:
    made = traced()
    with pytest.raises(ConfigError, match="already"):
        instrument(made.consumer)
    with pytest.raises(ConfigError, match="expected a Consumer"):
        instrument("crm")  # type: ignore[arg-type]


def test_the_spans_of_a_cancelled_batch_end() -> None:
    async def cancelled() -> Traced:
        began = asyncio.Event()

        async def endless(_: Job) -> None:
            began.set()
            await asyncio.sleep(3600)

        made = traced(endless)
        task = asyncio.ensure_future(made.consumer.process_async([call(1)]))
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return made

    made = asyncio.run(cancelled())
    until(lambda: len(made.exporter.get_finished_spans()) == 2)
