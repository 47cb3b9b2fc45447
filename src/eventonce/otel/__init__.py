"""OpenTelemetry: the traces and the metrics of a consumer, through the API of OpenTelemetry.

`traces` makes the spans, `metrics` the instruments; `setup` exports both for the command line and
for Lambda, as the variables `OTEL_*` say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventonce.consumer import Consumer
from eventonce.errors import ConfigError, install_hint

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider


def instrument(
    consumer: Consumer,
    *,
    channel: str = "",
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
) -> None:
    """Trace and measure this consumer from now on, with these providers or the global ones.

    `channel` names the source of events that bring no name of their own, such as `sqs:orders`.
    """
    if not isinstance(consumer, Consumer):
        raise ConfigError(f"instrument: expected a Consumer, not {type(consumer).__name__}")
    if consumer.runtime.tracer is not None:
        raise ConfigError("instrument: this consumer is instrumented already")
    try:
        from eventonce.otel.metrics import report_metrics  # noqa: PLC0415  an extra
        from eventonce.otel.traces import Tracing  # noqa: PLC0415  as above
    except ModuleNotFoundError as error:
        raise ConfigError(f"instrument: {error}: {install_hint('otel')}") from error
    consumer.runtime.tracer = Tracing(consumer.name, channel, tracer_provider)
    report_metrics(consumer, channel, meter_provider)
