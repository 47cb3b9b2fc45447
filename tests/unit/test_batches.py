"""A batch gives the same verdicts and causes as its events one by one, at no higher cost."""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from eventonce import Consumer, Rule, envelope
from eventonce.core.plan import Plan
from eventonce.errors import Reject, StoreError, StoreUnavailable
from eventonce.stores.memory import MemoryStore
from eventonce.stores.sqlite import SQLiteStore
from eventonce.testing.harness import ManualClock
from eventonce.types import Claim, Job, Settlement, SettleResult, Verdict
from tests.helpers import Look, WatchedStore, away

FACT = Rule(name="call", match="call", key=["detail.call"], attempts=2)
STATE = Rule(name="agent", match="agent", subject=["detail.agent"], order="detail.version")
SAME_ID = "the same again under the same transport id"
OTHER_ID = "the same again under another transport id"


def call(id: str, number: int = 0) -> dict[str, Any]:
    """A call with this transport id; a hyphen stands for no transport id."""
    return {"id": id.strip("-"), "detail-type": "call", "detail": {"call": number}}


def agent(id: str, version: int) -> dict[str, Any]:
    return {"id": id, "detail-type": "agent", "detail": {"agent": 1, "version": version}}


@pytest.mark.parametrize("before", [(), ("e",), ("r",), ("x",)])
@pytest.mark.parametrize(
    "ids",
    [
        "ee",
        "er",
        "re",
        "eer",
        "ere",
        "erx",
        "err",
        "xre",
        "rrree",
        "exexr",
        "--",
        "e-",
        "-e",
        "-er",
    ],
)
def test_the_cause_of_a_copy_is_the_same_in_a_batch_as_one_by_one(
    ids: str, before: Sequence[str]
) -> None:
    told = []
    for together in (True, False):
        with Consumer("memory:", rules=FACT, handler=lambda _: None) as consumer:
            for name in before:
                consumer.process([call(name)])
            calls = [[call(it) for it in ids]] if together else [[call(it)] for it in ids]
            outcomes = [outcome for events in calls for outcome in consumer.process(events)]
            told.append([(outcome.status, outcome.reason) for outcome in outcomes])
    assert told[0] == told[1]


@pytest.mark.parametrize("made", [list, tuple, iter, dict.fromkeys])
def test_events_may_come_in_any_iterable(made: Callable[[Any], Any]) -> None:
    events = [json.dumps(call("a", 1)), json.dumps(call("b", 2))]
    with Consumer("memory:", rules=FACT, handler=lambda _: None) as consumer:
        given = made(events)
        outcomes = consumer.process(given.keys() if isinstance(given, dict) else given)
    assert [outcome.status for outcome in outcomes] == ["done", "done"]


def test_another_transport_id_in_a_later_batch_is_not_reported_as_the_same() -> None:
    with Consumer("memory:", rules=FACT, handler=lambda _: None) as consumer:
        consumer.process([call("e")])
        same, other = consumer.process([call("e"), call("r")])
    assert (same.reason, other.reason) == (SAME_ID, OTHER_ID)


class Counting(MemoryStore):
    """A store that counts its claims."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def claim(self, claims: Sequence[Claim], now: int | None = None) -> list[Verdict]:
        self.asked += len(claims)
        return super().claim(claims, now)


VERSIONS = [agent(f"v{number}", number) for number in range(300)]
REPUBLISHED = [call(f"r{number}") for number in range(300)]


@pytest.mark.parametrize(
    ("events", "status", "asked"),
    [(VERSIONS, "done", 300), (REPUBLISHED, "duplicate", 300), ([call("r")] * 300, "duplicate", 1)],
    ids=["versions of a subject", "re-publishes of what is done", "one of them again and again"],
)
def test_many_events_of_one_key_cost_no_more_in_one_call_than_one_by_one(
    events: Sequence[dict[str, Any]], status: str, asked: int
) -> None:
    """Each event is claimed at most once, and compared a few times before."""
    store, looks = Counting(), 0
    with Consumer(store, rules=[FACT, STATE], handler=lambda _: None) as consumer:
        consumer.process([call("e")])
        store.asked = 0

        def count(frame: Any, what: str, _: Any) -> Any:
            nonlocal looks
            looks += frame.f_code.co_name == "_is_copy"

        sys.setprofile(count)
        try:
            outcomes = consumer.process(events)
        finally:
            sys.setprofile(None)
    assert [outcome.status for outcome in outcomes] == [status] * 300
    assert store.asked == asked
    assert looks <= 4 * 300


def test_a_busy_event_does_not_run_even_if_its_verdict_carries_a_token() -> None:
    ran: list[Job] = []
    store = WatchedStore(lambda _, __: [Verdict("busy", token=7, attempt=1, wait=1_000)])
    with Consumer(store, rules=FACT, handler=ran.append) as consumer:
        (outcome,) = consumer.process([call("e")])
    assert (outcome.status, ran) == ("busy", [])


def test_the_time_of_a_retry_is_given_by_the_clock_of_this_machine() -> None:
    """The store's clock may be minutes off; the store returns a duration, not a time."""
    for off in (-600_000, 600_000):
        store = MemoryStore(clock=partial(int, 5_000_000 + off))
        with Consumer(store, rules=FACT, handler=lambda _: None, clock=lambda: 5_000_000) as one:
            store.claim([one.rules.plan(envelope.read(call("e")), 1)[1]])
            (outcome,) = one.process([call("e")])
        assert (outcome.status, outcome.retry_at) == ("busy", 5_060_000)


