"""Counts of decisions for people: by five groups of statuses, by the causes of copies, and by type,
rule and worker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from eventonce.core.status import COPIES, DEAD_LETTERS, MEANINGS

GROUPS: Final[Mapping[str, str]] = {
    "ran": "A handler ran, and its effect is settled.",
    "copies": "Dropped: the same event, or a newer version, has taken effect.",
    "not settled": "The run failed or was busy; the event must come again.",
    "dead letters": "Given up and kept for a redrive, and the later copies of these.",
    "ignored": "Acknowledged: no handler takes this type.",
}
"""The groups of statuses, with their meanings."""


def _group(status: str) -> str:
    meaning = MEANINGS[status]  # type: ignore[index]  # what the tables hold is a status
    if status in COPIES:
        return "copies"
    if status in DEAD_LETTERS:
        return "dead letters"
    if not meaning.acknowledged:
        return "not settled"
    return "ran" if meaning.ran else "ignored"


GROUP_OF: Final[Mapping[str, str]] = {status: _group(status) for status in MEANINGS}

CAUSES: Final[Mapping[tuple[str, int], str]] = {
    ("duplicate", 1): "delivered again, under the same transport id",
    ("duplicate", 0): "published again, under another transport id",
    ("duplicate", -1): "the same again; the transport ids cannot be compared",
    ("stale", -1): "older than the version that was applied",
    ("unchanged", -1): "the state was sent again, and did not change",
}
"""The causes of copies, by the status and by whether the transport id was the same."""

MOST_SHOWN: Final = 8
"""The most types, rules and workers that are shown: the busiest."""


class Busy(msgspec.Struct, frozen=True):
    """The counts of one type, rule or worker."""

    name: str
    events: int
    copies: int
    unsettled: int
    letters: int
    took: float
    """The mean time of a handler, in milliseconds."""


class Summary(msgspec.Struct, frozen=True):
    """The counts of all decisions in a span of time."""

    groups: Mapping[str, int]
    statuses: Mapping[str, int]
    causes: Mapping[tuple[str, int], int]
    types: tuple[Busy, ...]
    rules: tuple[Busy, ...]
    workers: tuple[Busy, ...]

    @property
    def events(self) -> int:
        """The number of decisions."""
        return sum(self.groups.values())


SUMMARY_FIELDS: Final = ("status", "same_id", "type", "rule", "worker")
"""The fields of a kind that a summary is made of."""

Counted = tuple[int, tuple[Any, ...], int, int]
"""A time, the fields, the number of decisions, and the microseconds of their handlers."""


def summary(counted: Iterable[Counted]) -> Summary:
    """Return the summary of counts by `SUMMARY_FIELDS`."""
    groups: Counter[str] = Counter(dict.fromkeys(GROUPS, 0))
    statuses: Counter[str] = Counter()
    causes: Counter[tuple[str, int]] = Counter()
    by_type: dict[str, Counter[str]] = {}
    by_rule: dict[str, Counter[str]] = {}
    by_worker: dict[str, Counter[str]] = {}
    for _, (status, same_id, type_, rule, worker), events, took in counted:
        group = GROUP_OF[status]
        groups[group] += events
        statuses[status] += events
        if group == "copies":
            causes[status, same_id if status == "duplicate" else -1] += events
        for found, name in ((by_type, type_), (by_rule, rule), (by_worker, worker)):
            one = found.setdefault(name, Counter())
            one[group] += events
            one["took"] += took
            one["timed"] += events if MEANINGS[status].ran else 0
    busiest = map(_busiest, (by_type, by_rule, by_worker))
    return Summary(groups, statuses, causes, *busiest)


def _busiest(found: Mapping[str, Counter[str]]) -> tuple[Busy, ...]:
    rows = [
        Busy(
            name,
            sum(one[group] for group in GROUPS),
            one["copies"],
            one["not settled"],
            one["dead letters"],
            one["took"] / one["timed"] / 1000 if one["timed"] else 0.0,
        )
        for name, one in found.items()
    ]
    return tuple(sorted(rows, key=lambda row: (-row.events, row.name))[:MOST_SHOWN])
