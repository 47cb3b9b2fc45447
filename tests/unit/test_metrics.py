"""The meter: the counted numbers and their labels; an error of the meter changes no outcome."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any, get_args

import msgspec
import pytest

from eventonce import Consumer, Event, Job, Outcome, Reject, Retry, Rule, envelope
from eventonce.clock import wall_clock
from eventonce.core.reasons import (
    NOT_ALONE,
    NOT_STARTED,
    REFUSED,
    SAME_BATCH,
    forgotten,
    reason,
)
from eventonce.core.status import MEANINGS
from eventonce.errors import SourceUnavailable, StoreError, StoreUnavailable
from eventonce.metrics import Meter, measure, names
from eventonce.metrics.causes import cause_of
from eventonce.metrics.meter import Histogram
from eventonce.runtime.unhandled import POLICIES
from eventonce.stores.memory import MemoryStore
from eventonce.types import Claim, Verdict, VerdictKind
from tests.helpers import WatchedStore, away, call, reject, ruled, statuses, until


def events(meter: Meter) -> Counter[tuple[str, ...]]:
    """The outcomes by status and cause."""
    found = Counter[tuple[str, ...]]()
    for labels, number in meter.counted().counters[names.EVENTS].items():
        found[labels[:2]] += number
    return found


def values(meter: Meter, metric: names.Metric, *labels: str) -> tuple[int, float]:
    """The number of values of a histogram, and their sum."""
    found = meter.counted().histograms[metric][labels]
    return sum(found.buckets), found.total


def metered(
    store: Any = None, handler: Callable[[Job], Any] = lambda _: None, **fields: Any
) -> tuple[Consumer, Meter]:
    consumer = Consumer(store or MemoryStore(), name="crm", rules=ruled(**fields), handler=handler)
    return consumer, measure(consumer)


def test_outcomes_are_counted_by_status_cause_rule_and_type() -> None:
    consumer, meter = metered()
    consumer.process([call(1), call(2), call(1), call(1, id="again"), b"no event"])
    assert meter.counted().counters[names.EVENTS] == {
        ("done", "first_attempt", "call", "call"): 2,
        ("duplicate", "same_id", "call", "call"): 1,
        ("duplicate", "other_id", "call", "call"): 1,
        ("invalid", "not_an_event", "", ""): 1,
    }
    assert meter.counted().counters[names.DEAD_LETTERS] == {("invalid",): 1}


def test_a_copy_of_an_event_that_was_given_up_is_not_counted_as_another_dead_letter() -> None:
    consumer, meter = metered(handler=reject)
    consumer.process([call(1), call(1, id="in the same batch"), call(2)])
    consumer.process([call(1, id="later")])
    assert meter.counted().counters[names.EVENTS] == {
        ("dead", "rejected", "call", "call"): 2,
        ("dead", "given_up_before", "call", "call"): 2,
    }
    assert meter.counted().counters[names.DEAD_LETTERS] == {("dead",): 2}


def test_the_cause_of_a_failure_is_the_class_of_its_exception() -> None:
    raised: list[Exception] = [KeyError("secret"), Retry("later"), Reject("never")]

    def fail(_: Job) -> None:
        raise raised.pop(0)

    consumer, meter = metered(handler=fail, attempts=9)
    consumer.process([call(1), call(2), call(3)])
    assert events(meter) == {
        ("failed", "KeyError"): 1,
        ("failed", "Retry"): 1,
        ("dead", "rejected"): 1,
    }
    assert "secret" not in str(meter.counted())


CLAIM = Claim(b"k", 1, 1, 1, 1, order=3)
EVENT = Event(b"{}", b"{}")


def judged(status: Any, verdict: Verdict, claim: Claim = CLAIM, **more: Any) -> Outcome:
    """The outcome of a verdict, with the reason that it has in truth."""
    why = reason(claim, verdict)
    return Outcome(EVENT, status, why, "call", b"k", same_id=verdict.same_id, **more)


@pytest.mark.parametrize(
    ("outcome", "cause"),
    [
        (Outcome(EVENT, "done", attempt=1), "first_attempt"),
        (Outcome(EVENT, "done", attempt=2), "later_attempt"),
        (judged("duplicate", Verdict("duplicate", same_id=True)), "same_id"),
        (judged("duplicate", Verdict("duplicate", same_id=False)), "other_id"),
        (judged("duplicate", Verdict("duplicate")), "unknown_id"),
        (judged("stale", Verdict("stale", order=4)), "older_version"),
        (judged("unchanged", Verdict("unchanged", order=2)), "same_state"),
        (judged("busy", Verdict("busy", order=4)), "newer_version"),
        (judged("busy", Verdict("busy")), "another_run"),
        (Outcome(EVENT, "busy", NOT_ALONE, key=b"k"), "alone"),
        (Outcome(EVENT, "busy", f"{SAME_BATCH} failed", key=b"k"), "same_batch"),
        (judged("dead", Verdict("dead", order=4)), "newer_version"),
        (judged("dead", Verdict("dead", attempt=4)), "never_returned"),
        (judged("dead", Verdict("dead")), "given_up_before"),
        (Outcome(EVENT, "dead", forgotten(EVENT, CLAIM, 1), key=b"k"), "replay"),
        (Outcome(EVENT, "dead", "no handler for it"), "no_handler"),
        (judged("conflict", Verdict("conflict")), "content_differs"),
        (judged("failed", Verdict("error"), error=StoreUnavailable("away")), "store"),
        (Outcome(EVENT, "failed", "", key=b"k", error=SourceUnavailable()), "SourceUnavailable"),
        (Outcome(EVENT, "failed", "not run here", key=b"k"), "not_begun"),
        (Outcome(EVENT, "failed", "no handler for it"), "no_handler"),
        (Outcome(EVENT, "fenced", REFUSED["fenced"]), "lease_lost"),
        (Outcome(EVENT, "fenced", REFUSED["unknown"]), "unknown_run"),
        (Outcome(EVENT, "fenced", NOT_STARTED), "not_begun"),
        (Outcome(EVENT, "unguarded", "the store did not answer"), "store"),
        (Outcome(EVENT, "unguarded", "shadow: …", shadowed="duplicate"), "shadow"),
        (Outcome(EVENT, "ignored", "no handler takes it"), "no_handler"),
        (Outcome(EVENT, "ignored", "replay, reported only", key=b"k"), "replay"),
        (Outcome(None, "invalid"), "not_an_event"),
        (Outcome(EVENT, "invalid"), "no_key"),
        (Outcome(EVENT, "dead", "rejected", key=b"k", error=Reject("no")), "rejected"),
    ],
)
def test_every_status_has_a_cause_of_the_table(outcome: Outcome, cause: str) -> None:
    assert cause_of(outcome) == cause
    assert cause in names.CAUSES or cause == "SourceUnavailable"


@pytest.mark.parametrize(
    ("status", "fixed"),
    [
        ("busy", [NOT_ALONE, f"{SAME_BATCH} failed"]),
        ("dead", [forgotten(EVENT, CLAIM, 1)]),
        ("fenced", [NOT_STARTED, *REFUSED.values()]),
    ],
)
def test_each_sentence_of_a_status_has_a_cause_of_its_own(status: Any, fixed: list[str]) -> None:
    """A sentence with new words would be counted under the cause of another sentence."""
    if status in get_args(VerdictKind):
        answered = product((None, 4), (0, 2), (True, False, None), (0, 7))
        verdicts = (
            Verdict(status, order=order, attempt=attempt, same_id=same_id, wait=wait)
            for order, attempt, same_id, wait in answered
        )
        fact = msgspec.structs.replace(CLAIM, order=None)
        fixed = [
            *fixed,
            *(reason(claim, verdict) for verdict in verdicts for claim in (CLAIM, fact)),
        ]
    # Sentences that differ only in the numbers of versions and attempts are one sentence.
    sentences = {re.sub(r"\d+|None", "1", it): it for it in fixed}
    causes = {cause_of(Outcome(EVENT, status, it, key=b"k")) for it in sentences.values()}
    assert len(causes) == len(sentences), sentences


def test_a_copy_of_an_event_that_failed_in_the_same_batch_has_the_cause_same_batch() -> None:
    def fail(_: Job) -> None:
        raise KeyError

    consumer, meter = metered(handler=fail)
    consumer.process([call(1), call(1)])
    assert events(meter) == {("failed", "KeyError"): 1, ("busy", "same_batch"): 1}


def test_the_table_of_causes_covers_every_status_and_every_cause() -> None:
    given = test_every_status_has_a_cause_of_the_table.pytestmark[0].args[1]  # type: ignore[attr-defined]
    assert {outcome.status for outcome, _ in given} == set(MEANINGS)
    assert {cause for _, cause in given} >= set(names.CAUSES)


def test_two_meters_of_one_consumer_both_count_the_calls_to_its_store() -> None:
    """Prometheus or OpenTelemetry count on; the lines of a function begin anew each time."""
    consumer, meter = metered()
    taken = measure(consumer, values=True)
    assert measure(consumer) is meter
    assert measure(consumer, values=True) is taken
    consumer.process([call(1)])
    taken.expired(2)
    assert values(taken, names.STORE_SECONDS, "claim")[0] == 1
    taken.take()
    consumer.process([call(2)])
    assert values(meter, names.STORE_SECONDS, "claim")[0] == 2
    assert values(meter, names.STORE_SECONDS, "settle")[0] == 2
    assert events(meter) == {("done", "first_attempt"): 2}
    assert meter.counted().counters[names.EXPIRED_LETTERS] == {(): 2}


def test_labels_that_senders_choose_are_bounded() -> None:
    rule = Rule(name="any", key="id")
    consumer = Consumer("memory:", rules=rule, handler=lambda _: None)
    meter = measure(consumer)
    longest = "x" * 10_000
    types = [longest, *map(str, range(2 * names.MOST_TYPES))]
    consumer.process([call(at, type=name) for at, name in enumerate(types)])
    found = {labels[3]: number for labels, number in meter.counted().counters[names.EVENTS].items()}
    assert len(found) == names.MOST_TYPES + 1
    assert found["other"] == names.MOST_TYPES + 1
    assert max(map(len, found)) == 200


def test_types_that_no_handler_takes_do_not_use_up_the_labels_of_other_types() -> None:
    for unhandled in POLICIES:
        consumer = Consumer("memory:", rules=ruled(), unhandled=unhandled)
        consumer.on("call")(lambda _: None)
        meter = measure(consumer)
        others = [f"other-{at}" for at in range(2 * names.MOST_TYPES)]
        for types in (others, ["call"], others):
            consumer.process([call(at, type=name) for at, name in enumerate(types)])
        counted = meter.counted().counters[names.EVENTS]
        assert [labels[3] for labels in counted if labels[0] == "done"] == ["call"]
        found = {labels[3]: many for labels, many in counted.items() if labels[1] == "no_handler"}
        assert len(found) == names.MOST_UNHANDLED + 1
        assert found["other"] == 2 * (len(others) - names.MOST_UNHANDLED)


def test_classes_of_exceptions_are_bounded() -> None:
    def fail(job: Job) -> None:
        raise type(f"Error{job.event.detail['call']}", (Exception,), {})

    consumer, meter = metered(handler=fail)
    consumer.process([call(at) for at in range(names.MOST_ERRORS + 9)])
    causes = {labels[1] for labels in meter.counted().counters[names.EVENTS]}
    assert len(causes) == names.MOST_ERRORS + 1
    assert "other" in causes


def test_times_and_sizes_are_counted_in_buckets() -> None:
    consumer, meter = metered()
    consumer.process([call(1), call(2), call(1)])
    consumer.process(call(3))
    assert values(meter, names.HANDLER_SECONDS, "call")[0] == 3
    assert values(meter, names.BATCH_SIZE) == (2, 4)
    assert values(meter, names.BATCH_SECONDS)[0] == 2
    assert values(meter, names.STORE_SIZE, "claim") == (2, 3)
    assert values(meter, names.STORE_SIZE, "settle") == (2, 3)
    assert values(meter, names.STORE_SECONDS, "claim")[0] == 2
    buckets = meter.counted().histograms[names.BATCH_SIZE][()].buckets
    assert buckets[:3] == [1, 0, 1], "at most 1, 2 and 5"


@pytest.mark.parametrize(
    "some", [[], [7], [5, 1, 5, 2], [0, 9, 5, 100, 7, 100], [100, 100], [1, 1], [2, 1, 10]]
)
def test_many_values_at_once_are_counted_like_single_values(some: list[float]) -> None:
    at_once, one_by_one = (Histogram((1, 2, 5, 10), values=True) for _ in range(2))
    for _ in range(2):
        at_once.add_all(some)
        for value in some:
            one_by_one.add(value)
    assert at_once.buckets == one_by_one.buckets
    assert (at_once.total, at_once.values) == (one_by_one.total, one_by_one.values)


def test_a_batch_without_a_claim_is_not_counted_as_a_call_to_the_store() -> None:
    consumer = Consumer(MemoryStore(), name="crm", rules=ruled())
    consumer.on("something else")(lambda _: None)
    meter = measure(consumer)
    assert statuses(consumer.process([call(1), b"no event"])) == ["ignored", "invalid"]
    assert statuses(asyncio.run(consumer.process_async([call(2)]))) == ["ignored"]
    assert values(meter, names.STORE_SECONDS, "claim") == (0, 0.0)


def test_the_lag_is_counted_from_the_events_own_time() -> None:
    consumer, meter = metered()
    now = datetime.now(UTC)

    def at(number: int, time: str) -> dict[str, Any]:
        return {"id": str(number), "detail-type": "call", "time": time, "detail": {"call": number}}

    ago, ahead = now - timedelta(hours=2), now + timedelta(hours=2)
    naive = ago.replace(tzinfo=None)
    times = [ago.isoformat(), naive.isoformat(), ahead.isoformat(), "0001-01-01T00:00:00Z", "soon"]
    consumer.process([at(number, time) for number, time in enumerate(times)])
    number, total = values(meter, names.LAG_SECONDS)
    assert number == 3, "what is no time of an event is left out"
    assert 14_400 <= total < 14_700
    assert meter.counted().histograms[names.LAG_SECONDS][()].buckets[0] == 1, "ahead is no lag"
    consumer.process([at(1, times[0])])
    assert values(meter, names.LAG_SECONDS)[0] == 3, "a copy has no effect"


def test_the_deliveries_of_a_queue_are_counted() -> None:
    consumer, meter = metered()
    event = msgspec.structs.replace(envelope.read(call(1)), receives=4)
    consumer.process([event])
    assert values(meter, names.RECEIVED) == (1, 4)


def test_settlements_and_renewals_are_counted_by_their_result() -> None:
    began, go = threading.Event(), threading.Event()

    def wait(_: Job) -> None:
        began.set()
        assert go.wait(60)

    consumer, meter = metered(handler=wait, lease=0.15)
    thread = threading.Thread(target=consumer.process, args=(call(1),))
    thread.start()
    assert began.wait(60)
    assert len(consumer.runtime.gate.held()) == 1
    until(lambda: meter.counted().counters[names.SETTLEMENTS])
    go.set()
    thread.join()
    found = meter.counted().counters[names.SETTLEMENTS]
    assert found["complete", "kept"] == 1
    assert found["extend", "kept"] >= 1
    assert set(found) == {("complete", "kept"), ("extend", "kept")}


def test_a_run_that_another_run_has_taken_over_is_counted_as_fenced() -> None:
    store = MemoryStore()

    def lose(job: Job) -> None:
        later = wall_clock() + 3_600_000
        assert store.claim([msgspec.structs.replace(job.claim, nonce=99)], later)[0].token

    consumer, meter = metered(store, handler=lose)
    assert statuses(consumer.process(call(1))) == ["fenced"]
    assert meter.counted().counters[names.SETTLEMENTS] == {("complete", "fenced"): 1}


def test_a_run_that_takes_over_from_an_ended_process_is_counted_as_a_takeover() -> None:
    store = MemoryStore()
    consumer, meter = metered(store)
    (plan,) = consumer.runtime.plan(call(1))
    claim = msgspec.structs.replace(plan.claim, lease=1)  # type: ignore[union-attr]
    assert store.claim([claim], now=wall_clock() - 60_000)[0].token, "whose process ends here"
    assert statuses(consumer.process([call(1), call(2)])) == ["done", "done"]
    assert meter.counted().counters[names.TAKEOVERS] == {(): 1}
    assert events(meter) == {("done", "later_attempt"): 1, ("done", "first_attempt"): 1}


@pytest.mark.parametrize("verb", ["claim", "settle"])
def test_an_unavailable_store_is_counted_and_its_error_is_in_the_outcome(
    verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eventonce.runtime.runtime.SETTLE_PAUSES", ())
    consumer, meter = metered(WatchedStore(away(verb)))
    (outcome,) = consumer.process(call(1))
    assert (outcome.status, type(outcome.error)) == ("failed", StoreUnavailable)
    assert meter.counted().counters[names.STORE_ERRORS] == {(verb, "StoreUnavailable"): 1}
    assert events(meter) == {("failed", "store"): 1}


def test_each_claim_that_the_store_cannot_judge_is_counted_as_an_error() -> None:
    def look(verb: str, asked: Sequence[Any]) -> Any:
        return [Verdict("error", error=StoreError("too large"))] * len(asked)

    consumer, meter = metered(WatchedStore(look))
    consumer.process([call(1), call(2)])
    assert meter.counted().counters[names.STORE_ERRORS] == {("claim", "StoreError"): 2}


def test_an_error_in_the_meter_changes_no_outcome(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    consumer, _ = metered()

    def broken(*_: object) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(Histogram, "add", broken)
    assert statuses(consumer.process([call(1), call(1)])) == ["done", "duplicate"]
    consumer, _ = metered(WatchedStore(away("claim")))
    (outcome,) = consumer.process([call(1)])
    assert isinstance(outcome.error, StoreError)
    assert caplog.text.count("a call to the store is not counted") == 3


def test_a_consumer_without_a_meter_has_no_meter_and_no_observers() -> None:
    consumer = Consumer("memory:", rules=ruled(), handler=lambda _: None)
    assert consumer.runtime.gate.meter is None
    assert consumer.observers == []


def test_numbers_that_were_taken_are_not_counted_again() -> None:
    consumer = Consumer("memory:", rules=ruled(), handler=lambda _: None)
    meter = measure(consumer, values=True)
    consumer.process([call(1), call(2)])
    taken = meter.take()
    assert sum(taken.counters[names.EVENTS].values()) == 2
    assert taken.histograms[names.BATCH_SIZE][()].values == [2]
    taken = meter.take()
    assert not any(taken.counters.values())
    assert not [one for some in taken.histograms.values() for one in some.values() if one.values]


def test_events_of_several_threads_are_all_counted() -> None:
    consumer, meter = metered()

    def work(first: int) -> None:
        for number in range(first, first + 200):
            consumer.process([call(number), call(number)])

    threads = [threading.Thread(target=work, args=(200 * at,)) for at in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert events(meter) == {("done", "first_attempt"): 800, ("duplicate", "same_id"): 800}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_while_another_thread_counts_does_not_block_the_child() -> None:
    consumer, meter = metered()
    with meter._lock:
        child = os.fork()
        if not child:
            signal.alarm(30)
            os._exit(0 if consumer.process(call(1))[0].status == "done" else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_the_names_follow_the_customs_of_prometheus() -> None:
    assert len({metric.name for metric in names.METRICS}) == len(names.METRICS)
    for metric in names.METRICS:
        assert metric.name.startswith("eventonce_")
        assert metric.name.endswith("_total") == (metric.kind == "counter")
        assert bool(metric.bounds) == (metric.kind == "histogram")
        assert list(metric.bounds) == sorted(set(metric.bounds))
        assert metric.meaning.endswith(".")
        assert names.CONSUMER not in metric.labels
