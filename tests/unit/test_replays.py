"""An archive replay: a missing event runs, a forgotten event becomes a dead letter."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

import msgspec
import pytest

from eventonce import Consumer, Job, Reject, Rule
from eventonce.stores.memory import MemoryStore
from eventonce.testing.harness import CLOCK_START, ManualClock
from eventonce.types import Claim, Settlement
from tests.helpers import WatchedStore, away, statuses

DAY = 86_400_000
CALL = Rule(name="call", match="call", key=["detail.call"], remember="10d")
AGENT = Rule(
    name="agent",
    match="agent",
    subject=["detail.agent"],
    order="detail.version",
    remember="10d",
)


def call(number: int, *, replay: str = "", age: float | None = 0, **more: Any) -> bytes:
    """A call whose envelope is `age` days old."""
    envelope = {"id": f"id-{number}", "detail-type": "call", "detail": {"call": number, **more}}
    if age is not None:
        envelope["time"] = iso(age)
    if replay:
        envelope["replay-name"] = replay
    return msgspec.json.encode(envelope)


def iso(age: float) -> str:
    return datetime.fromtimestamp(CLOCK_START / 1000 - age * 86_400, UTC).isoformat()


@pytest.fixture
def ran() -> list[str]:
    return []


Make = Callable[[Rule], Consumer]


@pytest.fixture
def make(store: MemoryStore, clock: ManualClock, ran: list[str]) -> Make:
    def make(rule: Rule) -> Consumer:
        return Consumer(
            store, rules=rule, handler=lambda job: ran.append(job.event.id), clock=clock
        )

    return make


def with_policy(policy: str, **more: Any) -> Rule:
    return msgspec.structs.replace(CALL, on_replay=policy, **more)


def test_a_replay_runs_only_events_without_an_effect(make: Make, ran: list[str]) -> None:
    consumer = make(CALL)
    consumer.process([call(1)])
    replayed = [call(number, replay="friday") for number in (1, 2)]
    assert statuses(consumer.process(replayed)) == ["duplicate", "done"]
    assert statuses(consumer.process(replayed)) == ["duplicate", "duplicate"]
    assert ran == ["id-1", "id-2"]


def test_a_forced_replay_runs_an_event_once_for_each_replay(make: Make, ran: list[str]) -> None:
    consumer = make(with_policy("force"))
    events = [call(1), *[call(1, replay=name) for name in ("a", "a", "b")]]
    assert statuses([consumer.process([event])[0] for event in events]) == [
        "done",
        "done",
        "duplicate",
        "done",
    ]
    assert statuses(consumer.process([call(1)])) == ["duplicate"]


def test_a_reported_replay_changes_nothing_and_has_the_effect_in_its_reason(
    make: Make, store: MemoryStore, ran: list[str]
) -> None:
    consumer = make(with_policy("report"))
    consumer.process([call(1)])
    known, missing, old = consumer.process(
        [call(1, replay="r"), call(2, replay="r"), call(3, replay="r", age=30)]
    )
    assert statuses([known, missing, old]) == ["duplicate", "ignored", "ignored"]
    assert "would run" in missing.reason
    assert "longer ago than the 10 days" in old.reason
    assert "letter" not in old.reason
    assert (ran, store.stats().records, list(consumer.letters())) == (["id-1"], 1, [])


def test_a_forced_replay_runs_although_a_handmade_table_has_the_key_of_its_event(
    make: Make, store: MemoryStore, ran: list[str]
) -> None:
    """The keys of the table are found for live events only, because they name no replay."""
    key = sha256(b"1").hexdigest().encode()
    claim = Claim(key, 1, 1000, 10 * DAY, 5)
    store.settle([Settlement(claim, store.claim([claim])[0].token, "complete")])
    consumer = make(with_policy("force", also=("sha256(detail.call)",)))
    events = [call(1), call(1, replay="a"), call(1, replay="a")]
    outcomes = [consumer.process([event])[0] for event in events]
    assert statuses(outcomes) == ["duplicate", "done", "duplicate"]


def test_a_forced_replay_of_a_subject_keeps_the_order_within_the_replay(
    make: Make, ran: list[str]
) -> None:
    def agent(version: int, replay: str = "") -> dict[str, Any]:
        detail = {"agent": "a1", "version": version}
        name = f"v{version}{replay}"
        return {"id": name, "detail-type": "agent", "replay-name": replay, "detail": detail}

    consumer = make(msgspec.structs.replace(AGENT, on_replay="force"))
    consumer.process([agent(9)])
    replayed = [consumer.process([agent(version, "a")])[0] for version in (1, 2, 1, 2)]
    assert statuses(replayed) == ["done", "done", "stale", "duplicate"]
    assert statuses(consumer.process([agent(8)])) == ["stale"], "what comes live is as before"


def test_an_event_that_was_given_up_is_dead_in_a_replay_too(
    store: MemoryStore, clock: ManualClock, ran: list[str]
) -> None:
    def never(_: Job) -> None:
        raise Reject("no")

    Consumer(store, rules=CALL, handler=never, clock=clock).process([call(1)])
    consumer = Consumer(
        store, rules=CALL, handler=lambda job: ran.append(job.event.id), clock=clock
    )
    assert statuses(consumer.process([call(1, replay="friday")])) == ["dead"]
    assert statuses(consumer.redrive()) == ["done"]
    assert (ran, list(consumer.letters())) == (["id-1"], [])


@pytest.mark.parametrize("verified", [False, True])
def test_a_reported_replay_writes_no_dead_letter(
    store: MemoryStore, clock: ManualClock, verified: bool
) -> None:
    def never(_: Job) -> None:
        raise Reject("no")

    rule = with_policy("report", verify=("detail.amount",) if verified else False)
    handler = (lambda _: None) if verified else never
    consumer = Consumer(store, rules=rule, handler=handler, clock=clock)
    consumer.process([call(1, amount=1)])
    store.drop_letters([letter.id for letter in consumer.letters()])
    (outcome,) = consumer.process([call(1, replay="r", amount=2)])
    assert (outcome.status, list(consumer.letters())) == ("ignored", [])


def test_a_live_conflict_under_the_policy_report_writes_a_dead_letter(
    store: MemoryStore, clock: ManualClock
) -> None:
    rule = with_policy("report", verify=("detail.amount",))
    consumer = Consumer(store, rules=rule, handler=lambda _: None, clock=clock)
    consumer.process([call(1, amount=1)])
    assert statuses(consumer.process([call(1, amount=2)])) == ["conflict"]
    assert len(list(consumer.letters())) == 1


def test_a_replay_older_than_the_remembered_time_becomes_a_dead_letter_and_does_not_run(
    make: Make, clock: ManualClock, ran: list[str]
) -> None:
    consumer = make(CALL)
    consumer.process([call(1)])
    clock.now += 10 * DAY
    (outcome,) = consumer.process([call(1, replay="friday")])
    assert (outcome.status, outcome.ack, ran) == ("dead", True, ["id-1"])
    (letter,) = consumer.letters()
    assert letter.event == call(1, replay="friday")
    for word in (iso(0)[:10], "10 days", "nobody knows", "redrive"):
        assert word in letter.reason


def test_a_replay_within_the_remembered_time_without_a_record_runs(
    make: Make, clock: ManualClock, ran: list[str]
) -> None:
    clock.now += 10 * DAY - 1
    assert statuses(make(CALL).process([call(1, replay="friday")])) == ["done"]
    assert ran == ["id-1"]


def test_an_old_replay_whose_record_still_exists_is_a_duplicate(make: Make, ran: list[str]) -> None:
    consumer = make(CALL)
    consumer.process([call(1, age=30)])
    (outcome,) = consumer.process([call(1, age=30, replay="friday")])
    assert outcome.status == "duplicate"
    assert outcome.reason == "the same again under the same transport id"
    assert list(consumer.letters()) == []


def test_a_redrive_of_an_old_replay_runs_the_event_once(make: Make, ran: list[str]) -> None:
    consumer = make(CALL)
    assert statuses(consumer.process([call(1, age=30, replay="friday")])) == ["dead"]
    assert statuses(consumer.redrive()) == ["done"]
    assert (ran, list(consumer.letters())) == (["id-1"], [])
    assert statuses(consumer.process([call(1, age=30, replay="monday")])) == ["duplicate"]


def test_one_old_event_replayed_twice_is_one_dead_letter(make: Make) -> None:
    consumer = make(CALL)
    consumer.process([call(1, age=30, replay="friday"), call(1, age=30, replay="friday")])
    consumer.process([call(1, age=30, replay="monday")])
    assert len(list(consumer.letters())) == 1


def test_an_old_live_event_still_runs(make: Make, ran: list[str]) -> None:
    """A queue or a partner may be late; only a replay delivers earlier events on purpose."""
    assert statuses(make(CALL).process([call(1, age=30)])) == ["done"]


def test_a_forced_replay_of_any_age_runs(make: Make, ran: list[str]) -> None:
    event = call(1, age=300, replay="friday")
    assert statuses(make(with_policy("force")).process([event])) == ["done"]


def test_a_replay_without_a_time_becomes_a_dead_letter(make: Make) -> None:
    (outcome,) = make(CALL).process([call(1, age=None, replay="friday")])
    assert outcome.status == "dead"
    assert "has no time" in outcome.reason


@pytest.mark.parametrize(
    "time", ["soon", "-9007199254740000", "0001-01-01T00:00:00+23:59", "1970-01-01T00:00:00Z"]
)
def test_an_impossible_time_counts_as_no_time_and_fails_no_other_event(
    make: Make, ran: list[str], time: str
) -> None:
    event = msgspec.json.decode(call(1, replay="friday")) | {"time": time}
    odd, other = make(CALL).process([event, call(2)])
    assert statuses([odd, other]) == ["dead", "done"]
    assert "has no time" in odd.reason


@pytest.mark.parametrize("time", [iso(-1), iso(-400), "9007199254740000"])
def test_a_replay_with_a_time_in_the_future_becomes_a_dead_letter(
    make: Make, ran: list[str], time: str
) -> None:
    event = msgspec.json.decode(call(1, replay="friday")) | {"time": time}
    (outcome,) = make(CALL).process([event])
    assert (outcome.status, ran) == ("dead", [])
    assert "has not come yet" in outcome.reason


def test_the_clock_of_a_sender_may_be_a_few_minutes_ahead(make: Make, ran: list[str]) -> None:
    minutes = 4 / 1440
    assert statuses(make(CALL).process([call(1, age=-minutes, replay="friday")])) == ["done"]


def test_the_time_of_the_event_counts_where_it_is_earlier_than_that_of_the_envelope(
    make: Make, clock: ManualClock, ran: list[str]
) -> None:
    """The first copy took effect and is forgotten; the copy in the archive was published later."""
    rule = Rule(name="call", match="call", key=["detail.call"], at="detail.at", remember="10d")
    consumer = make(rule)
    consumer.process([call(1, at=iso(0))])
    clock.now += 11 * DAY
    published_again = call(1, age=-4, at=iso(0), replay="friday")
    assert statuses(consumer.process([published_again])) == ["dead"]
    assert ran == ["id-1"]


def test_an_old_replayed_version_of_a_state_is_stale_or_becomes_a_dead_letter(
    make: Make, ran: list[str]
) -> None:
    def agent(version: int, replay: str = "") -> dict[str, Any]:
        return {
            "id": f"v{version}",
            "detail-type": "agent",
            "time": iso(30),
            "replay-name": replay,
            "detail": {"agent": "a1", "version": version},
        }

    consumer = make(AGENT)
    consumer.process([agent(5)])
    assert statuses(consumer.process([agent(4, "r"), agent(6, "r")])) == ["stale", "dead"]
    assert statuses(consumer.redrive()) == ["done"]
    assert ran == ["v5", "v6"]


def test_a_shadow_rule_runs_an_old_replay_unless_its_policy_is_report(
    make: Make, ran: list[str]
) -> None:
    rule = msgspec.structs.replace(CALL, shadow=True)
    assert statuses(make(rule).process([call(1, age=30, replay="friday")])) == ["done"]
    reporting = msgspec.structs.replace(rule, on_replay="report")
    assert statuses(make(reporting).process([call(2, replay="friday")])) == ["ignored"]


@pytest.mark.parametrize(("policy", "age"), [("report", 0), ("missing", 30)])
def test_a_replay_that_may_not_run_does_not_run_unguarded_either(
    clock: ManualClock, policy: str, age: int
) -> None:
    ran: list[Job] = []
    rule = with_policy(policy, on_store_error="run")
    consumer = Consumer(WatchedStore(away("claim")), rules=rule, handler=ran.append, clock=clock)
    assert statuses(consumer.process([call(1, age=age, replay="r")])) == ["failed"]
    assert ran == []