class Away:
    """A store with transactions, whose database is away."""

    embedded = True

    def __init__(self, store: MemoryStore, raised: StoreError) -> None:
        self._store, self._raised = store, raised

    def claim(self, claims: Sequence[Claim], now: int | None = None) -> list[Verdict]:
        return self._store.claim(claims, now)

    def settle(
        self, settlements: Sequence[Settlement], now: int | None = None
    ) -> list[SettleResult]:
        return self._store.settle(settlements, now)

    def transaction(self) -> Any:
        raise self._raised

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def test_an_outage_inside_a_transaction_is_no_attempt_of_the_events() -> None:
    store = MemoryStore()
    away = Away(store, StoreUnavailable("no connection slots"))
    with Consumer(away, rules=FACT, handler=lambda job: job.connection) as consumer:
        for _ in range(10):
            (outcome,) = consumer.process([call("e")])
            assert outcome.reason == "StoreUnavailable: no connection slots"
            assert outcome.status == "failed"
    with Consumer(store, rules=FACT, handler=lambda _: None) as back:
        assert [it.status for it in back.process([call("e")])] == ["done"]


def test_a_handlers_own_mistake_in_a_transaction_counts_as_an_attempt() -> None:
    away = Away(MemoryStore(), StoreError("commit() is refused"))
    with Consumer(away, rules=FACT, handler=lambda job: job.connection) as consumer:
        told = [consumer.process([call("e")])[0].status for _ in range(3)]
    assert told == ["failed", "dead", "dead"]


@pytest.mark.parametrize(
    ("raised", "status"), [(StoreUnavailable("the disk is full"), "failed"), (ValueError(), "dead")]
)
def test_an_error_of_the_disk_in_a_handlers_transaction_does_not_count_as_an_attempt(
    raised: Exception, status: str, tmp_path: Path
) -> None:
    def handler(job: Job) -> None:
        assert job.connection is not None
        raise raised

    rule = msgspec.structs.replace(FACT, attempts=1)
    with Consumer(SQLiteStore(tmp_path / "a.db"), rules=rule, handler=handler) as consumer:
        assert [consumer.process([call("e")])[0].status for _ in range(2)] == [status] * 2


def test_the_writes_of_a_handler_commit_also_unguarded_and_are_undone_when_its_run_is_fenced(
    tmp_path: Path,
) -> None:
    clock, rivals = ManualClock(), list[str]()
    store = SQLiteStore(tmp_path / "a.db", clock=clock)

    def write(job: Job) -> None:
        job.connection.execute("create table if not exists effects (id text)")
        job.connection.execute("insert into effects values (?)", [job.event.id])

    def late(job: Job) -> None:
        clock.advance(120)
        rivals.extend(outcome.status for outcome in rival.process([call("rival", 2)]))
        write(job)

    shadow = msgspec.structs.replace(FACT, shadow=True)
    shadowed = Consumer(store, rules=shadow, handler=write)
    again = [shadowed.process([call("a", 1)])[0].status for _ in range(2)]
    assert again == ["done", "unguarded"]
    rival, slow = (Consumer(store, rules=FACT, handler=one) for one in (write, late))
    assert [outcome.status for outcome in slow.process([call("late", 2)])] == ["fenced"]
    assert rivals == ["done"]
    store.close()
    database = sqlite3.connect(tmp_path / "a.db")
    ids = database.execute("select id from effects").fetchall()
    database.close()
    assert ids == [("a",), ("a",), ("rival",)]


def test_the_outcome_of_an_event_to_be_retried_has_the_time_of_the_retry() -> None:
    full = WatchedStore(away("put_letters", error=StoreError("full")))

    def handler(job: Job) -> None:
        raise Reject("no") if job.event.id == "rejected" else ValueError("not now")

    events: list[Any] = [b"no event", call("a", 1), call("a", 1), call("rejected", 2)]
    with Consumer(full, rules=FACT, clock=lambda: 5_000_000) as consumer:
        consumer.on("call")(handler)
        *outcomes, unhandled = consumer.process([*events, agent("b", 1)])
    assert [outcome.status for outcome in outcomes] == ["failed", "failed", "busy", "failed"]
    assert [outcome.retry_at for outcome in outcomes] == [5_001_000] * 4
    assert [one.reason.endswith("could not be kept: full") for one in outcomes[::3]] == [True] * 2
    assert (unhandled.status, unhandled.retry_at) == ("ignored", None)


def refused(verb: str, _: object) -> list[str]:
    return ["fenced"] if verb == "settle" else []


@pytest.mark.parametrize("look", [away("claim"), away("settle"), refused])
def test_an_event_whose_claim_or_settlement_fails_is_retried_later(look: Look) -> None:
    store = WatchedStore(look)
    with Consumer(store, rules=FACT, handler=lambda _: None, clock=lambda: 5_000_000) as consumer:
        consumer.runtime.pauses = ()
        (outcome,) = consumer.process([call("a", 1)])
    assert (outcome.ack, outcome.retry_at) == (False, 5_001_000)


@pytest.mark.parametrize(("deliveries", "attempts"), [(1, 1), (2, 2), (3, 2)])
def test_an_event_is_tried_no_more_often_than_it_is_delivered(
    deliveries: int, attempts: int
) -> None:
    with Consumer("memory:", rules=FACT) as consumer:
        event = envelope.read(call("a"))
        plan = consumer.runtime.planner.plan(event, 1, deliveries=deliveries)
    assert isinstance(plan, Plan)
    assert plan.claim.attempts == attempts
