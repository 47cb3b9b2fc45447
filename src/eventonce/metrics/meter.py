"""The meter: counts what a consumer does, as an observer of its outcomes and of its store calls."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from operator import attrgetter
from threading import Lock
from time import perf_counter
from typing import Final, NamedTuple, TypeVar
from weakref import WeakSet

from eventonce.clock import wall_clock
from eventonce.consumer import Consumer
from eventonce.core import status
from eventonce.log import log
from eventonce.metrics import names
from eventonce.metrics.causes import COPIES, cause_of
from eventonce.metrics.names import Metric
from eventonce.rules.instants import EARLIEST_EVENT, instant
from eventonce.types import Claim, Outcome, Settlement, SettleResult, Verdict

Item = TypeVar("Item")
Answer = TypeVar("Answer")

LONGEST: Final = 200
"""Characters of a type in a label: a type may be as long as an event."""

Labels = tuple[str, ...]

_action: Final = attrgetter("action")


class Histogram:
    """Values by bucket, and their sum."""

    __slots__ = ("buckets", "total", "values")

    def __init__(self, metric: Metric, *, values: bool) -> None:
        self.buckets = [0] * (len(metric.bounds) + 1)
        """How many values are at most each bound and above the one before; the rest at the end."""
        self.total = 0.0
        self.values: list[float] | None = [] if values else None
        """The values themselves, where they are asked for."""

    def add(self, bounds: Sequence[float], values: Sequence[float]) -> None:
        """Count these."""
        buckets = self.buckets
        for value in values:
            buckets[bisect_left(bounds, value)] += 1
        self.total += sum(values)
        if self.values is not None:
            self.values += values


class Counted(NamedTuple):
    """What was counted, by metric and labels."""

    counters: Mapping[Metric, Counter[Labels]]
    histograms: Mapping[Metric, Mapping[Labels, Histogram]]


class Meter:
    """Counts for one consumer; safe in many threads.

    Guaranteed: what goes wrong in the meter changes no outcome and no answer of the store.
    """

    def __init__(self, consumer: str, *, values: bool = False) -> None:
        """With `values`, histograms keep their values too, until they are taken."""
        self.consumer = consumer
        self._keep_values = values
        self._lock = Lock()
        self._types: dict[str, str] = {}
        self._errors: dict[str, str] = {}
        self._begin()
        _meters.add(self)

    def _begin(self) -> None:
        self._events = Counter[Labels]()
        self._counters: dict[Metric, Counter[Labels]] = {}
        self._histograms: dict[Metric, dict[Labels, Histogram]] = {}

    def batch(self, outcomes: Sequence[Outcome], seconds: float, /) -> None:
        """Count the outcomes of a batch."""
        now = wall_clock()
        labels: list[Labels] = []
        took: dict[str, list[float]] = {}
        lags: list[float] = []
        with self._lock:
            types = self._types
            for outcome in outcomes:
                event, rule, attempt = outcome.event, outcome.rule, outcome.attempt
                type_ = types.get(event.type) if event is not None else ""
                if outcome.status == "done" and event is not None:
                    cause = "first_attempt" if attempt == 1 else "later_attempt"
                    at = _instant(event.time) if event.time else None
                    if at is not None:
                        lags.append((now - at) / 1000)
                elif outcome.status == "duplicate":
                    cause = COPIES[outcome.same_id]
                else:
                    cause = self._cause(outcome)
                if type_ is None:
                    type_ = _bounded(types, event.type if event is not None else "", names.TYPES)
                labels.append((outcome.status, cause, rule, type_))
                if attempt:
                    if rule in took:
                        took[rule].append(outcome.took)
                    else:
                        took[rule] = [outcome.took]
            self._events.update(labels)
            for rule, some in took.items():
                self._observe(names.HANDLER_SECONDS, (rule,), some)
            # A sender's clock may be ahead of ours.
            self._observe(names.LAG_SECONDS, (), [max(0.0, lag) for lag in lags])
            self._observe(names.RECEIVED, (), _receives(outcomes))
            self._observe(names.BATCH_SIZE, (), [len(outcomes)])
            self._observe(names.BATCH_SECONDS, (), [seconds])

    def claim(
        self, call: Callable[[Sequence[Claim]], list[Verdict]], claims: Sequence[Claim]
    ) -> list[Verdict]:
        """The store's answer to these claims, counted."""
        verdicts, seconds = self._called("claim", call, claims)
        with _OWN_PROBLEM, self._lock:
            self._answered("claim", len(claims), seconds)
            taken = 0
            for verdict in verdicts:
                if verdict.alone:
                    taken += 1
                elif verdict.kind == "error":
                    self._failed("claim", verdict.error)
            if taken:
                self._counter(names.TAKEOVERS)[()] += taken
        return verdicts

    def settle(
        self,
        call: Callable[[Sequence[Settlement]], list[SettleResult]],
        settlements: Sequence[Settlement],
    ) -> list[SettleResult]:
        """The store's answer to these settlements, counted."""
        results, seconds = self._called("settle", call, settlements)
        with _OWN_PROBLEM, self._lock:
            self._answered("settle", len(settlements), seconds)
            settled = zip(map(_action, settlements), results, strict=False)
            self._counter(names.SETTLEMENTS).update(settled)
        return results

    def counted(self) -> Counted:
        """What was counted since the beginning."""
        with self._lock:
            counters = {metric: counts.copy() for metric, counts in self._counters.items()}
            counters[names.EVENTS] = self._events.copy()
            histograms = {
                metric: {labels: _copy(one, metric) for labels, one in some.items()}
                for metric, some in self._histograms.items()
            }
        return _with_letters(counters, histograms)

    def take(self) -> Counted:
        """What was counted since the last time; the meter begins anew."""
        with self._lock:
            counters, histograms = self._counters, self._histograms
            counters[names.EVENTS] = self._events
            self._begin()
        return _with_letters(counters, histograms)

    def _called(
        self, verb: str, call: Callable[[Sequence[Item]], list[Answer]], items: Sequence[Item]
    ) -> tuple[list[Answer], float]:
        began = perf_counter()
        try:
            answers = call(items)
        except Exception as error:
            with _OWN_PROBLEM, self._lock:
                self._answered(verb, len(items), perf_counter() - began)
                self._failed(verb, error)
            raise
        return answers, perf_counter() - began

    def _answered(self, verb: str, size: int, seconds: float) -> None:
        self._observe(names.STORE_SECONDS, (verb,), [seconds])
        self._observe(names.STORE_SIZE, (verb,), [size])

    def _failed(self, verb: str, error: Exception | None) -> None:
        name = _bounded(self._errors, type(error).__name__, names.ERRORS)
        self._counter(names.STORE_ERRORS)[verb, name] += 1

    def _cause(self, outcome: Outcome) -> str:
        cause = cause_of(outcome)
        return cause if cause in names.CAUSES else _bounded(self._errors, cause, names.ERRORS)

    def _counter(self, metric: Metric) -> Counter[Labels]:
        return self._counters.setdefault(metric, Counter())

    def _observe(self, metric: Metric, labels: Labels, values: Sequence[float]) -> None:
        if not values:
            return
        some = self._histograms.setdefault(metric, {})
        one = some.get(labels)
        if one is None:
            one = some[labels] = Histogram(metric, values=self._keep_values)
        one.add(metric.bounds, values)


