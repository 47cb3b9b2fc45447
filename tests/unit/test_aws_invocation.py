"""The remaining time of an invocation: how many events are claimed, and how long leases last."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import MagicMock

import msgspec
import pytest

from eventonce import Consumer, Job, Rule
from eventonce.aws import NotSettled, lambda_handler
from eventonce.aws.invocation import Invocation, RecentTime
from eventonce.stores.memory import MemoryStore
from eventonce.types import Claim, Settlement, SettleResult, Verdict
from tests.helpers import PATIENCE
from tests.unit.invoked import RULE, Crm, event, failures, record

STATE = Rule(name="state", match="call", subject=["detail.call"], order="detail.version")


class Context:
    """Lambda's context, which returns these remaining milliseconds, one after the other."""

    def __init__(self, *left: int) -> None:
        self._left = list(left)

    def get_remaining_time_in_millis(self) -> int:
        return self._left.pop(0) if len(self._left) > 1 else self._left[0]


class RecordingStore(MemoryStore):
    """A store that records the claims and the extensions of leases."""

    def __init__(self) -> None:
        super().__init__()
        self.claims: list[list[Claim]] = []
        self.extended: list[Settlement] = []
        self.renewed = threading.Event()
        self.completed = threading.Event()

    def claim(self, claims: Sequence[Claim], now: int | None = None) -> list[Verdict]:
        self.claims.append(list(claims))
        return super().claim(claims, now)

    def settle(
        self, settlements: Sequence[Settlement], now: int | None = None
    ) -> list[SettleResult]:
        extended = [one for one in settlements if one.action == "extend"]
        if extended:
            self.extended += extended
            self.renewed.set()
        answers = super().settle(settlements, now)
        if any(one.action == "complete" for one in settlements):
            self.completed.set()
        return answers


@pytest.fixture
def store() -> RecordingStore:
    return RecordingStore()


@pytest.fixture
def crm() -> Crm:
    return Crm()


def invoke(
    store: RecordingStore, payload: Any, context: Context, *, rule: Rule = RULE, handler: Any = None
) -> Any:
    consumer = Consumer(store, rules=rule, handler=handler or (lambda _: None))
    return lambda_handler(consumer)(payload, context)


def test_an_invocation_stops_taking_records_in_time_to_settle_the_records_it_took(crm: Crm) -> None:
    records = [record(call) for call in "abcd"]
    answer = crm.handler({"Records": records}, Context(60_000, 60_000, 60_000, 500))
    assert failures(answer) == [f"message-{call}" for call in "bcd"]
    assert crm.ran == ["a"]
    assert crm.consumer.admin.stats().records == 1


def test_the_events_of_a_list_are_tried_as_far_as_the_time_allows(crm: Crm) -> None:
    calls = [event(call) for call in "abc"]
    with pytest.raises(NotSettled, match=r"2 of 3 events not settled.*no time was left"):
        crm.handler(calls, Context(60_000, 60_000, 60_000, 500))
    assert crm.ran == ["a"]
    crm.handler(calls, Context(60_000))
    assert crm.ran == ["a", "b", "c"]


def test_a_request_with_an_event_for_which_no_time_was_left_is_answered_with_503(crm: Crm) -> None:
    request = {"requestContext": {}, "body": json.dumps([event("a"), event("b")])}
    answer = crm.handler(request, Context(60_000, 60_000, 60_000, 500))
    assert answer["statusCode"] == 503
    told = json.loads(answer["body"])["events"]
    assert [(one["id"], one["status"]) for one in told] == [("a", "done"), ("b", "failed")]


