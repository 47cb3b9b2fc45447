"""The figures of the README, measured: `python -m benchmarks [name ...]`.

A benchmark is a module here with `run() -> Iterable[Figure]`. What depends on the machine is given
in units of `json.loads` of a 1 KB event, timed in the same run. No test asserts a figure.
"""

from __future__ import annotations

from typing import NamedTuple


class Figure(NamedTuple):
    """One measured figure, and what the design asks of it."""

    what: str
    value: float
    unit: str = ""
    at_most: float | None = None
    at_least: float | None = None

    @property
    def reached(self) -> bool:
        """Whether it is as good as the design asks."""
        return (self.at_most is None or self.value <= self.at_most) and (
            self.at_least is None or self.value >= self.at_least
        )
