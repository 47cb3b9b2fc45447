from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import inf
from typing import Any

import pytest

from eventonce import Consumer
from eventonce.core.ports import Delivery, Source
from eventonce.errors import (
    ConfigError,
    EventonceError,
    SourceUnavailable,
    StoreError,
    StoreMismatch,
    StoreUnavailable,
)
from eventonce.stores.memory import MemoryStore
from eventonce.stores.probe import PROBE
from eventonce.types import Claim, Job, Outcome, Verdict
from eventonce.worker import ExitReport, Worker, WorkerSettings, availability
from eventonce.worker.worker import HANDOVER_DELAY
from tests.helpers import PATIENCE, WatchedStore, away, call, full, is_probe, reject, ruled, until


class InMemorySource:
    """A custom source: a worker needs only the methods of the port."""

    ended = False

    def __init__(self, *, hold: float = inf) -> None:
        self.hold = hold
        self.waiting: list[Delivery] = []
        self.acknowledged: list[Delivery] = []
        self.postponed: list[tuple[Delivery, float]] = []
        self.fault: Exception | None = None
        self.faults = 0
        self._lock = threading.Lock()

    def receive(self, most: int) -> list[Delivery]:
        if self.fault is not None:
            with self._lock:
                self.faults += 1
            raise self.fault
        with self._lock:
            given, self.waiting = self.waiting[:most], self.waiting[most:]
        if not given:
            time.sleep(0.01)
        return given

    def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        self.acknowledged += deliveries

    def postpone(self, deliveries: Sequence[tuple[Delivery, float]]) -> None:
        self.postponed += deliveries

    def close(self) -> None:
        """There is nothing to close."""


@contextmanager
def working(
    consumer: Consumer, source: Source, *, concurrency: int = 10
) -> Iterator[list[ExitReport]]:
    worker = Worker(consumer, source, WorkerSettings(concurrency=concurrency, drain=PATIENCE))
    reports: list[ExitReport] = []
    thread = threading.Thread(target=lambda: reports.append(worker.run()), daemon=True)
    thread.start()
    try:
        yield reports
    finally:
        worker.stop()
        thread.join(PATIENCE)
        consumer.close()


def delivery(number: int) -> Delivery:
    now = time.monotonic()
    body = b'{"id": "%d", "detail-type": "t", "detail": {}}' % number
    return Delivery(body, since=now, held=now)


def test_a_worker_works_with_a_custom_source() -> None:
    ran: list[str] = []
    source = InMemorySource()
    source.waiting = [delivery(number) for number in range(25)]
    consumer = Consumer(MemoryStore(), handler=lambda job: ran.append(job.event.id))
    with working(consumer, source) as reports:
        until(lambda: len(source.acknowledged) == 25)
    assert len(set(ran)) == 25
    assert reports == [ExitReport()]
    assert not source.postponed


def test_a_running_event_is_held_at_its_source_until_the_settlement() -> None:
    go = threading.Event()
    source = InMemorySource(hold=0.2)
    source.waiting = [delivery(1)]
    consumer = Consumer(MemoryStore(), handler=lambda _: go.wait(PATIENCE) and None)
    with working(consumer, source):
        until(lambda: len(source.postponed) >= 3)
        assert {seconds for _, seconds in source.postponed} == {0.2}
        go.set()
        until(lambda: source.acknowledged)