@pytest.fixture
def skip(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Advances the monotonic clock by some seconds; the clock does not move otherwise."""
    # Whole seconds: a minute later less now is a minute, and for most fractions of a second is not.
    # Not 0, which means that a handler has not begun.
    passed = [float(int(time.monotonic()) + 1)]
    monkeypatch.setattr(time, "monotonic", lambda: sum(passed))
    return passed.append


def test_events_that_have_not_begun_when_the_time_is_up_are_returned_to_the_queue(
    store: RecordingStore, skip: Callable[[float], None]
) -> None:
    """A warm environment claims a batch by recent times that are too short for this batch."""
    ran: list[str] = []

    def handle(job: Job) -> None:
        ran.append(job.event.id)
        skip(59.5 if job.event.id == "b" else 0.001)

    rule = Rule(name="call", match="call", key=["detail.call"], attempts=1)
    consumer = Consumer(store, rules=rule, handler=handle)
    handler = lambda_handler(consumer)
    handler(event("a"), Context(60_000))
    records = [record(call) for call in "bcd"]
    assert failures(handler({"Records": records}, Context(60_000))) == ["message-c", "message-d"]
    assert ran == ["a", "b"]
    assert [len(claims) for claims in store.claims] == [1, 3]
    assert list(consumer.letters()) == []
    # The recent times now include the slow handler.
    handler({"Records": [record("e"), record("f")]}, Context(60_000))
    assert [len(claims) for claims in store.claims] == [1, 3, 1]


@pytest.mark.usefixtures("skip")
@pytest.mark.parametrize("left", [0, 1, 300, 900, 3_000])
def test_an_invocation_tries_at_least_one_event_however_short_its_time(crm: Crm, left: int) -> None:
    answer = crm.handler({"Records": [record("a"), record("b")]}, Context(left))
    assert "message-a" not in failures(answer)


@pytest.mark.usefixtures("skip")
@pytest.mark.parametrize(("margin", "room"), [(600.0, 24), (12.0, 24), (4.0, 28), (0.0, 30)])
def test_a_short_invocation_keeps_back_its_margin_and_at_most_a_fifth_of_its_time(
    crm: Crm, margin: float, room: int
) -> None:
    recent = RecentTime()
    recent.note(1.0)
    # Each event needs two seconds of the minute.
    assert Invocation(Context(60_000), margin, recent).room(crm.consumer) == room


def test_an_event_is_tried_although_its_handler_is_too_slow_for_the_remaining_time(
    store: RecordingStore, skip: Callable[[float], None]
) -> None:
    consumer = Consumer(store, rules=RULE, handler=lambda _: skip(0.2))
    handler = lambda_handler(consumer)
    handler(event("a"), Context(60_000))
    answer = handler({"Records": [record("b"), record("c")]}, Context(300))
    assert failures(answer) == ["message-c"]


def test_a_warm_environment_claims_a_batch_at_once_by_its_recent_times(
    store: RecordingStore, skip: Callable[[float], None]
) -> None:
    consumer = Consumer(store, rules=RULE, handler=lambda _: skip(0.001))
    handler = lambda_handler(consumer)
    handler({"Records": [record(call) for call in "abcd"]}, Context(60_000))
    handler({"Records": [record(call) for call in "efgh"]}, Context(60_000))
    assert [len(claims) for claims in store.claims] == [1, 3, 4]


@pytest.mark.usefixtures("skip")
def test_copies_do_not_count_as_recent_times_but_are_claimed_in_growing_batches(
    store: RecordingStore,
) -> None:
    records = [record(str(number)) for number in range(15)]
    invoke(store, {"Records": records}, Context(60_000))
    store.claims.clear()
    invoke(store, {"Records": records}, Context(60_000))
    assert [len(claims) for claims in store.claims] == [1, 2, 4, 8]


def test_slow_handlers_that_ran_side_by_side_are_not_measured_as_quick_handlers(
    store: RecordingStore, skip: Callable[[float], None]
) -> None:
    async def handle(_: Job) -> None:
        # All handlers side by side take no longer than one handler.
        skip(0.2 / len(store.claims[-1]))

    consumer = Consumer(store, rules=RULE, handler=handle)
    handler = lambda_handler(consumer)
    with consumer:
        handler({"Records": [record(call) for call in "abcdefgh"]}, Context(60_000))
        answer = handler({"Records": [record("i"), record("j")]}, Context(350))
    assert [len(claims) for claims in store.claims] == [1, 7, 1]
    assert failures(answer) == ["message-j"]


def test_a_fact_is_leased_for_the_time_that_is_left(store: RecordingStore) -> None:
    invoke(store, event("a"), Context(50_000))
    (claim,) = store.claims[0]
    assert 20_000 < claim.lease <= 50_000


def test_a_lease_of_a_rule_that_is_shorter_than_the_time_left_is_not_changed(
    store: RecordingStore,
) -> None:
    invoke(store, event("a"), Context(600_000))
    (claim,) = store.claims[0]
    assert claim.lease == 60_000


@pytest.mark.parametrize("context", [None, {}, MagicMock(), object()])
def test_a_context_without_the_remaining_time_sets_no_deadline(
    store: RecordingStore, context: Any
) -> None:
    consumer = Consumer(store, rules=RULE, handler=lambda _: None)
    lambda_handler(consumer)({"Records": [record("a"), record("b")]}, context)
    assert [claim.lease for claims in store.claims for claim in claims] == [60_000, 60_000]


def test_a_state_keeps_the_lease_of_its_rule_because_older_versions_wait_for_the_lease(
    store: RecordingStore,
) -> None:
    version = event("a") | {"detail": {"call": "a", "version": 1}}
    invoke(store, version, Context(20_000), rule=STATE)
    (claim,) = store.claims[0]
    assert claim.lease == 60_000


def test_a_lease_until_the_end_of_the_invocation_is_not_renewed(store: RecordingStore) -> None:
    consumer = Consumer(store, rules=RULE, handler=lambda _: None)
    lambda_handler(consumer)(event("a"), Context(30_000))
    assert consumer.runtime.gate._timer is None


def test_a_lease_as_long_as_the_time_left_is_not_renewed(store: RecordingStore) -> None:
    consumer = Consumer(store, rules=RULE, handler=lambda _: None)
    consumer.process([event("a")], deadline=60.0)
    assert consumer.runtime.gate._timer is None


@pytest.mark.parametrize("left", [0.0, -1.0])
def test_an_event_claimed_after_the_deadline_has_the_shortest_lease(
    store: RecordingStore, left: float
) -> None:
    Consumer(store, rules=RULE, handler=lambda _: None).process([event("a")], deadline=left)
    assert [claim.lease for claim in store.claims[0]] == [1]


SHORT = Rule(name="call", match="call", key=["detail.call"], lease=0.3)


@pytest.mark.parametrize(
    ("deadline", "leases"),
    [(3600.0, [300, 300, 300]), (0.5, [300, pytest.approx(250, abs=1), 1])],
    ids=["far away", "near"],
)
def test_a_shorter_lease_is_renewed_as_the_rule_says_but_not_beyond_the_deadline(
    store: RecordingStore, skip: Callable[[float], None], deadline: float, leases: list[Any]
) -> None:
    def handle(_: Job) -> None:
        for seconds in (0.125, 0.125, 0.5):
            store.renewed.clear()
            skip(seconds)
            assert store.renewed.wait(PATIENCE)

    Consumer(store, rules=SHORT, handler=handle).process([event("a")], deadline=deadline)
    assert [one.claim.lease for one in store.extended] == leases


def test_the_lease_of_a_handler_that_runs_for_too_long_is_not_renewed_even_once(
    store: RecordingStore, skip: Callable[[float], None]
) -> None:
    """The lease of the event that waits behind this handler is renewed at the same moment."""

    def handle(job: Job) -> None:
        if job.event.id == "a":
            skip(0.125)
            assert store.renewed.wait(PATIENCE)

    rule = msgspec.structs.replace(SHORT, timeout="50ms")
    a, b = Consumer(store, rules=rule, handler=handle).process([event("a"), event("b")])
    assert [one.claim.key for one in store.extended] == [b.key]
    assert (a.status, b.status) == ("done", "done")


def test_a_finished_event_is_settled_while_the_next_handler_of_its_batch_still_runs(
    store: RecordingStore,
) -> None:
    """The settlement is kept even if the process is killed in the middle of the batch."""

    def handle(job: Job) -> None:
        if job.event.id == "a":
            raise LookupError
        if job.event.id == "c":
            assert store.completed.wait(PATIENCE)

    consumer = Consumer(store, rules=RULE, handler=handle)
    outcomes = consumer.process([event("a"), event("b"), event("c")], deadline=30.0)
    assert [outcome.status for outcome in outcomes] == ["failed", "done", "done"]


class Killed(BaseException):
    """The end of the process."""


class Timed:
    """A store with the test's clock, for a process that may end before its settlement arrives."""

    def __init__(self, store: MemoryStore, clock: list[int], *, gone: bool = False) -> None:
        self._store, self._clock, self._gone = store, clock, gone

    def claim(self, claims: Sequence[Claim], now: int | None = None) -> list[Verdict]:
        return self._store.claim(claims, self._clock[0])

    def settle(
        self, settlements: Sequence[Settlement], now: int | None = None
    ) -> list[SettleResult]:
        if self._gone:
            return ["unknown"] * len(settlements)
        return self._store.settle(settlements, self._clock[0])


def test_the_lease_of_a_killed_invocation_ends_at_the_deadline_of_the_invocation(
    store: RecordingStore,
) -> None:
    clock, attempts = [1_000_000], []

    def handle(job: Job) -> None:
        attempts.append(job.attempt)
        if job.attempt == 1:
            raise Killed

    consumer = Consumer(store, rules=RULE, handler=handle)
    with pytest.raises(Killed):
        consumer.over(Timed(store, clock, gone=True)).process([event("a")], deadline=5.0)
    later = consumer.over(Timed(store, clock))
    clock[0] += 4_999
    assert [outcome.status for outcome in later.process([event("a")])] == ["busy"]
    clock[0] += 1
    assert [outcome.status for outcome in later.process([event("a")])] == ["done"]
    assert attempts == [1, 2]


def test_two_environments_of_one_snapshot_claim_with_different_nonces(
    store: RecordingStore,
) -> None:
    for call in "ab":
        random.seed(7)
        invoke(store, event(call), Context(60_000))
    assert store.claims[0][0].nonce != store.claims[1][0].nonce
