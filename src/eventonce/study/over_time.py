"""The arrival times of copies, and their lateness, as counts for plots."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Final

import msgspec

from eventonce.study.index import Index
from eventonce.study.units import DAY, HOUR, MINUTE

STEP_LENGTHS: Final = (
    *(MINUTE, 5 * MINUTE, 15 * MINUTE),
    *(HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR),
    *(DAY, 7 * DAY, 28 * DAY),
)
MOST_STEPS: Final = 90
"""The most steps into which the time of a capture is divided."""
BINS_PER_DECADE: Final = 8
"""The number of bins of lateness per power of ten."""


class OverTime(msgspec.Struct, frozen=True):
    """The number of lines in each step of time."""

    began: int
    """Milliseconds; a multiple of the step."""
    step: int
    events: tuple[int, ...] = ()
    causes: dict[str, tuple[int, ...]] = {}
    """The copies of each cause, the most frequent first."""


def frame(began: int, ended: int) -> tuple[int, int, int]:
    """Return the begin of the first step, the length of a step, and the number of steps."""
    span = ended - began
    least = -(-span // MOST_STEPS)
    step = next((step for step in STEP_LENGTHS if step >= least), -(-least // DAY) * DAY)
    first = began // step * step
    return first, step, (ended - first) // step + 1


def over_time(index: Index, began: int | None, ended: int | None) -> OverTime | None:
    """Return the lines of a capture and its copies over time; None if no line has a time."""
    if began is None or ended is None:
        return None
    first, step, steps = frame(began, ended)
    at = "(coalesce(arrived, time) - ?) // ?"
    events = [0] * steps
    for place, number in index.rows(
        f"SELECT {at}, count(*) FROM events GROUP BY 1",  # noqa: S608  ours
        *(first, step),
    ):
        if place is not None:
            events[place] = number
    copies = index.rows(
        f"SELECT {at}, cause, count(*) FROM copies JOIN events USING (line) GROUP BY 1, 2",  # noqa: S608
        *(first, step),
    )
    told = ((place, cause, number) for place, cause, number in copies if place is not None)
    return OverTime(first, step, tuple(events), copies_in_steps(told, steps))


def copies_in_steps(
    copies: Iterable[tuple[int, str, int]], steps: int
) -> dict[str, tuple[int, ...]]:
    """Return the copies of each cause in each step, the most frequent cause first, from their
    steps, causes and numbers."""
    causes: dict[str, list[int]] = defaultdict(lambda: [0] * steps)
    for place, cause, number in copies:
        causes[cause][place] += number
    found = sorted(causes.items(), key=lambda item: -sum(item[1]))
    return {cause: tuple(counts) for cause, counts in found}


def late_bins(index: Index) -> dict[int, int]:
    """Return the copies by lateness: bin b begins at 10 ** (b / 8) milliseconds."""
    rows = index.rows(
        "SELECT floor(log10(greatest(gap, 1)) * ?)::INTEGER, count(*) FROM copies "
        "WHERE gap IS NOT NULL GROUP BY 1 ORDER BY 1",
        BINS_PER_DECADE,
    )
    return dict(rows)


def let_through(index: Index) -> int:
    """Return how many copies the rules in use do not recognise: they have another key."""
    (number,) = next(
        index.rows(
            """
            SELECT coalesce(sum(keys - 1), 0)::BIGINT FROM (
              SELECT first, count(*) AS keys FROM (
                SELECT copy_of AS first, key FROM copies JOIN events USING (line)
                WHERE key IS NOT NULL
                UNION
                SELECT events.line, key FROM events SEMI JOIN copies ON events.line = copy_of
                WHERE key IS NOT NULL
              ) GROUP BY first
            )
            """
        )
    )
    return int(number)
