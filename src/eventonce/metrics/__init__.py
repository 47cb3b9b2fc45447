"""The metrics: events by their outcomes, times of handlers and of the store, the size of the store.

`names` has the table of metrics; `meter` counts; `prometheus` and `emf` write the counts as text.
"""

from __future__ import annotations

from eventonce.metrics.meter import Meter as Meter
from eventonce.metrics.meter import measure as measure
