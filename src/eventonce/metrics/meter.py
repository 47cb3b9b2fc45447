"""The meter: an observer that counts the outcomes and the store calls of a consumer."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import Final, NamedTuple, TypeVar

from eventonce import forks
from eventonce.clock import wall_clock
from eventonce.consumer import Consumer
from eventonce.core import status
from eventonce.log import log
from eventonce.metrics import names
from eventonce.metrics.causes import GIVEN_UP_AGAIN, NO_HANDLER, cause_of
from eventonce.metrics.names import Metric
from eventonce.rules.instants import EARLIEST_EVENT, event_instant
from eventonce.types import Claim, Outcome, Settlement, SettleResult, Verdict

LONGEST_TYPE: Final = 200
"""The most characters of a type in a label: a type may be as long as an event."""

Labels = tuple[str, ...]

Asked = TypeVar("Asked", Claim, Settlement)
Answer = TypeVar("Answer", Verdict, SettleResult)


class Histogram:
    """Values by bucket, and their sum."""

    __slots__ = ("bounds", "buckets", "total", "values")

    def __init__(self, bounds: Sequence[float], *, values: bool) -> None:
        self.bounds = bounds
        self.buckets = [0] * (len(bounds) + 1)
        """The number of values up to each bound, above the bound before; the last has the rest."""
        self.total = 0.0
        self.values: list[float] | None = [] if values else None
        """The values themselves; None if they are not kept."""

    def add(self, value: float) -> None:
        """Count this value."""
        self.buckets[bisect_left(self.bounds, value)] += 1
        self.total += value
        if self.values is not None:
            self.values.append(value)

    def add_all(self, values: Sequence[float]) -> None:
        """Count these values, none of which is NaN."""
        if not values:
            return
        if len(values) == 1:
            self.add(values[0])
            return
        bounds, buckets = self.bounds, self.buckets
        # By bucket, not by value: most values of a batch are in one or two buckets.
        ordered, begin = sorted(values), 0
        for bucket in range(bisect_left(bounds, ordered[0]), len(bounds)):
            end = bisect_right(ordered, bounds[bucket], begin)
            buckets[bucket] += end - begin
            begin = end
            if end == len(ordered):
                break
        buckets[-1] += len(ordered) - begin
        self.total += sum(values)
        if self.values is not None:
            self.values += values

    def copy(self) -> Histogram:
        """Return a copy without the values."""
        copied = Histogram(self.bounds, values=False)
        copied.buckets, copied.total = list(self.buckets), self.total
        return copied


class Counted(NamedTuple):
    """The counts by metric and labels."""

    counters: Mapping[Metric, Mapping[Labels, int]]
    histograms: Mapping[Metric, Mapping[Labels, Histogram]]

    def counts(self, metric: Metric) -> Mapping[Labels, int]:
        """Return the numbers of a counter, with a 0 for labels that are known beforehand."""
        return {**dict.fromkeys(metric.zeros, 0), **self.counters[metric]}


Record = Callable[[Metric, Labels, Sequence[float]], None]
"""A callback that gets the values of a histogram as they come."""


class Meter:
    """The counts of one consumer; thread-safe.

    Guaranteed: an error in the meter changes no outcome and no answer of the store.
    """

    def __init__(self, consumer: str, *, values: bool = False) -> None:
        """With `values`, histograms also keep their values, until `take` is called."""
        self.consumer = consumer
        self.keeps_values = values
        self.record: Record | None = None
        """The callback for every value of every histogram, called outside the meter's lock."""
        self.beside: Meter | None = None
        """Another meter of the same consumer: a gate has one meter, which calls the next."""
        self._lock = forks.lock_of(self)
        self._types: dict[str, str] = {}
        self._unhandled: dict[str, str] = {}
        self._errors: dict[str, str] = {}
        self._begin()

    def _begin(self) -> None:
        self._counters: dict[Metric, Counter[Labels]] = {
            metric: Counter() for metric in names.METRICS if metric.kind == "counter"
        }
        self._histograms: dict[Metric, dict[Labels, Histogram]] = {
            metric: {} for metric in names.METRICS if metric.kind == "histogram"
        }
        self._lag = self._histogram(names.LAG_SECONDS, ())
        self._received = self._histogram(names.RECEIVED, ())
        self._batch_size = self._histogram(names.BATCH_SIZE, ())
        self._batch_seconds = self._histogram(names.BATCH_SECONDS, ())
        self._called = {
            verb: (
                self._histogram(names.STORE_SECONDS, (verb,)),
                self._histogram(names.STORE_SIZE, (verb,)),
            )
            for verb in ("claim", "settle")
        }

    def batch(self, outcomes: Sequence[Outcome], seconds: float, /) -> None:
        """Count the outcomes of a batch."""
        now = wall_clock()
        took: dict[str, list[float]] = {}
        lags: list[float] = []
        receives: list[float] = []
        with self._lock:
            types, unhandled = self._types, self._unhandled
            counted: list[Labels] = []
            for outcome in outcomes:
                event, status_, rule = outcome.event, outcome.status, outcome.rule
                cause = cause_of(outcome)
                type_ = ""
                if event is not None:
                    label = (unhandled if cause == NO_HANDLER else types).get(event.type)
                    type_ = self._new_type(event.type, cause) if label is None else label
                    if event.receives:
                        receives.append(event.receives)
                    if status_ == "done" and event.time:
                        at = event_instant(event.time)
                        if at is not None and at >= EARLIEST_EVENT:
                            # A sender's clock may be ahead of ours.
                            lags.append((now - at) / 1000 if now > at else 0.0)
                if cause not in names.CAUSES:
                    cause = _bounded(self._errors, cause, names.MOST_ERRORS)
                counted.append((status_, cause, rule, type_))
                if outcome.attempt:
                    some = took.get(rule)
                    if some is None:
                        some = took[rule] = []
                    some.append(outcome.took)
            events = self._counters[names.EVENTS]
            if len(counted) == 1:
                # `update` is slower for a single event.
                events[counted[0]] += 1
            else:
                events.update(counted)
            for rule, some in took.items():
                self._histogram(names.HANDLER_SECONDS, (rule,)).add_all(some)
            self._lag.add_all(lags)
            self._received.add_all(receives)
            self._batch_size.add(len(outcomes))
            self._batch_seconds.add(seconds)
        if self.record is not None:
            _tell(self.record, took, lags, receives, [len(outcomes)], [seconds])

    def claim(
        self, call: Callable[[Sequence[Claim]], list[Verdict]], claims: Sequence[Claim]
    ) -> list[Verdict]:
        """Ask the store about these claims, and count its answer."""
        if self.beside is not None:
            call = partial(self.beside.claim, call)
        return self._measured("claim", call, claims, self._judged)

    def settle(
        self,
        call: Callable[[Sequence[Settlement]], list[SettleResult]],
        settlements: Sequence[Settlement],
    ) -> list[SettleResult]:
        """Settle these in the store, and count its answer."""
        if self.beside is not None:
            call = partial(self.beside.settle, call)
        return self._measured("settle", call, settlements, self._settled)

    def expired(self, letters: int) -> None:
        """Count dead letters that were dropped for their age."""
        with self._lock:
            self._counters[names.EXPIRED_LETTERS][()] += letters
        if self.beside is not None:
            self.beside.expired(letters)

    def counted(self) -> Counted:
        """Return the counts since the start or the last `take`."""
        with self._lock:
            counters = {metric: dict(counts) for metric, counts in self._counters.items()}
            histograms = {
                metric: {labels: one.copy() for labels, one in some.items()}
                for metric, some in self._histograms.items()
            }
        return _with_letters(counters, histograms)

    def take(self) -> Counted:
        """Return the counts since the last `take`, and reset them."""
        with self._lock:
            counters, histograms = self._counters, self._histograms
            self._begin()
        return _with_letters(counters, histograms)

    def _measured(
        self,
        verb: str,
        call: Callable[[Sequence[Asked]], list[Answer]],
        asked: Sequence[Asked],
        count: Callable[[Sequence[Asked], list[Answer]], None],
    ) -> list[Answer]:
        began = perf_counter()
        try:
            answers = call(asked)
        except Exception as error:
            took = perf_counter() - began
            self._count(verb, len(asked), took, partial(self._failed, verb, error))
            raise
        self._count(verb, len(asked), perf_counter() - began, partial(count, asked, answers))
        return answers

    def _count(self, verb: str, size: int, seconds: float, count: Callable[[], None]) -> None:
        try:
            with self._lock:
                in_seconds, in_size = self._called[verb]
                in_seconds.add(seconds)
                in_size.add(size)
                count()
            if self.record is not None:
                self.record(names.STORE_SECONDS, (verb,), [seconds])
                self.record(names.STORE_SIZE, (verb,), [size])
        except Exception as problem:  # noqa: BLE001  the store's answer or error must be heard
            log().error("metrics: a call to the store is not counted", exc_info=problem)

    def _judged(self, _: Sequence[Claim], verdicts: Sequence[Verdict]) -> None:
        for verdict in verdicts:
            if verdict.alone:
                self._counters[names.TAKEOVERS][()] += 1
            elif verdict.error is not None:
                self._failed("claim", verdict.error)

    def _settled(self, settlements: Sequence[Settlement], results: Sequence[SettleResult]) -> None:
        counts = self._counters[names.SETTLEMENTS]
        for settlement, result in zip(settlements, results, strict=False):
            counts[settlement.action, result] += 1

    def _failed(self, verb: str, error: Exception | None) -> None:
        name = _bounded(self._errors, type(error).__name__, names.MOST_ERRORS)
        self._counters[names.STORE_ERRORS][verb, name] += 1

    def _new_type(self, name: str, cause: str) -> str:
        if cause == NO_HANDLER:
            return _bounded(self._unhandled, name, names.MOST_UNHANDLED)
        return _bounded(self._types, name, names.MOST_TYPES)

    def _histogram(self, metric: Metric, labels: Labels) -> Histogram:
        some = self._histograms[metric]
        one = some.get(labels)
        if one is None:
            one = some[labels] = Histogram(metric.bounds, values=self.keeps_values)
        return one


