from __future__ import annotations

import time
from collections.abc import Sequence
from math import inf

import pytest

from eventonce.core.ports import Delivery
from eventonce.errors import ConfigError, EventonceError, SourceUnavailable, StoreError
from eventonce.sockets import address
from eventonce.types import Outcome, Status
from eventonce.worker.ack_buffer import AckBuffer, delay_of
from eventonce.worker.availability import Availability
from eventonce.worker.inflight import MOST_WAITING, Inflight
from tests.unit.test_worker_whole import InMemorySource


def _inflight(*, asynchronous: bool = False) -> Inflight:
    return Inflight(4, 2, asynchronous=asynchronous)


def _received(*groups: str) -> list[Delivery]:
    return [Delivery(b"", group=group) for group in groups]


def test_no_more_events_are_received_than_slots_while_no_duration_is_known() -> None:
    inflight = _inflight()
    assert inflight.reserve(10, 0) == 4
    assert inflight.reserve(10, 0) == 0
    inflight.put(4, _received("", ""))
    assert inflight.reserve(10, 0) == 2


def test_quick_events_are_received_ahead_and_slow_events_are_not() -> None:
    inflight = _inflight()
    inflight.note_time(0.01)
    assert inflight.reserve(100, 0) == 44
    inflight = _inflight()
    inflight.note_time(20.0)
    assert inflight.reserve(100, 0) == 4


def test_after_one_slow_event_no_events_are_received_ahead_for_a_while() -> None:
    inflight = _inflight()
    inflight.note_time(20.0)
    inflight.note_time(0.001)
    inflight.forgo(promised := inflight.reserve(100, 0))
    assert promised == 4
    for _ in range(40):
        inflight.note_time(0.001)
    assert inflight.reserve(100, 0) > 40


def test_async_handlers_run_concurrently_so_their_number_is_the_bound() -> None:
    inflight = _inflight(asynchronous=True)
    inflight.note_time(0.001)
    assert inflight.reserve(100, 0) == 4


def test_a_settled_event_makes_room_before_its_acknowledgement_is_sent() -> None:
    inflight = _inflight()
    received = _received("", "", "", "")
    assert inflight.put(inflight.reserve(10, 0), received) == received
    assert inflight.reserve(10, 0) == 0
    assert inflight.acknowledged(received[0]) == []
    assert inflight.reserve(10, 0) == 1
    assert len(inflight) == 4
    inflight.forgo(1)
    inflight.gone(received[:1])
    assert len(inflight) == 3
    assert inflight.reserve(10, 0) == 1


def test_copies_that_wait_leave_their_places_and_are_bounded() -> None:
    inflight = _inflight()
    received: list[Delivery] = []
    for _ in range(2 * MOST_WAITING):
        room = inflight.reserve(10, 0)
        inflight.put(room, some := _received(*[""] * room))
        received += some
        for _ in some:
            inflight.waits(1)
    assert len(received) == MOST_WAITING + 4
    assert inflight.received_before(inf) == received
    # When the waits are over, no event is received until the places are free again.
    for _ in received:
        assert inflight.full
        inflight.waits(-1)
    for ended, one in enumerate(received):
        assert inflight.full == (ended <= MOST_WAITING)
        inflight.acknowledged(one)
        inflight.gone([one])


def test_one_event_of_a_fifo_group_is_begun_at_a_time() -> None:
    inflight = _inflight()
    received = _received("a", "b", "a", "b")
    assert inflight.put(inflight.reserve(10, 0), received) == received[:2]
    assert inflight.acknowledged(received[0]) == [received[2]]


def test_the_later_events_of_a_fifo_group_are_postponed_with_the_first_event() -> None:
    inflight = _inflight()
    received = _received("a", "b", "a", "a")
    inflight.put(inflight.reserve(10, 0), received)
    assert inflight.postponed(received[0]) == [received[0], received[2], received[3]]
    assert inflight.received_before(inf) == [received[1]]


def test_a_closed_buffer_returns_the_events_that_have_not_begun() -> None:
    inflight = _inflight()
    received = _received("a", "a", "")
    inflight.put(inflight.reserve(3, 0), received)
    promised = inflight.reserve(10, 0)
    assert inflight.close() == [received[1]]
    assert inflight.put(promised, _received("")) is None
    assert inflight.acknowledged(received[0]) == []
    assert inflight.drained(0) == [received[2]]


