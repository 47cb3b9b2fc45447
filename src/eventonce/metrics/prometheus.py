"""The metrics as text for Prometheus, written by its client library."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from itertools import accumulate
from typing import TYPE_CHECKING, Final

import msgspec

from eventonce.consumer import Consumer
from eventonce.errors import install_hint
from eventonce.http_report import JSON, Answer
from eventonce.metrics import names
from eventonce.metrics.gauges import Gauges
from eventonce.metrics.meter import Histogram, Meter, measure
from eventonce.metrics.names import Metric

if TYPE_CHECKING:
    from prometheus_client import Metric as Family

LIBRARY: Final = "prometheus_client"

NOT_INSTALLED: Final = f"there are no metrics; to have them: {install_hint('metrics')}"
METRICS_OFF: Final = "there are no metrics: the settings have metrics = false"

Scrape = Callable[[], Answer]
"""The function that answers a request for the metrics. It may wait a second for the store."""


def scraping(consumer: Consumer, *, on: bool) -> Scrape:
    """Measure this consumer, and return the function that answers Prometheus; if metrics are off,
    or the extra is not installed, a function that answers 404 with the reason."""
    if not on or find_spec(LIBRARY) is None:
        said = msgspec.json.encode({"reason": NOT_INSTALLED if on else METRICS_OFF})
        return lambda: Answer(404, JSON, said)
    return Exporter(measure(consumer), Gauges(consumer)).scrape


class Exporter:
    """A collector of the client library over a meter and its gauges."""

    def __init__(self, meter: Meter, gauges: Gauges) -> None:
        self._meter = meter
        self._gauges = gauges

    def scrape(self) -> Answer:
        """Return the metrics as text."""
        # Imported here, because the import is slow and few processes are scraped.
        from prometheus_client import (  # noqa: PLC0415
            CONTENT_TYPE_LATEST,
            CollectorRegistry,
            generate_latest,
        )

        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        return Answer(200, {"content-type": CONTENT_TYPE_LATEST}, generate_latest(registry))

    def collect(self) -> Iterator[Family]:
        """Yield one family of the client library for each metric."""
        from prometheus_client.core import (  # noqa: PLC0415  as above
            CounterMetricFamily,
            GaugeMetricFamily,
            HistogramMetricFamily,
        )

        counted = self._meter.counted()
        gauges = dict(self._gauges.read())
        name = self._meter.consumer
        for metric in names.METRICS:
            said = (metric.name, metric.meaning)
            labels = [names.CONSUMER, *metric.labels]
            if metric.kind == "counter":
                counter = CounterMetricFamily(*said, labels=labels)
                for values, number in counted.counts(metric).items():
                    counter.add_metric([name, *values], number)
                yield counter
            elif metric.kind == "histogram":
                histogram = HistogramMetricFamily(*said, labels=labels)
                for values, one in counted.histograms[metric].items():
                    histogram.add_metric([name, *values], _buckets(metric, one), one.total)
                yield histogram
            else:
                gauge = GaugeMetricFamily(*said, labels=labels)
                if metric in gauges:
                    gauge.add_metric([name], gauges[metric])
                yield gauge


def _buckets(metric: Metric, one: Histogram) -> list[tuple[str, float]]:
    """Return the cumulative count of values up to each bound."""
    bounds = [*(str(float(bound)) for bound in metric.bounds), "+Inf"]
    return list(zip(bounds, map(float, accumulate(one.buckets)), strict=True))
