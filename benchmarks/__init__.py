"""The figures of the README, measured: `python -m benchmarks [name ...]`.

A benchmark is a module here with `run() -> Iterable[Figure]`. Figures that depend on the machine
are in units of `json.loads` of a 1 KB event, timed in the same run. No test asserts a figure.
"""

from __future__ import annotations

from typing import NamedTuple


class Figure(NamedTuple):
    """One measured figure, and the bounds that the design sets."""

    what: str
    value: float
    unit: str = ""
    at_most: float | None = None
    at_least: float | None = None

    @property
    def reached(self) -> bool:
        """Whether the figure is within its bounds."""
        return (self.at_most is None or self.value <= self.at_most) and (
            self.at_least is None or self.value >= self.at_least
        )
