"""The metrics: how much came in, what became of it, how long it took, and how the store fares.

`names` says every metric once; `meter` counts; `prometheus` and `emf` say what was counted.
"""

from __future__ import annotations

from eventonce.metrics.meter import Meter as Meter
from eventonce.metrics.meter import measure as measure
