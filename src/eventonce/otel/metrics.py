"""The metrics as instruments of OpenTelemetry: all metrics of `metrics.names`, and the metrics of
the conventions for messaging."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation

from eventonce.consumer import Consumer
from eventonce.metrics import Meter, measure, names
from eventonce.metrics.gauges import Gauges
from eventonce.metrics.meter import Labels
from eventonce.metrics.names import Metric
from eventonce.otel import conventions
from eventonce.types import Outcome

_UNITS: Final = {"seconds": "s", "bytes": "By"}

Observe = Callable[[CallbackOptions], Iterable[Observation]]


def name_of(metric: Metric) -> str:
    """Return the name of an instrument: without `_total`, which an exporter for Prometheus adds."""
    return metric.name.removesuffix("_total")


def unit_of(metric: Metric) -> str:
    """Return the unit as the conventions write it."""
    return _UNITS.get(metric.unit) or f"{{{metric.unit.replace(' ', '_').removesuffix('s')}}}"


def report_metrics(consumer: Consumer, channel: str, provider: MeterProvider | None) -> None:
    """Measure this consumer, and report to this provider or the global one."""
    meter = metrics.get_meter(conventions.SCOPE, meter_provider=provider)
    counted, gauges = measure(consumer), Gauges(consumer)
    histograms = {}
    for metric in names.METRICS:
        said = (name_of(metric), unit_of(metric), metric.meaning)
        if metric.kind == "histogram":
            histograms[metric] = meter.create_histogram(
                *said, explicit_bucket_boundaries_advisory=metric.bounds
            )
        elif metric.kind == "counter":
            meter.create_observable_counter(said[0], [_counts(counted, metric)], *said[1:])
        else:
            observe = _value(gauges, metric, consumer.name)
            meter.create_observable_gauge(said[0], [observe], *said[1:])

    def record(metric: Metric, labels: Labels, values: Sequence[float]) -> None:
        attributes = _attributes(metric, consumer.name, labels)
        for value in values:
            histograms[metric].record(value, attributes)

    counted.record = record
    consumer.observers.append(_Messaging(meter, consumer.name, channel))


class _Messaging:
    """An observer that reports the metrics of the conventions for messaging."""

    def __init__(self, meter: metrics.Meter, consumer: str, channel: str) -> None:
        self._consumer = consumer
        self._channel = channel
        self._consumed = meter.create_counter(
            conventions.CONSUMED, "{message}", "Events that were delivered, copies too."
        )
        self._took = meter.create_histogram(
            conventions.PROCESS_DURATION,
            "s",
            "The time that a handler took for one event.",
            explicit_bucket_boundaries_advisory=conventions.DURATION_BOUNDS,
        )

    def batch(self, outcomes: Sequence[Outcome], _seconds: float, /) -> None:
        """Report the events of a batch, and the times of the handlers that ran."""
        came: Counter[str] = Counter()
        for outcome in outcomes:
            event, error = outcome.event, outcome.error
            channel = (event is not None and event.channel) or self._channel
            came[channel] += 1
            if outcome.attempt:
                said = dict(conventions.described(channel, self._consumer))
                if error is not None:
                    said[conventions.ERROR] = type(error).__name__
                self._took.record(outcome.took, said)
        for channel, number in came.items():
            self._consumed.add(number, conventions.described(channel, self._consumer))


def _counts(meter: Meter, metric: Metric) -> Observe:
    def observe(_: CallbackOptions) -> Iterable[Observation]:
        for labels, number in meter.counted().counts(metric).items():
            yield Observation(number, _attributes(metric, meter.consumer, labels))

    return observe


def _value(gauges: Gauges, metric: Metric, consumer: str) -> Observe:
    def observe(_: CallbackOptions) -> Iterable[Observation]:
        for known, value in gauges.read():
            if known is metric:
                yield Observation(value, {names.CONSUMER: consumer})

    return observe


def _attributes(metric: Metric, consumer: str, labels: Labels) -> dict[str, str]:
    return {names.CONSUMER: consumer, **dict(zip(metric.labels, labels, strict=True))}
