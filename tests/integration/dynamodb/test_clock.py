"""Leases follow the service's time, whatever this machine's clock shows."""

from __future__ import annotations

from collections.abc import Callable

import boto3
import pytest

from eventonce.clock import wall_clock
from eventonce.stores.dynamodb import DynamoDBStore
from eventonce.stores.dynamodb.table import ServiceClock
from eventonce.types import Settlement
from tests.integration.dynamodb.asks import MINUTE, completed, fact, facts
from tests.integration.dynamodb.between import Between, dated
from tests.servers.aws import REGION

Handle = Callable[[int], DynamoDBStore]


@pytest.fixture
def handle(table: str, between: Between) -> Handle:
    """Opens a store on a machine whose clock is so many milliseconds off."""

    def opened(off: int) -> DynamoDBStore:
        client = boto3.client("dynamodb", region_name=REGION, endpoint_url=between.url)
        return DynamoDBStore(client, table, clock=lambda: wall_clock() + off)

    return opened


def _from(instant: int, asked: int) -> bool:
    """Whether this instant is between the request and now, by the service's time, which is known
    to a second or so."""
    return asked - 3_000 < instant < wall_clock() + 3_000


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("off", [-10 * MINUTE, 10 * MINUTE])
def test_a_worker_whose_clock_is_off_has_its_whole_lease_and_no_more(
    off: int, size: int, handle: Handle
) -> None:
    """The worker's first claim, before it has the service's time, is corrected at once."""
    wrong, right = handle(off), handle(0)
    claims = facts(size)
    asked = wall_clock()
    for run in wrong.claim(claims):
        assert run.kind == "run"
        assert _from(run.token // 1000, asked)
    others = right.claim([fact(claim.key) for claim in claims])
    assert [it.kind for it in others] == ["busy"] * size
    assert all(0 < it.wait <= MINUTE for it in others)


@pytest.mark.parametrize("off", [-10 * MINUTE, 10 * MINUTE])
def test_a_worker_whose_clock_is_off_steals_no_lease_and_settles_its_own(
    off: int, handle: Handle
) -> None:
    wrong, right = handle(off), handle(0)
    claim = fact()
    (run,) = right.claim([claim])
    assert wrong.claim([fact(claim.key)])[0].kind == "busy"
    assert right.settle(completed([claim], [run])) == ["kept"]
    assert wrong.claim([fact(claim.key)])[0].kind == "duplicate"
    mine = fact(remember=MINUTE)
    (run,) = wrong.claim([mine])
    assert wrong.settle(completed([mine], [run])) == ["kept"]
    assert right.claim([fact(mine.key)])[0].kind == "duplicate"


def test_a_clock_that_is_set_back_in_the_middle_shortens_no_lease(
    table: str, between: Between
) -> None:
    off = [0]
    client = boto3.client("dynamodb", region_name=REGION, endpoint_url=between.url)
    store = DynamoDBStore(client, table, clock=lambda: wall_clock() + off[0])
    claim = fact()
    (run,) = store.claim([claim])
    off[0] = -10 * MINUTE
    asked = wall_clock()
    assert store.settle([Settlement(claim, run.token, "extend")]) == ["kept"]
    record = store.show(claim.key)
    assert record is not None
    assert _from(record.held_until - MINUTE, asked)


def test_workers_follow_the_clock_of_the_service_even_if_that_clock_is_wrong(
    handle: Handle, between: Between
) -> None:
    """All workers must follow the same time."""
    with between.spoiling(dated(-7 * 60)):
        first, second = handle(0), handle(-7 * MINUTE)
        claim = fact()
        asked = wall_clock()
        (run,) = first.claim([claim])
        (other,) = second.claim([fact(claim.key)])
        assert (other.kind, MINUTE - 3_000 < other.wait <= MINUTE) == ("busy", True)
        assert _from(run.token // 1000 + 7 * MINUTE, asked)


DATE = "Sun, 15 Nov 2026 09:33:29 GMT"
SECOND = 1_794_735_209_000


def _clock() -> ServiceClock:
    return ServiceClock(lambda: 0)


def test_before_the_first_answer_the_clock_of_this_machine_is_used() -> None:
    assert _clock().offset == 0


@pytest.mark.parametrize("off", [0, 300, 999])
def test_a_clock_within_the_second_of_the_date_is_not_corrected(off: int) -> None:
    clock = _clock()
    clock.learn(DATE, SECOND + off, SECOND + off + 5)
    assert clock.offset == 0


def test_a_clock_that_is_behind_is_set_forward_and_never_beyond_the_service() -> None:
    clock = _clock()
    clock.learn(DATE, SECOND - 60_000, SECOND - 59_990)
    assert clock.offset == 59_990


def test_a_clock_that_is_ahead_is_set_back_and_never_stays_ahead() -> None:
    clock = _clock()
    clock.learn(DATE, SECOND + 60_000, SECOND + 60_010)
    assert clock.offset == -60_010


def test_many_answers_narrow_the_offset_to_a_round_trip() -> None:
    clock = _clock()
    off = -90_000  # this machine's clock, from the service's
    for true in range(SECOND, SECOND + 3_000, 70):
        date = DATE.replace(":29 ", f":{29 + (true - SECOND) // 1000} ")
        clock.learn(date, true + off - 5, true + off + 5)
    assert 90_000 - 80 <= clock.offset <= 90_000


def test_a_clock_that_was_set_is_corrected_at_the_next_answer() -> None:
    clock = _clock()
    clock.learn(DATE, SECOND, SECOND + 10)
    clock.learn(DATE, SECOND - 600_000, SECOND - 599_990)
    assert clock.offset == 599_990


def test_an_answer_without_a_date_or_over_a_clock_jump_is_ignored() -> None:
    clock = _clock()
    clock.learn(None, 0, 10)
    clock.learn(DATE, 10, 0)
    assert clock.offset == 0
