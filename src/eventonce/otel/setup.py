"""The export of traces and metrics for the command line and for Lambda, configured by the variables
`OTEL_*` that every SDK of OpenTelemetry reads.

Providers that the process has already, such as under `opentelemetry-instrument`, stay.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from threading import Thread
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from eventonce.consumer import Consumer
from eventonce.errors import install_hint
from eventonce.log import log
from eventonce.otel import instrument

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource

SWITCHES: Final = (
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
    "OTEL_TRACES_EXPORTER",
    "OTEL_METRICS_EXPORTER",
)
"""Any of these variables asks for an export."""

NOT_INSTALLED: Final = f"%s is set, but nothing is exported: {install_hint('otel')}"

NO_EXPORTER: Final = (
    "%s: no exporter %r of %s is installed, so they are not exported; install its package, or use "
    "otlp with http/protobuf, which eventonce[otel] has"
)

SDK_REFUSED: Final = "otel: nothing is exported, because the SDK refuses the variables OTEL_*: %s"

FLUSH_WAIT: Final = 2.0
"""Seconds that the end of an invocation waits for the collector."""

CLOSE_WAIT: Final = 5.0
"""Seconds that the end of a process waits for the collector."""

OTLP: Final = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}
"""The exporter of each protocol; the exporter of gRPC is a separate package."""


def asked() -> str:
    """Return the variable that asks for an export; empty if none does, or if the SDK is off."""
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return ""
    return next((name for name in SWITCHES if os.environ.get(name)), "")


@contextmanager
def exporting(consumer: Consumer, channel: str = "") -> Iterator[None]:
    """Trace and measure this consumer if the environment asks for an export; flush at the end."""
    export = exported(consumer, channel)
    try:
        yield
    finally:
        if export is not None:
            export.close()


class Export:
    """The providers that this process made, to be flushed and closed."""

    def __init__(self, providers: list[Any]) -> None:
        self._providers = providers
        self._calls: list[Thread] = []

    def batch(self, *_: object) -> None:
        """Do nothing: as an observer, it is only flushed."""

    def flush(self) -> None:
        """Export the buffered spans and values: Lambda freezes the process after each invocation.
        Do nothing while an earlier flush still waits for the collector."""
        if not any(call.is_alive() for call in self._calls):
            self._each("force_flush", FLUSH_WAIT)

    def close(self) -> None:
        """Export the buffered spans and values, and end the threads."""
        self._each("shutdown", CLOSE_WAIT)

    def _each(self, verb: str, within: float) -> None:
        """Call each provider in its own thread: the SDK tries for ten seconds and more, and a
        silent collector must delay neither an invocation nor the end of a process."""
        end = monotonic() + within
        calls = [Thread(target=_call, args=(one, verb), daemon=True) for one in self._providers]
        self._calls = calls
        try:
            for call in calls:
                call.start()
        except RuntimeError as error:
            log().warning("otel: not everything is exported: %s", error)
        for call in calls:
            if call.ident is not None:
                call.join(max(0.0, end - monotonic()))
        if any(call.is_alive() for call in calls):
            log().warning("otel: the collector did not take everything within %g s", within)


def _call(provider: Any, verb: str) -> None:
    try:
        getattr(provider, verb)()
    except Exception:  # noqa: BLE001  an export must fail no work
        log().exception("otel: not everything could be exported")


def exported(consumer: Consumer, channel: str = "") -> Export | None:
    """Trace and measure this consumer if the environment asks for an export. A variable that the
    SDK refuses stops no work; a consumer that is instrumented already stays as it is."""
    variable = asked()
    if not variable or consumer.runtime.tracer is not None:
        return None
    if find_spec("opentelemetry") is None or find_spec("opentelemetry.sdk") is None:
        log().warning(NOT_INSTALLED, variable)
        return None
    providers: list[Any] = []
    export = Export(providers)
    try:
        for provider in _providers():
            providers.append(provider)  # noqa: PERF402  one by one: the next may raise
        instrument(consumer, channel=channel)
    except Exception as error:  # noqa: BLE001  such variables are often set for a whole machine
        log().warning(SDK_REFUSED, error)
        consumer.runtime.tracer = None
        export.close()
        return None
    return export


def _providers() -> Iterator[Any]:
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415  an extra

    named = os.environ.get("OTEL_SERVICE_NAME") or "service.name" in os.environ.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    )
    resource = Resource.create({} if named else {"service.name": "eventonce"})
    yield from _traces(resource)
    yield from _metrics(resource)


def _traces(resource: Resource) -> Iterator[Any]:
    from opentelemetry import trace  # noqa: PLC0415  an extra
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415  as above
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415  as above

    make = _exporter("traces")
    if make is not None and isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        # `Export.close` shuts the provider down; the interpreter must not do so again.
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(make()))
        trace.set_tracer_provider(provider)
        yield provider


def _metrics(resource: Resource) -> Iterator[Any]:
    from opentelemetry import metrics  # noqa: PLC0415  an extra
    from opentelemetry.sdk.metrics import MeterProvider  # noqa: PLC0415  as above
    from opentelemetry.sdk.metrics.export import (  # noqa: PLC0415  as above
        PeriodicExportingMetricReader,
    )

    make = _exporter("metrics")
    if make is not None and not isinstance(metrics.get_meter_provider(), MeterProvider):
        reader = PeriodicExportingMetricReader(make())
        provider = MeterProvider([reader], resource, shutdown_on_exit=False)
        metrics.set_meter_provider(provider)
        yield provider


def _exporter(signal: str) -> Callable[[], Any] | None:
    """Return the class of the exporter of traces or metrics; None for `none`, or if not found."""
    variable = f"OTEL_{signal.upper()}_EXPORTER"
    name = os.environ.get(variable, "").strip() or "otlp"
    if name == "none":
        return None
    if name == "otlp":
        variable = f"OTEL_EXPORTER_OTLP_{signal.upper()}_PROTOCOL"
        if not os.environ.get(variable):
            variable = "OTEL_EXPORTER_OTLP_PROTOCOL"
        protocol = os.environ.get(variable, "").strip() or "http/protobuf"
        name = OTLP.get(protocol, protocol)
    from importlib.metadata import entry_points  # noqa: PLC0415  slow to import

    found = next(iter(entry_points(group=f"opentelemetry_{signal}_exporter", name=name)), None)
    if found is None:
        # Such variables are often set for a whole machine, so a missing exporter stops no work.
        log().warning(NO_EXPORTER, variable, name, signal)
        return None
    make: Callable[[], Any] = found.load()
    return make
