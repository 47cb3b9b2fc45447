"""The workers of the last hour, for the command line and the dashboard: the decisions of each by
the minute, and the state that its processes report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

import msgspec

from eventonce.history.leases import STATES_KEPT, Lease, WorkerState
from eventonce.history.recorder import History
from eventonce.history.story import LATENESS_UNITS, moment
from eventonce.history.summary import GROUP_OF
from eventonce.history.tables import MINUTE

MINUTES_SHOWN: Final = 60
"""The number of minutes that are shown."""

CONDITION_WORDS: Final = {"lost": "lost to another run", "unguarded": "without a lease"}
"""The conditions of a run that are shown in other words."""


class Worker(msgspec.Struct, frozen=True):
    """The decisions and the state of one worker for one of its consumers."""

    name: str
    consumer: str
    channels: tuple[str, ...]
    """The channels that have a name."""
    last: int
    """The minute of the last decision, in milliseconds; 0 for none."""
    minutes: tuple[int, ...]
    """The number of decisions in each minute, oldest first."""
    groups: Mapping[str, int]
    states: tuple[WorkerState, ...]
    """The latest state of each process and channel; none if no process reports any more."""

    @classmethod
    def idle(cls, state: WorkerState) -> Worker:
        """Return a worker in this state that has decided nothing."""
        named = (state.channel,) if state.channel else ()
        return cls(state.worker, state.consumer, named, 0, (0,) * MINUTES_SHOWN, {}, (state,))

    @property
    def events(self) -> int:
        """The number of decisions."""
        return sum(self.minutes)

    @property
    def told(self) -> int:
        """The time of the last report, in milliseconds; 0 for never."""
        return max((one.told for one in self.states), default=0)

    @property
    def held(self) -> int | None:
        """The number of leases that the worker holds; None if unknown."""
        return _sum([one.load.held for one in self.states])

    @property
    def in_flight(self) -> int | None:
        """The number of its events in flight; None if unknown."""
        return _sum([one.load.in_flight for one in self.states])


def read_workers(history: History, now: int) -> list[Worker]:
    """Return the workers of the last hour, the busiest first."""
    since = (now // MINUTE - MINUTES_SHOWN + 1) * MINUTE
    fields = ("worker", "consumer", "channel", "status")
    rows: dict[tuple[str, str], list[tuple[int, str, str, int]]] = {}
    for at, (name, consumer, channel, status), events, _ in history.counts(
        since, now + MINUTE, fields
    ):
        rows.setdefault((name, consumer), []).append((at, channel, status, events))
    states: dict[tuple[str, str], list[WorkerState]] = {}
    for state in history.states():
        # The row of a killed process is deleted up to a minute later.
        if now - state.told <= STATES_KEPT:
            states.setdefault((state.worker, state.consumer), []).append(state)
    workers = [
        _worker(which, rows.get(which, []), states.get(which, []), since)
        for which in {**rows, **states}
    ]
    return sorted(workers, key=lambda one: (-one.events, one.name, one.consumer))


def _worker(
    which: tuple[str, str],
    rows: list[tuple[int, str, str, int]],
    states: list[WorkerState],
    since: int,
) -> Worker:
    minutes = [0] * MINUTES_SHOWN
    groups: Counter[str] = Counter()
    for at, _, status, events in rows:
        minutes[min(MINUTES_SHOWN - 1, max(0, (at - since) // MINUTE))] += events
        groups[GROUP_OF[status]] += events
    channels = {channel for _, channel, _, _ in rows} | {one.channel for one in states}
    last = max((at for at, *_ in rows), default=0)
    named = tuple(sorted(filter(None, channels)))
    return Worker(*which, named, last, tuple(minutes), groups, tuple(states))


def _sum(numbers: list[int | None]) -> int | None:
    known = [one for one in numbers if one is not None]
    return sum(known) if known else None


def notes(state: WorkerState, now: int) -> list[str]:
    """Return remarks about a state: a worker that is not heard of, leases that are not shown."""
    load, said = state.load, []
    if state.is_stale(now):
        leases = "it held no lease then"
        if end := state.killed_leases_end:
            ends = "end" if now < end else "ended"
            leases = f"if it was killed, its leases {ends} by {moment(end)[11:19]}"
        said.append(f"{state.worker} was last heard of {ago(now - state.told)}; {leases}.")
    if load.held > len(load.leases):
        said.append(
            f"Of {load.held} leases of {state.worker}, those of the {len(load.leases)} oldest runs "
            "are shown."
        )
    return said


def condition(lease: Lease) -> str:
    """Return the condition of a run in words; mostly empty."""
    return CONDITION_WORDS.get(lease.condition, lease.condition)


def ago(milliseconds: int) -> str:
    """Return a text such as `12 s ago` or `3 minutes ago`; `now` if another clock is ahead."""
    for unit, name in LATENESS_UNITS:
        if milliseconds >= unit:
            many = milliseconds // unit
            return f"{many} {name}{'' if many == 1 else 's'} ago"
    return f"{milliseconds // 1000} s ago" if milliseconds >= 1000 else "now"
