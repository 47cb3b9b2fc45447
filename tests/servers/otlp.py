"""A collector of OpenTelemetry: takes traces and metrics over OTLP/HTTP, on a loopback port."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.servers.http import Handler, served


class Collected:
    """The requests that came in."""

    def __init__(self, port: int) -> None:
        self.traces: list[ExportTraceServiceRequest] = []
        self.metrics: list[ExportMetricsServiceRequest] = []
        self.environment = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
            "OTEL_BSP_SCHEDULE_DELAY": "50",
            "OTEL_METRIC_EXPORT_INTERVAL": "100",
        }
        """The variables that make a process send here, and soon."""

    def spans(self, name: str = "") -> list[Span]:
        """The spans of this name, or all."""
        return [
            span
            for request in self.traces
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
            if name in ("", span.name)
        ]

    def latest(self) -> dict[str, Metric]:
        """The metrics by name, as they came last."""
        return {
            metric.name: metric
            for request in self.metrics
            for resource in request.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


@contextmanager
def collecting() -> Iterator[Collected]:
    """A collector that runs."""
    collected: list[Collected] = []

    class Collector(Handler):
        def reply(self) -> None:
            raw = self.body()
            if self.headers.get("content-encoding") == "gzip":
                raw = gzip.decompress(raw)
            answer = b""
            if self.path == "/v1/traces":
                collected[0].traces.append(ExportTraceServiceRequest.FromString(raw))
                answer = ExportTraceServiceResponse().SerializeToString()
            elif self.path == "/v1/metrics":
                collected[0].metrics.append(ExportMetricsServiceRequest.FromString(raw))
                answer = ExportMetricsServiceResponse().SerializeToString()
            self.answer(200, answer, [("content-type", "application/x-protobuf")])

    with served(Collector) as port:
        collected.append(Collected(port))
        yield collected[0]


def said(span: Span) -> dict[str, str | int]:
    """The attributes of a span."""
    found: dict[str, str | int] = {}
    for one in span.attributes:
        value = one.value
        found[one.key] = value.string_value if value.HasField("string_value") else value.int_value
    return found