def test_the_visibility_of_a_processed_event_is_not_renewed() -> None:
    inflight = _inflight()
    received = _received("", "")
    inflight.put(inflight.reserve(10, 0), received)
    assert inflight.received_before(inf) == received
    inflight.acknowledged(received[0])
    assert inflight.received_before(inf) == received[1:]
    assert inflight.received_before(-inf) == []


def test_an_event_is_postponed_although_the_acknowledgement_before_it_is_refused() -> None:
    class Refusing(InMemorySource):
        def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
            raise EventonceError("refused")

    source, inflight = Refusing(), _inflight()
    settled, failed = _received("", "")
    inflight.put(inflight.reserve(2, 0), [settled, failed])
    acks = AckBuffer(source, inflight, Availability("the queue", lately=60))
    inflight.acknowledged(settled)
    acks.acknowledge(settled)
    acks.postpone(inflight.postponed(failed), 5)
    assert acks.send() == 0.0
    assert [one for one, _ in source.postponed] == [failed]
    assert inflight.empty


@pytest.mark.parametrize(
    ("status", "seconds", "least", "most"),
    [
        ("failed", 1, 1, 2),
        ("failed", 8, 8, 12),
        ("failed", 900, 900, 1_351),
        # The lease ends at a fixed time; the clock of the store may be far from ours.
        ("busy", 60, 60, 60),
        ("busy", -300, 1, 1),
    ],
)
def test_the_delay_of_a_retry_is_as_long_as_asked_and_varies_after_a_failure(
    monkeypatch: pytest.MonkeyPatch, status: Status, seconds: float, least: float, most: float
) -> None:
    now = 1_764_000_000
    monkeypatch.setattr(time, "time", lambda: now)
    outcome = Outcome(None, status, retry_at=int((now + seconds) * 1000))
    delays = [delay_of(outcome, 1) for _ in range(200)]
    assert least <= min(delays)
    assert max(delays) <= most
    assert (len(set(delays)) > 1) == (status == "failed")


def test_an_event_that_the_store_refuses_is_retried_after_ever_longer_delays() -> None:
    soon = int(time.time() * 1000) + 1_000
    outcome = Outcome(None, "failed", retry_at=soon, error=StoreError("too large"))
    assert delay_of(outcome, 1) <= 3
    assert 64 <= delay_of(outcome, 7) <= 97


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("8081", ("127.0.0.1", 8081)),
        (":8081", ("127.0.0.1", 8081)),
        ("0.0.0.0:80", ("0.0.0.0", 80)),
        ("[::1]:80", ("::1", 80)),
    ],
)
def test_a_health_address_is_on_loopback_unless_it_names_a_host(
    said: str, expected: tuple[str, int]
) -> None:
    assert address(said) == expected


@pytest.mark.parametrize("said", ["here", "localhost:", "127.0.0.1:99999"])
def test_a_health_address_without_a_port_is_refused(said: str) -> None:
    with pytest.raises(ConfigError, match="health"):
        address(said)


def test_the_pause_before_the_next_try_grows_with_the_outage() -> None:
    now = 1_000.0
    store = Availability("it", lately=60, clock=lambda: now)
    assert not store.fine
    store.answered()
    assert store.fine
    for passed, least, most in ((0, 0.5, 1), (8, 4, 8), (100, 15, 30)):
        now += passed
        assert least <= store.failed(SourceUnavailable()) <= most
    assert store.away
    store.answered()
    assert store.fine
    assert store.failed(SourceUnavailable()) <= 1
    store.answered()
    now += 61
    assert not store.fine


def test_an_outage_is_logged_at_its_start_then_less_and_less_often_and_at_its_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """However many events fail meanwhile: each failed event has its own line elsewhere."""
    caplog.set_level("INFO", "eventonce")
    now = 1_000.0
    store = Availability("the store", lately=60, clock=lambda: now)
    for _ in range(39):
        store.failed(SourceUnavailable("redis://crm: not reached"))
        now += 1
    store.answered()
    store.answered()
    away = ("WARNING", "redis://crm: not reached")
    assert [(one.levelname, one.getMessage()) for one in caplog.records] == [
        # At once, after ten seconds and after twenty.
        *[away] * 3,
        ("INFO", "the store answers again, after 39 s"),
    ]


def test_an_answer_without_a_write_ends_a_silence_but_no_outage() -> None:
    now = 1_000.0
    store = Availability("it", lately=60, clock=lambda: now)
    store.answered()
    now += 61
    store.heard()
    assert store.fine
    store.failed(SourceUnavailable())
    store.heard()
    assert store.away
    store.answered()
    assert store.fine