def measure(consumer: Consumer, *, values: bool = False) -> Meter:
    """A meter for this consumer: told of its outcomes, and of its calls to the store."""
    meter = Meter(consumer.name, values=values)
    consumer.observers.append(meter)
    consumer.runtime.gate.meter = meter
    return meter


class _OwnProblem:
    """Around what is counted of a call: the answer of the store is there, and must be heard."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        if not isinstance(error, Exception):
            return False
        log().error("metrics: a call to the store is not counted", exc_info=error)
        return True


_OWN_PROBLEM: Final = _OwnProblem()


def _bounded(known: dict[str, str], name: str, most: int) -> str:
    """The label of a name: itself, or `other` if there are too many. The lock is the caller's."""
    label = known.get(name)
    if label is None:
        if len(known) >= most:
            return names.OTHER
        label = known[name] = name[:LONGEST]
    return label


def _receives(outcomes: Sequence[Outcome]) -> list[float]:
    events = [outcome.event for outcome in outcomes if outcome.event is not None]
    return [event.receives for event in events if event.receives]


# The events of one second often have one time.
@lru_cache(maxsize=256)
def _instant(text: str) -> int | None:
    """The time of an event in milliseconds; None for what is no time of one."""
    try:
        moment = datetime.fromisoformat(text)
        at = int(moment.timestamp() * 1000) if moment.tzinfo is not None else instant(text)
    except (ValueError, OverflowError):
        at = instant(text)
    return at if at is not None and at >= EARLIEST_EVENT else None


def _with_letters(
    counters: dict[Metric, Counter[Labels]],
    histograms: Mapping[Metric, Mapping[Labels, Histogram]],
) -> Counted:
    letters = Counter[Labels]()
    for (outcome_status, _, rule, _), number in counters[names.EVENTS].items():
        if outcome_status in status.DEAD_LETTERS:
            letters[outcome_status, rule] += number
    counters[names.DEAD_LETTERS] = letters
    return Counted(counters, histograms)


def _copy(one: Histogram, metric: Metric) -> Histogram:
    copied = Histogram(metric, values=False)
    copied.buckets, copied.total = list(one.buckets), one.total
    return copied


_meters: Final = WeakSet[Meter]()


def _begin_anew() -> None:
    """In the child of a fork nobody holds a lock that another thread of the parent held."""
    for meter in _meters:
        meter._lock = Lock()  # noqa: SLF001  the module's own


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)
