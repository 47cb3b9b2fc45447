"""The metrics as the text that Prometheus reads, made by its own client library."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from itertools import accumulate
from typing import TYPE_CHECKING, Final

import msgspec

from eventonce.consumer import Consumer
from eventonce.http_report import JSON, Answer
from eventonce.metrics import names
from eventonce.metrics.gauges import Gauges
from eventonce.metrics.meter import Histogram, Meter, measure
from eventonce.metrics.names import Metric

if TYPE_CHECKING:
    from prometheus_client import Metric as Family

LIBRARY: Final = "prometheus_client"

MISSING: Final = 'there are no metrics: they need pip install "eventonce[metrics]"'
OFF: Final = "there are no metrics: the settings say metrics = false"

Scrape = Callable[[], Answer]
"""The answer to a request for the metrics. It may wait a second for the store."""


def scraping(consumer: Consumer, *, on: bool) -> Scrape:
    """What answers Prometheus for this consumer, which is measured from now on; where that is off,
    or the extra is not installed, a refusal with the reason."""
    if not on or find_spec(LIBRARY) is None:
        said = msgspec.json.encode({"reason": MISSING if on else OFF})
        return lambda: Answer(404, JSON, said)
    return Exporter(measure(consumer), Gauges(consumer)).scrape


class Exporter:
    """A collector of the client library over a meter and its gauges."""

    def __init__(self, meter: Meter, gauges: Gauges) -> None:
        self._meter = meter
        self._gauges = gauges

    def scrape(self) -> Answer:
        """The text."""
        # Slow to import, and needed only where somebody asks.
        from prometheus_client import (  # noqa: PLC0415
            CONTENT_TYPE_LATEST,
            CollectorRegistry,
            generate_latest,
        )

        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        return Answer(200, {"content-type": CONTENT_TYPE_LATEST}, generate_latest(registry))

    def collect(self) -> Iterator[Family]:
        """The families of the client library, one for each metric."""
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
    """How many values are at most each bound."""
    bounds = [*(str(float(bound)) for bound in metric.bounds), "+Inf"]
    return list(zip(bounds, map(float, accumulate(one.buckets)), strict=True))