def measure(consumer: Consumer, *, values: bool = False) -> Meter:
    """Return the meter of this consumer; made and registered if there is none yet."""
    first = consumer.runtime.gate.meter
    known = first = first if isinstance(first, Meter) else None
    while known is not None:
        if known.keeps_values == values:
            return known
        known = known.beside
    meter = Meter(consumer.name, values=values)
    meter.beside = first
    consumer.observers.append(meter)
    consumer.runtime.gate.meter = meter
    if consumer.runtime.retention is not None:
        consumer.runtime.retention.told = meter.expired
    return meter


def _tell(
    record: Record,
    took: Mapping[str, Sequence[float]],
    lags: Sequence[float],
    receives: Sequence[float],
    size: Sequence[float],
    seconds: Sequence[float],
) -> None:
    for rule, some in took.items():
        record(names.HANDLER_SECONDS, (rule,), some)
    record(names.LAG_SECONDS, (), lags)
    record(names.RECEIVED, (), receives)
    record(names.BATCH_SIZE, (), size)
    record(names.BATCH_SECONDS, (), seconds)


def _bounded(known: dict[str, str], name: str, most: int) -> str:
    """Return the name, or `other` if there are too many names. The caller holds the lock."""
    label = known.get(name)
    if label is None:
        if len(known) >= most:
            return names.OTHER_LABEL
        label = known[name] = name[:LONGEST_TYPE]
    return label


def _with_letters(
    counters: Mapping[Metric, Mapping[Labels, int]],
    histograms: Mapping[Metric, Mapping[Labels, Histogram]],
) -> Counted:
    letters: dict[Labels, int] = defaultdict(int)
    for (outcome_status, cause, *_), number in counters[names.EVENTS].items():
        # A copy of an event that was given up is the same dead letter again.
        if outcome_status in status.DEAD_LETTERS and cause != GIVEN_UP_AGAIN:
            letters[outcome_status,] += number
    return Counted({**counters, names.DEAD_LETTERS: letters}, histograms)
