"""Snapshots of store, history and workers, shared by all live pages: many pages cost no more than
one."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from math import inf
from typing import Any, Final, Generic, TypeVar

import msgspec

from eventonce.clock import wall_clock
from eventonce.core.ports import Stats
from eventonce.core.reasons import GIVEN_UP_BEFORE
from eventonce.dashboard.blocking_calls import BlockingCalls, Unavailable
from eventonce.dashboard.health import HEALTH_SPAN, Health, Seen, health
from eventonce.dashboard.resources import Resources
from eventonce.history.summary import GROUP_OF, GROUPS, SUMMARY_FIELDS, Summary, summary
from eventonce.history.tables import MINUTE
from eventonce.history.workers import Worker, read_workers
from eventonce.markup import counted

SNAPSHOT_INTERVAL: Final = 1.0
"""Seconds between two snapshots while a live page is open; otherwise none are taken."""

STORE_INTERVAL: Final = 5.0
"""Seconds between two snapshots of the store."""

SLOW_FACTOR: Final = 20
"""A slow snapshot is repeated after this many times its own duration."""

LONGEST_GAP: Final = 15.0
"""The most seconds between two snapshots, however slow they are: an outage may be over."""

RATE_SPAN: Final = 5.0
"""Seconds over which a rate is averaged: the history is written once a second."""

RATE_GAP: Final = 15.0
"""Seconds without a snapshot after which rates begin anew; for the time between, the history has
the counts by the minute."""

MOST_POINTS: Final = 600
"""The most snapshots whose rates are remembered for the plot: ten minutes."""

STORE_SNAPSHOTS: Final = 120
"""The most snapshots of the store that are remembered: ten minutes."""

FIRST_WAIT: Final = 0.4
"""Seconds that a page waits for the first snapshot of the store; after that it is shown without."""

Found = TypeVar("Found")


class StoreSnapshot(msgspec.Struct, frozen=True):
    """The state of the store at one moment."""

    at: int = 0
    latency: float | None = None
    """Milliseconds for a claim that writes nothing."""
    stats: Stats | None = None
    fault: str = ""


class Snapshot(msgspec.Struct, frozen=True):
    """The health and the rates at one moment."""

    health: Health
    rates: Mapping[str, float] | None
    """Events a second, by group of outcomes; None in the first snapshot: a rate needs two."""


class Range(msgspec.Struct, frozen=True):
    """A span of time until now that people can choose."""

    name: str
    words: str
    span: int
    """The span in milliseconds."""
    step: int
    """Milliseconds of one point of the plot."""


RANGES: Final = {
    one.name: one
    for one in (
        Range("10m", "10 minutes", 10 * MINUTE, MINUTE),
        Range("1h", "hour", 60 * MINUTE, MINUTE),
        Range("24h", "24 hours", 24 * 60 * MINUTE, 15 * MINUTE),
        Range("7d", "7 days", 7 * 24 * 60 * MINUTE, 120 * MINUTE),
        Range("30d", "30 days", 30 * 24 * 60 * MINUTE, 480 * MINUTE),
    )
}
LIVE_RANGE: Final = RANGES["10m"]
"""The range whose plot has a point a second while a live page is open."""


class Past(msgspec.Struct, frozen=True):
    """The decisions in a range, counted."""

    since: int
    summary: Summary
    points: tuple[tuple[int, Mapping[str, float]], ...]
    """The begin of each step, and its events a second by group."""


class Shared(Generic[Found]):
    """A cached result of one question, which is asked again on demand when it is too old."""

    def __init__(self, ask: Callable[[], Awaitable[Found]], interval: float) -> None:
        self._ask = ask
        self._interval = interval
        self._lock = asyncio.Lock()
        self._due = -inf
        self._away: Unavailable | None = None
        self.last: Found | None = None

    async def get(self) -> Found:
        """Return the result. One question runs at a time, and all waiting callers share its result
        or its failure: otherwise each of them would wait for the timeout in turn."""
        async with self._lock:
            if time.monotonic() >= self._due:
                began = time.monotonic()
                try:
                    self.last, self._away = await self._ask(), None
                except Unavailable as error:
                    self._away = error
                now = time.monotonic()
                self._due = now + max(self._interval, min(SLOW_FACTOR * (now - began), LONGEST_GAP))
            if self._away is not None:
                raise Unavailable(str(self._away)) from self._away
            assert self.last is not None
            return self.last


class Snapshots:
    """The snapshots of one dashboard."""

    def __init__(
        self, resources: Resources, ask_store: BlockingCalls, ask_history: BlockingCalls
    ) -> None:
        self._resources = resources
        self._ask_store = ask_store
        self._ask_history = ask_history
        self.latest = Shared(self._take_snapshot, SNAPSHOT_INTERVAL * 0.9)
        self.store = Shared(self._look_at_store, STORE_INTERVAL)
        self.past = {
            name: Shared(partial(self._ask_for_past, one), SNAPSHOT_INTERVAL * 0.9)
            for name, one in RANGES.items()
        }
        """The counts of each range, by its name; `Unavailable` without a history."""
        self.workers = Shared(self._ask_for_workers, SNAPSHOT_INTERVAL * 0.9)
        """The workers of the last hour, the busiest first; `Unavailable` without a history."""
        self._at_store: asyncio.Task[StoreSnapshot] | None = None
        self._known: dict[tuple[int, str], int] = {}
        self._deltas: deque[tuple[float, Counter[str]]] = deque()
        self._points: deque[tuple[int, Mapping[str, float]]] = deque(maxlen=MOST_POINTS)
        self.store_snapshots: deque[StoreSnapshot] = deque(maxlen=STORE_SNAPSHOTS)
        """The last snapshots of the store."""
        self.ended = asyncio.Event()
        """Set when the server ends, so that streams stop."""

    async def _take_snapshot(self) -> Snapshot:
        store = await self._store_for_now()
        now = wall_clock()
        recent: Counter[str] = Counter()
        again, fault = 0, ""
        if self._resources.history:
            try:
                counted, again = await self._ask_history(lambda: self._counted(now))
            except Unavailable as error:
                fault = str(error)
            else:
                for _, (status,), events, _ in counted:
                    recent[status] += events
                self._take_rates(counted)
        rates = self._rates()
        if rates is not None and not fault:
            self._points.append((now, rates))
        seen = Seen(
            recent=recent,
            given_up_before=again,
            rate=sum(rates.values()) if rates is not None else None,
            no_history=not self._resources.history,
            history_fault=fault,
            store_fault=store.fault,
            stats=store.stats,
            queue=bool(self._resources.letters),
            worker_fault=self._worker_fault(),
        )
        return Snapshot(health(seen), rates)

    def _counted(self, now: int) -> tuple[list[tuple[int, tuple[Any, ...], int, int]], int]:
        """Return the counts by minute and status, and the number of decisions about copies of
        events that were given up, which the counts do not have."""
        history, since = self._resources.looking, (now // MINUTE - HEALTH_SPAN + 1) * MINUTE
        counted = history.counts(since, now + MINUTE, ("status",))
        if not any(status == "dead" for _, (status,), *_ in counted):
            return counted, 0
        return counted, history.count_lately("dead", GIVEN_UP_BEFORE, since)

    def _take_rates(self, counted: list[tuple[int, tuple[Any, ...], int, int]]) -> None:
        known, self._known = (
            self._known,
            {(minute, status): events for minute, (status,), events, _ in counted},
        )
        moment = time.monotonic()
        if not self._deltas or moment - self._deltas[-1][0] > RATE_GAP:
            self._deltas.clear()
            self._points.clear()
            self._deltas.append((moment, Counter()))
            return
        delta: Counter[str] = Counter()
        for which, events in self._known.items():
            delta[GROUP_OF[which[1]]] += max(0, events - known.get(which, 0))
        self._deltas.append((moment, delta))
        while len(self._deltas) > 2 and self._deltas[1][0] < moment - RATE_SPAN:
            self._deltas.popleft()

    def _rates(self) -> Mapping[str, float] | None:
        """Return the mean of the deltas, without the first one, whose duration is unknown."""
        if len(self._deltas) < 2:
            return None
        took = self._deltas[-1][0] - self._deltas[0][0]
        total: Counter[str] = Counter()
        for _, delta in list(self._deltas)[1:]:
            total.update(delta)
        return {group: total[group] / took for group in GROUPS}

    async def _store_for_now(self) -> StoreSnapshot:
        """Return the last snapshot of the store; a new one is taken in the background."""
        if self._at_store is None or self._at_store.done():
            self._at_store = asyncio.ensure_future(self.store.get())
            await asyncio.wait(
                [self._at_store], timeout=FIRST_WAIT if self.store.last is None else 0
            )
        return self.store.last or StoreSnapshot()

    async def _look_at_store(self) -> StoreSnapshot:
        try:
            latency = await self._ask_store(self._resources.probe)
            stats = await self._ask_store(self._resources.stats)
        except Unavailable as error:
            found = StoreSnapshot(wall_clock(), fault=str(error))
        else:
            found = StoreSnapshot(wall_clock(), latency, stats)
        self.store_snapshots.append(found)
        return found

    async def _ask_for_workers(self) -> list[Worker]:
        return await self._ask_history(lambda: read_workers(self._resources.looking, wall_clock()))

    async def _ask_for_past(self, range_: Range) -> Past:
        return await self._ask_history(lambda: self._read_past(range_))

    def _read_past(self, range_: Range) -> Past:
        now = wall_clock()
        since = (now - range_.span) // range_.step * range_.step
        counted = self._resources.looking.counts(since, now + MINUTE, SUMMARY_FIELDS, range_.step)
        by_step: dict[int, Counter[str]] = {}
        for begin, (status, *_), events, _ in counted:
            by_step.setdefault(begin, Counter())[GROUP_OF[status]] += events
        points = []
        for begin in range(since, now, range_.step):
            counts = by_step.get(begin, Counter())
            seconds = (min(begin + range_.step, now) - begin) / 1000
            rates = {group: counts[group] / max(1.0, seconds) for group in GROUPS}
            points.append((begin, rates))
        return Past(since, summary(counted), tuple(points))

    def plotted(self, range_: Range, past: Past) -> list[tuple[int, Mapping[str, float]]]:
        """Return the points of the plot. The live range has the rates of snapshots, and before
        them the counts by minute from the history."""
        points = list(past.points)
        if range_ is LIVE_RANGE and self._points:
            first = self._points[0][0]
            middle = range_.step // 2
            points = [(min(at + middle, first - 1000), rates) for at, rates in points if at < first]
            points += [one for one in self._points if one[0] >= past.since]
        return points

    def _worker_fault(self) -> str:
        state = self._resources.state() if self._resources.state is not None else {}
        if state.get("draining"):
            return "The worker is ending."
        if not state.get("live", True):
            return "The worker has failed; its log says why."
        overdue = state.get("overdue", 0)
        if overdue:
            have = "has" if overdue == 1 else "have"
            many = counted(overdue, "handler")
            return f"{many} {have} run for longer than the timeout of the rule."
        return ""
