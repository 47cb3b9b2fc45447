"""The metrics of an invocation as one line of CloudWatch's embedded metric format.

A function can write to its log without permissions and without a request, and CloudWatch makes
metrics of such lines.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import wraps
from heapq import nlargest
from typing import Any, Final

import msgspec

from eventonce.clock import wall_clock
from eventonce.consumer import Consumer
from eventonce.log import log
from eventonce.metrics import names
from eventonce.metrics.meter import Counted, measure
from eventonce.metrics.names import Metric

NAMESPACE: Final = "eventonce"

MOST_VALUES: Final = 100
"""The most values of one metric in one line."""

LONGEST_NAME: Final = 1024
"""The most characters of a dimension's value."""

MOST_OUTCOMES: Final = 50
"""The most combinations of status, cause, rule and type in one line; the most frequent stay."""

_UNITS: Final = {"seconds": "Seconds"}

Invoked = Callable[[Any, Any], Any]


def printing(consumer: Consumer, invoked: Invoked) -> Invoked:
    """Return the Lambda function with a line of metrics printed at the end of each invocation."""
    meter = measure(consumer, values=True)

    @wraps(invoked)
    def function(event: Any, context: Any = None) -> Any:
        try:
            return invoked(event, context)
        finally:
            try:
                line = line_of(meter.consumer, meter.take(), wall_clock())
                if line:
                    # One write: the output of another thread must not split the line.
                    sys.stdout.write(line + "\n")
            except Exception:  # noqa: BLE001  must not fail the invocation
                log().exception("metrics: the metrics of an invocation are not printed")

    return function


def line_of(consumer: str, counted: Counted, at: int) -> str:
    """Return the line; empty if nothing was counted."""
    values: dict[str, float | list[float]] = {}
    units: dict[str, str] = {}
    for metric in names.METRICS:
        for name, value in _values(metric, counted):
            units[name] = _UNITS.get(metric.unit, "Count")
            if isinstance(value, list):
                values[name] = [*values.get(name, []), *value]  # type: ignore[misc]
            else:
                values[name] = values.get(name, 0) + value  # type: ignore[operator]
    if not values:
        return ""
    metrics = [{"Name": name, "Unit": unit} for name, unit in units.items()]
    directive = {"Namespace": NAMESPACE, "Dimensions": [[names.CONSUMER]], "Metrics": metrics}
    line = {
        "_aws": {"Timestamp": at, "CloudWatchMetrics": [directive]},
        # CloudWatch takes only ASCII in a dimension.
        names.CONSUMER: consumer.encode("ascii", "backslashreplace").decode()[:LONGEST_NAME] or "-",
        **{name: thinned(it) if isinstance(it, list) else it for name, it in values.items()},
        "outcomes": _outcomes(counted),
    }
    return msgspec.json.encode(line).decode()


def thinned(values: list[float]) -> list[float]:
    """Return at most `MOST_VALUES` of the values: evenly spread by size, with the least and the
    greatest, so that percentiles stay nearly the same."""
    if len(values) <= MOST_VALUES:
        return [float(f"{value:.6g}") for value in values]
    ordered = sorted(values)
    last = len(ordered) - 1
    return thinned([ordered[at * last // (MOST_VALUES - 1)] for at in range(MOST_VALUES)])


def _values(metric: Metric, counted: Counted) -> Iterator[tuple[str, float | list[float]]]:
    """Yield the values by their names in CloudWatch, without labels that are no part of a name."""
    if not metric.emf:
        return
    found = counted.counters if metric.kind == "counter" else counted.histograms
    for labels, value in found[metric].items():
        several = value if isinstance(value, int) else value.values
        if several:
            yield metric.emf.format(**dict(zip(metric.labels, labels, strict=True))), several


def _outcomes(counted: Counted) -> list[dict[str, Any]]:
    """Return the counts by all labels, for CloudWatch Logs Insights: a metric for each combination
    would cost too much."""
    most = nlargest(MOST_OUTCOMES, counted.counters[names.EVENTS].items(), key=lambda one: one[1])
    return [
        {**dict(zip(names.EVENTS.labels, labels, strict=True)), "count": count}
        for labels, count in most
    ]