def test_a_failed_event_keeps_its_pause_although_a_renewal_of_visibility_is_under_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The renewal of the first event is a slow request, and meanwhile both events fail."""
    monkeypatch.setattr("eventonce.worker.worker.BATCH_EVENTS", 1)
    renewing, retried = threading.Event(), threading.Event()

    class Slow(InMemorySource):
        def postpone(self, deliveries: Sequence[tuple[Delivery, float]]) -> None:
            if deliveries[0][1] != self.hold:
                super().postpone(deliveries)
                retried.set()
                return
            renewing.set()
            until(lambda: not worker._inflight.received_before(inf))
            # In vain, because the pauses wait for this request: there is no condition to wait for.
            retried.wait(0.3)
            super().postpone(deliveries)

    def handler(_: Job) -> None:
        assert renewing.wait(PATIENCE)
        raise ValueError

    source = Slow(hold=0.4)
    source.waiting = [delivery(1), delivery(2)]
    consumer = Consumer(MemoryStore(), handler=handler)
    worker = Worker(consumer, source, WorkerSettings(concurrency=2, receivers=1, drain=PATIENCE))
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    until(lambda: worker.in_flight() == 0 and len(source.postponed) >= 3)
    worker.stop()
    thread.join(PATIENCE)
    consumer.close()
    assert [seconds == source.hold for _, seconds in source.postponed] == [True, False, False]


def test_an_ending_worker_returns_the_events_that_have_not_begun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Events count as quick, and some are received ahead, however slow this machine is.
    monkeypatch.setattr("eventonce.worker.inflight.BEGIN_WITHIN", PATIENCE)
    begun, go = threading.Event(), threading.Event()

    def handler(job: Job) -> None:
        if job.event.id == "100":
            begun.set()
            go.wait(PATIENCE)

    source = InMemorySource()
    source.waiting = [delivery(number) for number in range(50)]
    consumer = Consumer(MemoryStore(), handler=handler)
    told: list[str] = []
    consumer.observers.append(
        lambda outcome, _: told.append(outcome.event.id if outcome.event else "")
    )
    worker = Worker(consumer, source, WorkerSettings(concurrency=1, receivers=1, drain=PATIENCE))
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    until(lambda: len(source.acknowledged) == 50)
    behind = [delivery(number) for number in range(101, 104)]
    first = delivery(100)
    source.waiting = [first, *behind]
    assert begun.wait(PATIENCE)
    until(lambda: worker.state()["in_flight"] == 4)
    worker.stop()
    until(lambda: len(source.postponed) == 3)
    go.set()
    thread.join(PATIENCE)
    consumer.close()
    assert [one for one, _ in source.postponed] == behind
    assert all(seconds < 0.01 for _, seconds in source.postponed)
    assert source.acknowledged[50:] == [first]
    # They did not fail.
    assert told[50:] == ["100"]


def test_an_ending_worker_returns_an_event_in_its_claim_although_a_handler_still_runs() -> None:
    claiming, claimed = threading.Event(), threading.Event()
    begun, go = threading.Event(), threading.Event()

    def look(verb: str, asked: Sequence[Any]) -> None:
        if verb == "claim" and begun.is_set() and not all(map(is_probe, asked)):
            claiming.set()
            assert claimed.wait(PATIENCE)

    def handler(_: Job) -> None:
        begun.set()
        assert go.wait(PATIENCE)

    source = InMemorySource()
    source.waiting = [delivery(1)]
    consumer = Consumer(WatchedStore(look), handler=handler)
    worker = Worker(consumer, source, WorkerSettings(concurrency=1, receivers=1, drain=PATIENCE))
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    assert begun.wait(PATIENCE)
    # As if it had been received while there was room.
    second = delivery(2)
    worker._begin(worker._inflight.put(0, [second]) or [])
    assert claiming.wait(PATIENCE)
    worker.stop()
    until(lambda: worker._stages._cancelled)
    claimed.set()
    until(lambda: source.postponed)
    assert not source.acknowledged
    go.set()
    thread.join(PATIENCE)
    consumer.close()
    assert [one for one, _ in source.postponed] == [second]


def test_the_handover_of_an_unfinished_event_begins_after_it_was_freed() -> None:
    steps: list[str] = []

    class Noting(InMemorySource):
        def postpone(self, deliveries: Sequence[tuple[Delivery, float]]) -> None:
            steps.extend(f"postponed by {seconds}" for _, seconds in deliveries)

    def look(verb: str, asked: Sequence[Any]) -> None:
        if verb == "settle":
            steps.extend(one.action for one in asked)

    go = threading.Event()
    source = Noting()
    source.waiting = [delivery(1)]
    consumer = Consumer(WatchedStore(look), handler=lambda _: go.wait(PATIENCE) and None)
    worker = Worker(consumer, source, WorkerSettings(concurrency=1, drain=0.01))
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    until(lambda: worker.state()["running"] == 1)
    steps.clear()
    worker.stop()
    thread.join(PATIENCE)
    assert steps == ["return", f"postponed by {HANDOVER_DELAY}"]
    go.set()
    consumer.close()


def test_an_ending_worker_returns_the_events_that_still_arrive() -> None:
    class Late(InMemorySource):
        """A source that answers a request after the worker has stopped taking events."""

        def receive(self, most: int) -> list[Delivery]:
            until(lambda: worker._inflight._closed)
            return super().receive(most)

    source = Late()
    source.waiting = [delivery(1), delivery(2)]
    consumer = Consumer(MemoryStore(), handler=_not_to_be_run)
    worker = Worker(consumer, source, WorkerSettings(receivers=1, drain=PATIENCE))
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    worker.stop()
    thread.join(PATIENCE)
    consumer.close()
    assert [seconds for _, seconds in source.postponed] == [0.0, 0.0]


def _not_to_be_run(_: Job) -> None:
    raise AssertionError


@pytest.mark.parametrize("from_the_start", [True, False])
def test_a_store_that_takes_no_write_counts_as_unavailable_although_reads_succeed(
    monkeypatch: pytest.MonkeyPatch, *, from_the_start: bool
) -> None:
    monkeypatch.setattr(availability, "SHORTEST_PAUSE", 0.01)
    monkeypatch.setattr(availability, "LONGEST_PAUSE", 0.01)
    refuse, trials = full(), list[Claim]()

    def look(verb: str, asked: Sequence[Any]) -> None:
        if verb == "claim":
            trials.extend(filter(is_probe, asked))
        refuse(verb, asked)

    source = InMemorySource()
    store = WatchedStore(look if from_the_start else away())
    ran: list[str] = []
    consumer = Consumer(store, handler=lambda job: ran.append(job.event.id))
    with working(consumer, source, concurrency=1):
        if not from_the_start:
            source.waiting = [delivery(0)]
            until(lambda: source.acknowledged)
            store.look = look
        source.waiting = [delivery(number) for number in range(1, 1_001)]
        until(lambda: len(trials) > 20 or len(source.waiting) < 500)
        # Two receivers may have had a request under way, for up to ten each.
        assert len(source.waiting) >= (1_000 if from_the_start else 900)
        assert len({claim.key for claim in trials}) == 1
        assert store.claim([PROBE])[0].kind == "run"
        store.look = away()
        until(lambda: not source.waiting)
    assert len(ran) == len(set(ran))


class Reading(MemoryStore):
    """A store that can judge what it has, and takes nothing new while it is full."""

    full = False

    def claim(self, claims: Sequence[Claim], now: int | None = None) -> list[Verdict]:
        if self.full and any(self.show(claim.key) is None and not claim.peek for claim in claims):
            raise StoreUnavailable("full")
        return super().claim(claims, now)


def test_a_copy_of_a_recorded_event_does_not_end_the_outage_of_a_full_store() -> None:
    source, store = InMemorySource(), Reading()
    consumer = Consumer(store, handler=lambda _: None)
    worker = Worker(consumer, source, WorkerSettings(concurrency=1, drain=PATIENCE))
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    source.waiting = [delivery(1)]
    until(lambda: source.acknowledged)
    store.full = True
    source.waiting = [delivery(2)]
    until(lambda: worker.state()["store"]["why"] == "full")
    # As if it had been received before the outage.
    copy = delivery(1)
    worker._begin(worker._inflight.put(0, [copy]) or [])
    until(lambda: copy in source.acknowledged)
    assert worker.state()["store"]["why"] == "full"
    store.full = False
    until(lambda: worker.state()["store"]["fine"])
    worker.stop()
    thread.join(PATIENCE)
    consumer.close()


def test_a_worker_whose_side_task_fails_stops_with_the_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    source = InMemorySource()
    source.fault = ZeroDivisionError("a defect")
    with working(Consumer(MemoryStore(), handler=print), source) as reports:
        until(lambda: reports)
    assert reports[0].error is source.fault
    # Only the log shows where the defect is.
    assert "receiver-0 died: a defect" in caplog.text
    assert "raise self.fault" in caplog.text


@pytest.mark.parametrize("refusal", [ConfigError("permission denied"), EventonceError("KmsNo")])
def test_a_refusal_ends_the_worker_unless_the_queue_has_answered_before(
    refusal: EventonceError, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(availability, "SHORTEST_PAUSE", 0.01)
    source = InMemorySource()
    source.fault = refusal
    with working(Consumer(MemoryStore(), handler=print), source) as reports:
        until(lambda: reports)
    assert reports[0].error is source.fault

    source = InMemorySource()
    source.waiting = [delivery(1)]
    with working(Consumer(MemoryStore(), handler=lambda _: None), source) as reports:
        until(lambda: source.acknowledged)
        source.fault = refusal
        # More often than there are receivers: one of them asks again after its refusal.
        until(lambda: reports or source.faults > WorkerSettings().receivers)
    # Had a receiver ended the worker, the report would have its error.
    assert reports == [ExitReport()]


def test_a_worker_without_handlers_ends_with_the_first_events_it_receives() -> None:
    source = InMemorySource()
    source.waiting = [delivery(number) for number in range(30)]
    settings = WorkerSettings(concurrency=3, receivers=1, drain=0.01)
    worker = Worker(Consumer(MemoryStore()), source, settings)
    reports: list[ExitReport] = []
    threading.Thread(target=lambda: reports.append(worker.run()), daemon=True).start()
    until(lambda: reports)
    assert isinstance(reports[0].error, ConfigError)
    assert "no handler" in str(reports[0].error)
    assert reports[0].unfinished == 3
    assert len(source.waiting) == 27
    assert {seconds for _, seconds in source.postponed} == {HANDOVER_DELAY}


def test_an_unexpected_error_of_one_event_does_not_stop_the_other_events(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def look(verb: str, asked: Sequence[Any]) -> None:
        if verb == "settle" and any(one.result == b'"defective"' for one in asked):
            raise ZeroDivisionError

    source = InMemorySource()
    source.waiting = [delivery(1), delivery(2)]
    consumer = Consumer(
        WatchedStore(look), handler=lambda job: "defective" if job.event.id == "1" else None
    )
    with working(consumer, source) as reports:
        until(lambda: source.acknowledged and source.postponed)
    assert reports == [ExitReport()]
    assert "could not be processed" in caplog.text


def test_an_event_whose_observer_exits_comes_again_and_is_a_copy() -> None:
    seen: list[str] = []

    def observer(outcome: Outcome, _: float) -> None:
        seen.append(outcome.status)
        if len(seen) == 1:
            raise SystemExit

    source = InMemorySource()
    source.waiting = [delivery(1)]
    consumer = Consumer(MemoryStore(), handler=lambda _: None, observers=[observer])
    with working(consumer, source) as reports:
        until(lambda: source.postponed)
        source.waiting = [delivery(1)]
        until(lambda: source.acknowledged)
    assert reports == [ExitReport()]
    assert seen == ["done", "duplicate"]


def test_an_unavailable_source_is_called_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(availability, "SHORTEST_PAUSE", 0.01)
    source = InMemorySource()
    source.fault = SourceUnavailable()
    with working(Consumer(MemoryStore(), handler=lambda _: None), source) as reports:
        until(lambda: reports or source.faults > WorkerSettings().receivers)
        assert not reports
        source.waiting, source.fault = [delivery(1)], None
        until(lambda: source.acknowledged)
    assert reports == [ExitReport()]


def test_a_store_of_another_format_ends_the_worker() -> None:
    elsewhere = WatchedStore(away("claim", error=StoreMismatch("format 9")))
    worker = Worker(Consumer(elsewhere, handler=print), InMemorySource(), WorkerSettings())
    with pytest.raises(StoreMismatch):
        worker.run()


def test_an_acknowledgement_that_the_source_refuses_permanently_is_not_repeated() -> None:
    class Refusing(InMemorySource):
        def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
            super().acknowledge(deliveries)
            raise EventonceError("no such receipt")

    source = Refusing()
    source.waiting = [delivery(1)]
    with working(Consumer(MemoryStore(), handler=lambda _: None), source) as reports:
        until(lambda: source.acknowledged)
    assert reports == [ExitReport()]
    assert len(source.acknowledged) == 1


def test_no_event_waits_for_slow_events_that_were_received_at_the_same_time() -> None:
    begun, go = threading.Semaphore(0), threading.Event()

    def handler(job: Job) -> None:
        if int(job.event.id) >= 100:
            begun.release()
            go.wait(PATIENCE)

    source = InMemorySource()
    source.waiting = [delivery(number) for number in range(50)]
    with working(Consumer(MemoryStore(), handler=handler), source, concurrency=6):
        # Quick until now: one slot is enough for them.
        until(lambda: len(source.acknowledged) == 50)
        source.waiting = [delivery(number) for number in (100, 101, 102, 103, 104, 50)]
        assert all(begun.acquire(timeout=PATIENCE) for _ in range(5))
        # The sixth event is done, although all earlier events still run.
        until(lambda: len(source.acknowledged) == 51)
        go.set()
        until(lambda: len(source.acknowledged) == 56)


def test_a_copy_of_a_run_of_this_process_waits_for_the_run_and_not_for_its_lease() -> None:
    begun, go = threading.Event(), threading.Event()

    def handler(_: Job) -> None:
        begun.set()
        go.wait(PATIENCE)

    outcomes: list[str] = []
    source = InMemorySource()
    source.waiting = [delivery(1)]
    consumer = Consumer(
        MemoryStore(),
        handler=handler,
        observers=[lambda outcome, _: outcomes.append(outcome.status)],
    )
    with working(consumer, source):
        assert begun.wait(PATIENCE)
        source.waiting = [delivery(1), delivery(1)]
        until(lambda: not source.waiting)
        go.set()
        until(lambda: len(source.acknowledged) == 3)
    assert outcomes == ["done", "duplicate", "duplicate"]
    assert not source.postponed


class Choosy(MemoryStore):
    """A store that cannot hold one of the claims, as some have limits that others do not."""

    refused = 0

    def claim(self, claims: Sequence[Claim], now: int | None = None) -> list[Verdict]:
        verdicts = super().claim(claims, now)
        if self.refused < 2 and not all(map(is_probe, claims)):
            self.refused += 1
            verdicts[0] = Verdict("error", error=StoreError("too large for this store"))
        return verdicts


def test_the_copies_of_a_slow_event_leave_room_for_other_events() -> None:
    go = threading.Event()
    ran: list[str] = []
    source = InMemorySource()
    source.waiting = [delivery(1) for _ in range(30)]

    def handler(job: Job) -> None:
        if job.event.id == "1":
            assert go.wait(PATIENCE)
        ran.append(job.event.id)

    with working(Consumer(MemoryStore(), handler=handler), source, concurrency=2):
        until(lambda: not source.waiting)
        source.waiting = [delivery(2)]
        until(lambda: ran == ["2"])
        go.set()
        until(lambda: len(source.acknowledged) == 31)
    assert ran == ["2", "1"]
    assert not source.postponed


def test_an_event_that_the_store_cannot_hold_does_not_make_the_store_unavailable(
    caplog: pytest.LogCaptureFixture,
) -> None:
    source = InMemorySource()
    first = delivery(1)
    first.times = 7
    source.waiting = [first]
    consumer = Consumer(Choosy(), handler=lambda _: None)
    with working(consumer, source):
        until(lambda: source.postponed)
        # Not even for a moment: an outage would have been logged.
        assert "too large" not in caplog.text
    # The delay grows, although no attempt was counted.
    ((_, seconds),) = source.postponed
    assert seconds > 10


def test_no_event_is_received_after_an_unknown_error_of_the_store_until_a_trial_succeeds() -> None:
    asked: list[str] = []

    def look(verb: str, some: Sequence[Any]) -> None:
        asked.append("trial" if verb == "claim" and is_probe(some[0]) else verb)
        if asked[-1] == "claim" and asked.count("claim") == 1:
            raise StoreError("what is this?")

    source = InMemorySource()
    source.waiting = [delivery(1)]
    with working(Consumer(WatchedStore(look), handler=lambda _: None), source):
        until(lambda: source.postponed)
        source.waiting = [delivery(2)]
        until(lambda: source.acknowledged)
    assert asked[asked.index("claim") + 1 :][:3] == ["trial", "settle", "claim"]


@pytest.mark.parametrize("error", [StoreUnavailable("kms: away"), SourceUnavailable("sqs: away")])
def test_a_dead_letter_that_cannot_be_kept_does_not_make_the_store_unavailable(
    caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    caplog.set_level("INFO", "eventonce")
    source = InMemorySource()
    source.waiting = [delivery(1)]
    consumer = Consumer(WatchedStore(away("put_letters", error=error)), handler=reject)
    with working(consumer, source):
        until(lambda: source.postponed)
        source.waiting = [delivery(2)]
        until(lambda: len(source.postponed) == 2)
    # Neither an outage nor its end.
    said = [one for one in caplog.messages if "receiving" not in one and "ending" not in one]
    assert said == []


def test_an_unhandled_event_under_the_policy_fail_is_not_acknowledged() -> None:
    consumer = Consumer(MemoryStore(), rules=ruled(), unhandled="fail")
    consumer.on("other")(lambda _: None)
    source = InMemorySource()
    with working(consumer, source):
        now = time.monotonic()
        source.waiting = [Delivery(call(1), since=now, held=now)]
        until(lambda: source.postponed)
    assert source.acknowledged == []
