"""The cost of a call: its requests, in their order."""

from __future__ import annotations

import json

import pytest

from eventonce.stores.dynamodb import DynamoDBStore
from eventonce.stores.dynamodb import store as stores
from eventonce.types import Settlement
from tests.integration.dynamodb.asks import DAY, completed, copies, fact, facts, version
from tests.integration.dynamodb.between import Between, Forward, Reply
from tests.integration.dynamodb.conftest import Open

WRITE, READ, PUT = "BatchExecuteStatement", "BatchGetItem", "PutItem"


@pytest.mark.parametrize(("size", "claimed"), [(1, PUT), (10, WRITE), (25, WRITE)])
def test_new_events_are_two_requests(
    size: int, claimed: str, store: DynamoDBStore, between: Between
) -> None:
    claims = facts(size)
    store.settle(completed(claims, store.claim(claims)))
    assert between.count() == [claimed, WRITE]


def test_a_lone_copy_is_one_request_and_no_read(store: DynamoDBStore, between: Between) -> None:
    claim = fact()
    store.settle(completed([claim], store.claim([claim])))
    between.count()
    assert store.claim(copies([claim]))[0].kind == "duplicate"
    assert between.count() == [PUT]


def test_a_further_attempt_is_three_writes_in_a_call_of_its_own(
    store: DynamoDBStore, between: Between
) -> None:
    """The insert that is refused, the grant and the completion, as docs/cost.md reckons."""
    claim = fact()
    (run,) = store.claim([claim])
    assert store.settle([Settlement(claim, run.token, "release")]) == ["kept"]
    between.count()
    again = copies([claim])
    runs = store.claim(again)
    assert (runs[0].kind, runs[0].attempt) == ("run", 2)
    assert store.settle(completed(again, runs)) == ["kept"]
    assert between.count() == [PUT, WRITE, WRITE]


def test_copies_among_new_events_are_read_after_the_write(
    store: DynamoDBStore, between: Between
) -> None:
    claims = facts(20)
    store.settle(completed(claims, store.claim(claims)))
    between.count()
    mixed = [*facts(9), *copies(claims[:1])]
    assert [it.kind for it in store.claim(mixed)] == ["run"] * 9 + ["duplicate"]
    assert between.count() == [WRITE, READ]


def test_many_copies_are_read_first_and_cost_one_request(
    store: DynamoDBStore, between: Between
) -> None:
    claims = facts(10)
    store.settle(completed(claims, store.claim(claims)))
    for _ in range(5):
        store.claim(copies(claims))
    between.count()
    assert {it.kind for it in store.claim(copies(claims))} == {"duplicate"}
    assert between.count() == [READ]
    for _ in range(20):
        store.claim(facts(10))
    between.count()
    store.claim(facts(10))
    assert between.count() == [WRITE], "new events are written first again"


def test_a_hundred_new_events_are_eight_requests_side_by_side(
    store: DynamoDBStore, between: Between
) -> None:
    claims = facts(100)
    store.settle(completed(claims, store.claim(claims)))
    assert between.count() == [WRITE] * 8


def test_a_version_is_read_and_written_and_settled_without_reading(
    store: DynamoDBStore, between: Between
) -> None:
    claims = [version(fact().key, 1) for _ in range(10)]
    runs = store.claim(claims)
    assert between.count() == [READ, WRITE]
    store.settle(
        [Settlement(claim, run.token, "extend") for claim, run in zip(claims, runs, strict=True)]
    )
    assert store.settle(completed(claims, runs)) == ["kept"] * 10
    assert between.count() == [WRITE, WRITE]


def test_another_handle_reads_before_it_settles(opening: Open, between: Between) -> None:
    claims = facts(3)
    runs = opening().claim(claims)
    between.count()
    assert opening().settle(completed(claims, runs)) == ["kept"] * 3
    assert between.count() == [READ, WRITE]


def test_a_remembered_run_is_read_again_before_its_settlement_is_refused(
    opening: Open,
) -> None:
    """By the memory of the first handle the record has expired; the second handle renewed it."""
    first, second = opening(), opening()
    now = 2_000_000_000_000
    claim = fact(lease=2 * DAY, remember=DAY)
    (run,) = first.claim([claim], now=now)
    renewed = Settlement(claim, run.token, "extend")
    assert second.settle([renewed], now=now + DAY + DAY // 2) == ["kept"]
    assert first.settle(completed([claim], [run]), now=now + 3 * DAY) == ["kept"]


def test_every_read_is_consistent(store: DynamoDBStore, between: Between) -> None:
    """All reads are consistent on the emulators, so the test looks at the requests."""
    asked = []

    def noting(_: str, body: bytes, forward: Forward) -> Reply:
        asked.append(json.loads(body))
        return forward(body)

    claims = facts(2)
    store.claim(claims)
    with between.spoiling(noting):
        store.claim(copies(claims))
        store.claim([version(fact().key, 1)])
        store.show(claims[0].key)
    reads = [it["RequestItems"] for it in asked if "RequestItems" in it]
    assert len(reads) == 3
    assert all(wanted["ConsistentRead"] for read in reads for wanted in read.values())


def test_a_limited_number_of_runs_is_remembered(
    store: DynamoDBStore, between: Between, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "GRANTS_KEPT", 4)
    claims = facts(6)
    runs = store.claim(claims)
    assert len(store._grants) == 4
    assert store.settle(completed(claims, runs)) == ["kept"] * 6
    assert not store._grants


def test_a_late_completion_is_refused_though_its_run_is_remembered(opening: Open) -> None:
    """The remembered record is only an assumption: a later write of another handle is found."""
    first, second = opening(), opening()
    claim = fact(lease=500)
    (run,) = first.claim([claim], now=2_000_000_000_000)
    other = fact(claim.key)
    (taken,) = second.claim([other], now=2_000_000_000_500)
    assert taken.attempt == 2
    for action in ("complete", "release", "bury", "extend"):
        late = Settlement(claim, run.token, action)
        assert first.settle([late], now=2_000_000_000_500) == ["fenced"]
    assert second.settle(completed([other], [taken]), now=2_000_000_000_501) == ["kept"]


def test_two_settlements_of_one_key_in_a_call_are_done_in_their_order(
    store: DynamoDBStore,
) -> None:
    claim = fact(lease=500)
    now = 2_000_000_000_000
    (run,) = store.claim([claim], now=now)
    again = fact(claim.key)
    (taken,) = store.claim([again], now=now + 500)
    both = [Settlement(claim, run.token, "extend"), Settlement(again, taken.token, "extend")]
    assert store.settle(both, now=now + 501) == ["fenced", "kept"]
    ends = [Settlement(again, taken.token, "release"), Settlement(again, taken.token, "complete")]
    assert store.settle(ends, now=now + 502) == ["kept", "kept"]
    assert store.claim([fact(claim.key)], now=now + 503)[0].kind == "duplicate"
