from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import inf

import pytest

from eventonce import Consumer
from eventonce.core.ports import Delivery
from eventonce.errors import (
    ConfigError,
    EventonceError,
    SourceUnavailable,
    StoreError,
    StoreMismatch,
)
from eventonce.stores.memory import MemoryStore
from eventonce.types import Claim, Job, Verdict
from eventonce.worker import Report, Settings, Worker

PATIENCE = 60


class StoreAdmin:
    """A source of one's own: the port is all that a worker knows."""

    ended = False

    def __init__(self, *, hold: float = inf) -> None:
        self.hold = hold
        self.waiting: list[Delivery] = []
        self.acknowledged: list[Delivery] = []
        self.postponed: list[tuple[Delivery, float]] = []
        self.fault: Exception | None = None
        self._lock = threading.Lock()

    def receive(self, most: int) -> list[Delivery]:
        if self.fault is not None:
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
def _working(consumer: Consumer, source: StoreAdmin, *, hands: int = 10) -> Iterator[list[Report]]:
    worker = Worker(consumer, source, Settings(concurrency=hands, drain=PATIENCE))
    reports: list[Report] = []
    thread = threading.Thread(target=lambda: reports.append(worker.run()), daemon=True)
    thread.start()
    try:
        yield reports
    finally:
        worker.stop()
        thread.join(PATIENCE)
        consumer.close()


