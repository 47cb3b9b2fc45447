from __future__ import annotations

import time
from math import inf

import pytest

from eventonce.core.ports import Delivery
from eventonce.errors import ConfigError, SourceUnavailable, StoreError
from eventonce.types import Outcome, Status
from eventonce.worker.desk import Desk
from eventonce.worker.hands import delay_of
from eventonce.worker.health import address
from eventonce.worker.pace import Pace
from eventonce.worker.pulse import Pulse


def _pace(*, side_by_side: bool = False) -> Pace:
    return Pace(4, 2, side_by_side=side_by_side)


def test_a_worker_that_knows_nothing_takes_one_at_a_time_and_no_more_than_its_hands() -> None:
    assert _pace().portion(0) == 1
    assert _pace().limit() == 4


def test_quick_events_are_taken_together_and_kept_at_hand() -> None:
    pace = _pace()
    pace.learn(0.01, 10)
    assert pace.portion(0) == 50
    assert pace.limit() == 44


def test_slow_events_are_taken_alone_and_not_received_in_advance() -> None:
    pace = _pace()
    pace.learn(20.0, 1)
    assert pace.portion(3) == 1
    assert pace.limit() == 4


def test_one_slow_event_makes_careful_for_a_while() -> None:
    pace = _pace()
    pace.learn(1.0, 1)
    pace.learn(0.001, 1)
    assert pace.portion(0) == 1
    for _ in range(40):
        pace.learn(0.001, 1)
    assert pace.portion(0) == 50


def test_copies_say_nothing_of_how_long_a_handler_takes() -> None:
    pace = _pace()
    pace.learn(0.001, 0)
    assert pace.portion(0) == 1


def test_async_handlers_run_side_by_side_so_their_number_is_the_bound() -> None:
    pace = _pace(side_by_side=True)
    pace.learn(0.01, 4)
    assert pace.portion(0) == 4
    assert pace.portion(3) == 1
    assert pace.portion(4) == 0


def _received(*groups: str, times: int = 1) -> list[Delivery]:
    return [Delivery(b"", group=group, times=times) for group in groups]


def test_a_desk_promises_no_more_than_it_has_room_for() -> None:
    desk = Desk(_pace())
    assert desk.promise(10, 0) == 4
    assert desk.promise(10, 0) == 0
    desk.put(4, _received("", ""))
    assert desk.promise(10, 0) == 2


def test_what_leaves_makes_room() -> None:
    desk = Desk(_pace())
    received = _received("", "", "", "")
    desk.put(desk.promise(10, 0), received)
    taken = desk.take()
    assert taken == received[:1]
    desk.left_work(taken)
    assert desk.promise(10, 0) == 0
    desk.gone(taken)
    assert desk.promise(10, 0) == 1
    assert desk.at_hand == 3


def test_a_group_is_taken_whole_and_in_its_order() -> None:
    desk = Desk(_pace())
    received = _received("a", "b", "a", "b")
    desk.put(desk.promise(10, 0), received)
    assert desk.take() == [received[0], received[2]]
    assert desk.take() == [received[1], received[3]]


def test_what_comes_again_is_taken_alone() -> None:
    pace = _pace()
    pace.learn(0.001, 1)
    desk = Desk(pace)
    again, new = _received("", times=2), _received("", "")
    desk.put(desk.promise(3, 0), [*again, *new])
    assert desk.take() == again
    assert desk.take() == new


def test_a_closed_desk_gives_back_what_was_not_begun() -> None:
    desk = Desk(_pace())
    received = _received("", "", "")
    desk.put(desk.promise(10, 0), received)
    taken = desk.take()
    promised = desk.promise(10, 0)
    assert desk.close() == received[1:]
    assert desk.take() is None
    assert not desk.put(promised, _received(""))
    assert desk.clear(0) == taken


def test_what_is_leaving_is_not_held_any_longer() -> None:
    desk = Desk(_pace())
    received = _received("", "")
    desk.put(desk.promise(10, 0), received)
    taken = desk.take()
    assert isinstance(taken, list)
    assert desk.kept_since(inf) == received
    desk.left_work(taken)
    assert desk.kept_since(inf) == received[1:]
    assert desk.kept_since(-inf) == []


@pytest.mark.parametrize(
    ("status", "seconds", "least", "most"),
    [
        ("failed", 1, 1, 2),
        ("failed", 8, 8, 12),
        ("failed", 900, 900, 1_351),
        # A lease ends when it ends; the store's clock may be far from ours.
        ("busy", 60, 60, 60),
        ("busy", -300, 1, 1),
    ],
)
def test_what_must_come_again_comes_no_sooner_than_it_may_and_not_all_at_once(
    monkeypatch: pytest.MonkeyPatch, status: Status, seconds: float, least: float, most: float
) -> None:
    now = 1_764_000_000
    monkeypatch.setattr(time, "time", lambda: now)
    outcome = Outcome(None, status, retry_at=int((now + seconds) * 1000))
    delays = [delay_of(outcome, 1) for _ in range(200)]
    assert least <= min(delays)
    assert max(delays) <= most
    assert (len(set(delays)) > 1) == (status == "failed")


def test_what_the_store_refuses_comes_again_more_and_more_slowly() -> None:
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


def test_what_is_away_is_left_alone_as_long_again_as_it_has_been(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1_000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    pulse = Pulse("it", lately=60)
    assert not pulse.fine
    pulse.answered()
    assert pulse.fine
    for passed, least, most in ((0, 0.5, 1), (8, 4, 8), (100, 15, 30)):
        now += passed
        assert least <= pulse.failed(SourceUnavailable()) <= most
    assert pulse.away
    pulse.answered()
    assert pulse.fine
    assert pulse.failed(SourceUnavailable()) <= 1
    pulse.answered()
    now += 61
    assert not pulse.fine