def _until(holds: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def _event(number: int) -> Delivery:
    now = time.monotonic()
    body = b'{"id": "%d", "detail-type": "t", "detail": {}}' % number
    return Delivery(body, since=now, held=now)


def test_a_worker_works_for_any_source_there_is() -> None:
    ran: list[str] = []
    source = StoreAdmin()
    source.waiting = [_event(number) for number in range(25)]
    consumer = Consumer(MemoryStore(), handler=lambda job: ran.append(job.event.id))
    with _working(consumer, source) as reports:
        _until(lambda: len(source.acknowledged) == 25)
    assert len(set(ran)) == 25
    assert reports == [Report()]
    assert not source.postponed


def test_what_is_in_work_is_held_until_it_is_settled() -> None:
    go = threading.Event()
    source = StoreAdmin(hold=0.2)
    source.waiting = [_event(1)]
    consumer = Consumer(MemoryStore(), handler=lambda _: go.wait(PATIENCE) and None)
    with _working(consumer, source):
        _until(lambda: len(source.postponed) >= 3)
        assert {seconds for _, seconds in source.postponed} == {0.2}
        go.set()
        _until(lambda: source.acknowledged)


def test_an_ending_worker_gives_back_what_it_had_not_begun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # So that events count as quick, and some are kept at hand, however slow this machine is.
    monkeypatch.setattr("eventonce.worker.pace.SOON", PATIENCE)
    begun, go = threading.Event(), threading.Event()

    def handler(job: Job) -> None:
        if job.event.id == "100":
            begun.set()
            go.wait(PATIENCE)

    source = StoreAdmin()
    source.waiting = [_event(number) for number in range(50)]
    consumer = Consumer(MemoryStore(), handler=handler)
    worker = Worker(consumer, source, Settings(concurrency=1, receivers=1, drain=PATIENCE))
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    _until(lambda: len(source.acknowledged) == 50)
    # What comes again is taken alone.
    behind = [_event(number) for number in range(101, 104)]
    first = _event(100)
    first.times = 2
    source.waiting = [first, *behind]
    assert begun.wait(PATIENCE)
    _until(lambda: worker.state()["at_hand"] == 4)
    worker.stop()
    _until(lambda: len(source.postponed) == 3)
    go.set()
    thread.join(PATIENCE)
    consumer.close()
    assert source.postponed == [(one, 0.0) for one in behind]
    assert source.acknowledged[50:] == [first]


def test_an_ending_worker_gives_back_what_still_comes_in() -> None:
    class Late(StoreAdmin):
        """Answers a request when the worker takes nothing in any more."""

        def receive(self, most: int) -> list[Delivery]:
            _until(lambda: worker._desk._closed)
            return super().receive(most)

    source = Late()
    source.waiting = [_event(1), _event(2)]
    consumer = Consumer(MemoryStore(), handler=_not_to_be_run)
    worker = Worker(consumer, source, Settings(receivers=1, drain=PATIENCE))
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    worker.stop()
    thread.join(PATIENCE)
    consumer.close()
    assert [seconds for _, seconds in source.postponed] == [0.0, 0.0]


def _not_to_be_run(_: Job) -> None:
    raise AssertionError


def test_a_worker_whose_side_task_dies_stops_with_its_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    source = StoreAdmin()
    source.fault = ZeroDivisionError("a defect")
    with _working(Consumer(MemoryStore(), handler=print), source) as reports:
        _until(lambda: reports)
    assert reports[0].error is source.fault
    # Where the defect is, the log alone can say.
    assert "receiver-0 died: a defect" in caplog.text
    assert "raise self.fault" in caplog.text


@pytest.mark.parametrize("refusal", [ConfigError("permission denied"), EventonceError("KmsNo")])
def test_a_queue_that_never_let_us_in_ends_the_worker_and_one_that_did_does_not(
    refusal: EventonceError,
) -> None:
    source = StoreAdmin()
    source.fault = refusal
    with _working(Consumer(MemoryStore(), handler=print), source) as reports:
        _until(lambda: reports)
    assert reports[0].error is source.fault

    source = StoreAdmin()
    source.waiting = [_event(1)]
    with _working(Consumer(MemoryStore(), handler=lambda _: None), source) as reports:
        _until(lambda: source.acknowledged)
        refusal.__traceback__ = None
        source.fault = refusal
        _until(lambda: refusal.__traceback__ is not None)
        time.sleep(0.05)
        assert not reports
    assert reports == [Report()]


def test_an_event_that_nobody_foresaw_does_not_stop_the_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    source = StoreAdmin()
    source.waiting = [_event(1), _event(2)]
    consumer = Consumer(MemoryStore(), handler=lambda _: None)
    process = consumer.process

    def defective(events: list[object]) -> list[object]:
        if any(getattr(event, "id", "") == "1" for event in events):
            raise ZeroDivisionError
        return process(events)  # type: ignore[arg-type, return-value]

    monkeypatch.setattr(consumer, "process", defective)
    with _working(consumer, source) as reports:
        _until(lambda: source.acknowledged and source.postponed)
    assert reports == [Report()]
    assert "could not be processed" in caplog.text


def test_a_source_that_is_away_is_asked_again() -> None:
    source = StoreAdmin()
    source.fault = SourceUnavailable()
    with _working(Consumer(MemoryStore(), handler=lambda _: None), source) as reports:
        time.sleep(0.05)
        source.waiting, source.fault = [_event(1)], None
        _until(lambda: source.acknowledged)
    assert reports == [Report()]


class Elsewhere(MemoryStore):
    """A store of another release."""

    def claim(self, claims: Sequence[Claim], now: int | None = None) -> list[Verdict]:
        raise StoreMismatch("format 9")


def test_a_store_that_cannot_be_worked_with_ends_the_worker() -> None:
    worker = Worker(Consumer(Elsewhere(), handler=print), StoreAdmin(), Settings())
    with pytest.raises(StoreMismatch):
        worker.run()


def test_what_a_source_refuses_for_what_it_is_is_not_asked_again() -> None:
    class Refusing(StoreAdmin):
        def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
            super().acknowledge(deliveries)
            raise EventonceError("no such receipt")

    source = Refusing()
    source.waiting = [_event(1)]
    with _working(Consumer(MemoryStore(), handler=lambda _: None), source) as reports:
        _until(lambda: source.acknowledged)
    assert reports == [Report()]
    assert len(source.acknowledged) == 1


def test_what_comes_again_does_not_wait_for_a_slow_one_that_came_again_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # So that events count as quick, however slow this machine is.
    monkeypatch.setattr("eventonce.worker.pace.QUICK", PATIENCE)
    begun, go = threading.Semaphore(0), threading.Event()

    def handler(job: Job) -> None:
        if int(job.event.id) >= 100:
            begun.release()
            go.wait(PATIENCE)

    class Quiet(StoreAdmin):
        """Waits for more, as a long poll does, once these have come: nobody is woken by it."""

        given = 0

        def receive(self, most: int) -> list[Delivery]:
            received = super().receive(most)
            with self._lock:
                self.given += len(received)
            if not received and self.given == 55:
                go.wait(PATIENCE)
            return received

    source = Quiet()
    source.waiting = [_event(number) for number in range(50)]
    with _working(Consumer(MemoryStore(), handler=handler), source):
        # Quick until now: few are not worth another hand while one is busy.
        _until(lambda: len(source.acknowledged) == 50)
        again = [_event(number) for number in range(100, 105)]
        for one in again:
            one.times = 2
        source.waiting = again
        assert all(begun.acquire(timeout=PATIENCE) for _ in again)
        go.set()
        _until(lambda: len(source.acknowledged) == 55)


class Choosy(MemoryStore):
    """A store that cannot hold one of the claims, as some have limits that others do not."""

    refused = 0

    def claim(self, claims: Sequence[Claim], now: int | None = None) -> list[Verdict]:
        verdicts = super().claim(claims, now)
        if self.refused < 2 and any(not claim.peek for claim in claims):
            self.refused += 1
            verdicts[0] = Verdict("error", error=StoreError("too large for this store"))
        return verdicts


def test_an_event_that_the_store_cannot_hold_does_not_make_the_store_away(
    caplog: pytest.LogCaptureFixture,
) -> None:
    source = StoreAdmin()
    first = _event(1)
    first.times = 7
    source.waiting = [first]
    consumer = Consumer(Choosy(), handler=lambda _: None)
    with _working(consumer, source):
        _until(lambda: source.postponed)
        # Nor for a moment: that would have been said.
        assert "too large" not in caplog.text
    # More and more slowly, although no attempt was counted.
    ((_, seconds),) = source.postponed
    assert seconds > 10
