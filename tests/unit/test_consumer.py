"""The consumer of a user: handlers, outcomes, dead letters, results, and guarded blocks."""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from eventonce import ConfigError, Consumer, Job, Reject, Retry, Rule, StoreUnavailable
from eventonce.runtime.observers import Tally
from eventonce.stores.memory import MemoryStore
from eventonce.testing.harness import CLOCK_START, ManualClock
from eventonce.types import Outcome
from tests.helpers import WatchedStore, away, reject, statuses

CALL = Rule(name="call", match="call", key=["detail.call"], attempts=3, lease="60s")
AGENT = Rule(
    name="agent",
    match="agent",
    subject=["detail.agent"],
    order="detail.version",
    state=["detail.status"],
    at="detail.at",
    unchanged_within="500ms",
)


def call(number: int | str, id: str | None = None, **more: object) -> bytes:
    detail = {"call": f"call-{number}", **more}
    return msgspec.json.encode(
        {"id": id or f"id-{number}", "detail-type": "call", "detail": detail}
    )


def agent(version: int, status: str, at: int = 0) -> bytes:
    detail = {"agent": "a1", "version": version, "status": status, "at": CLOCK_START + at}
    return msgspec.json.encode(
        {"id": f"{version}-{status}", "detail-type": "agent", "detail": detail}
    )


@pytest.fixture
def seen() -> list[str]:
    return []


@pytest.fixture
def consumer(store: MemoryStore, clock: ManualClock, seen: list[str]) -> Iterator[Consumer]:
    consumer = Consumer(store, rules=[CALL, AGENT], clock=clock)

    @consumer.on()
    def note(job: Job) -> None:
        seen.append(job.event.id)

    yield consumer
    consumer.close()


def test_every_event_gets_one_outcome_in_the_order_given(consumer: Consumer) -> None:
    outcomes = consumer.process([call(1), b"{", call(2), call(1, id="other"), call(3)])
    assert statuses(outcomes) == ["done", "invalid", "done", "duplicate", "done"]


def test_the_outcome_of_an_event_without_a_key_names_the_rule_that_matched(
    consumer: Consumer,
) -> None:
    no_key = {"id": "1", "detail-type": "call", "detail": {}}
    outcomes = consumer.process([no_key, b"no event"])
    assert statuses(outcomes) == ["invalid", "invalid"]
    assert [outcome.rule for outcome in outcomes] == [CALL.name, ""]
    assert sorted(letter.rule for letter in consumer.letters()) == ["", CALL.name]


def test_the_outcome_of_a_later_copy_says_whether_its_transport_id_is_the_same(
    consumer: Consumer,
) -> None:
    consumer.process([call(1)])
    same, other = consumer.process([call(1)]) + consumer.process([call(1, id="new")])
    assert (same.status, other.status) == ("duplicate", "duplicate")
    assert "under the same transport id" in same.reason
    assert "another transport id" in other.reason


def test_versions_of_one_batch_are_decided_in_their_order(
    consumer: Consumer, seen: list[str]
) -> None:
    outcomes = consumer.process(
        [agent(1, "A"), agent(2, "B"), agent(1, "A"), agent(2, "B"), agent(3, "A", at=9_000)]
    )
    assert statuses(outcomes) == ["done", "done", "stale", "duplicate", "done"]
    assert seen == ["1-A", "2-B", "3-A"]


def test_the_same_state_within_the_time_is_unchanged(consumer: Consumer, seen: list[str]) -> None:
    outcomes = consumer.process([agent(1, "A", at=1_000), agent(2, "A", at=1_400)])
    assert statuses(outcomes) == ["done", "unchanged"]
    assert seen == ["1-A"]


def test_a_failed_event_is_tried_again_and_then_becomes_a_dead_letter(
    consumer: Consumer, store: MemoryStore, clock: ManualClock
) -> None:
    broken = Consumer(store, rules=[CALL], handler=lambda _: 1 / 0, clock=clock)
    outcomes = [broken.process([call(1)])[0] for _ in range(4)]
    assert statuses(outcomes) == ["failed", "failed", "dead", "dead"]
    assert [outcome.ack for outcome in outcomes] == [False, False, True, True]
    assert isinstance(outcomes[0].error, ZeroDivisionError)
    (letter,) = broken.letters()
    assert letter.event == call(1)
    assert "ZeroDivisionError" in letter.reason


def test_a_copy_of_an_event_that_failed_in_the_same_batch_is_busy(store: MemoryStore) -> None:
    broken = Consumer(store, rules=[CALL], handler=lambda _: 1 / 0)
    outcomes = broken.process([call(1), call(1)])
    assert statuses(outcomes) == ["failed", "busy"]
    assert not any(outcome.ack for outcome in outcomes)


def test_a_failure_waits_longer_each_time(store: MemoryStore, clock: ManualClock) -> None:
    broken = Consumer(store, rules=[CALL], handler=lambda _: 1 / 0, clock=clock)
    waits = [(broken.process([call(1)])[0].retry_at or 0) - clock.now for _ in range(2)]
    assert waits == [1000, 2000]


def test_no_failure_waits_longer_than_a_queue_can_postpone_it(
    store: MemoryStore, clock: ManualClock
) -> None:
    rule = Rule(name="call", match="call", key=["detail.call"], attempts=30)
    broken = Consumer(store, rules=rule, handler=lambda _: 1 / 0, clock=clock)
    waits = [(broken.process([call(1)])[0].retry_at or 0) - clock.now for _ in range(29)]
    assert waits == sorted(waits)
    assert waits[-1] == 900_000


def test_the_exception_retry_gives_the_time_of_the_retry(
    store: MemoryStore, clock: ManualClock
) -> None:
    def later(_: Job) -> None:
        raise Retry("not yet", after=7.5)

    (outcome,) = Consumer(store, rules=[CALL], handler=later, clock=clock).process([call(1)])
    assert (outcome.status, outcome.retry_at) == ("failed", clock.now + 7_500)


@pytest.mark.parametrize(
    ("rejection", "reason"),
    [
        (Reject("no such customer"), "rejected by the handler: no such customer"),
        (Reject(), "rejected by the handler"),
    ],
)
def test_the_exception_reject_makes_a_dead_letter_at_once(
    store: MemoryStore, rejection: Reject, reason: str
) -> None:
    def never(_: Job) -> None:
        raise rejection

    consumer = Consumer(store, rules=[CALL], handler=never)
    (outcome,) = consumer.process([call(1)])
    assert (outcome.status, outcome.ack) == ("dead", True)
    assert next(consumer.letters()).reason == reason


def test_redrive_runs_dead_letters_again_and_deletes_the_settled_dead_letters(
    store: MemoryStore, clock: ManualClock
) -> None:
    bad = {"call-1", "call-2"}
    ran: list[str] = []

    def handler(job: Job) -> None:
        if job.event.detail["call"] in bad:
            raise Reject("bad")
        ran.append(job.event.detail["call"])

    consumer = Consumer(store, rules=[CALL], handler=handler, clock=clock)
    consumer.process([call(1), call(2)])
    bad.remove("call-1")
    assert statuses(consumer.redrive()) == ["done", "dead"]
    assert ran == ["call-1"]
    assert [msgspec.json.decode(letter.event)["id"] for letter in consumer.letters()] == ["id-2"]
    assert statuses(consumer.process([call(1)])) == ["duplicate"]


def test_redrive_keeps_a_dead_letter_that_another_redrive_runs_at_that_moment(
    store: MemoryStore,
) -> None:
    def never(_: Job) -> None:
        raise Reject("bad")

    def runs_the_same_event(_: Job) -> None:
        second = Consumer(store, rules=[CALL], handler=lambda _: None)
        assert statuses(second.redrive()) == ["busy"]
        # If the process of this run ends now, only the dead letter is left of the event.
        assert [letter.event for letter in second.letters()] == [call(1)]

    Consumer(store, rules=[CALL], handler=never).process([call(1)])
    first = Consumer(store, rules=[CALL], handler=runs_the_same_event)
    assert statuses(first.redrive()) == ["done"]
    assert list(first.letters()) == []


def test_redrive_does_not_run_an_event_that_was_done_before(
    consumer: Consumer, store: MemoryStore, seen: list[str]
) -> None:
    def never(_: Job) -> None:
        raise Reject("bad")

    Consumer(store, rules=[CALL], handler=never).process([call(1)])
    letters = list(consumer.letters())
    assert statuses(consumer.redrive(letters)) == ["done"]
    store.put_letters(letters)
    assert statuses(consumer.redrive()) == ["duplicate"]
    assert seen == ["id-1"]


def test_invalid_input_becomes_a_dead_letter_and_is_invalid_again_on_redrive(
    consumer: Consumer,
) -> None:
    consumer.process([b"no json", call("1").replace(b'"call-1"', b"null")])
    reasons = {letter.event: letter.reason for letter in consumer.letters()}
    assert set(reasons) == {b"no json", call("1").replace(b'"call-1"', b"null")}
    assert "detail.call" in reasons[call("1").replace(b'"call-1"', b"null")]
    assert statuses(consumer.redrive()) == ["invalid", "invalid"]
    assert len(list(consumer.letters())) == 2


def test_two_consumers_on_one_store_each_have_a_dead_letter_of_the_same_invalid_input(
    store: MemoryStore,
) -> None:
    consumers = [Consumer(store, name=name, handler=lambda _: None) for name in ("crm", "billing")]
    for consumer in consumers:
        consumer.process([b"no json"])
    assert [[it.event for it in consumer.letters()] for consumer in consumers] == [[b"no json"]] * 2


def test_an_event_without_a_handler_is_ignored_and_not_remembered(
    store: MemoryStore, clock: ManualClock
) -> None:
    consumer = Consumer(store, rules=[CALL], clock=clock)
    consumer.on("other.*")(lambda job: None)
    (outcome,) = consumer.process([call(1)])
    assert (outcome.status, outcome.ack) == ("ignored", True)
    assert store.stats().records == 0


def test_the_first_handler_registered_takes_the_event(store: MemoryStore) -> None:
    consumer = Consumer(store, rules=[CALL])
    took: list[str] = []
    consumer.on("c*l")(lambda job: took.append("first"))
    consumer.on()(lambda job: took.append("second"))
    consumer.process([call(1), agent(1, "A")])
    assert took == ["first", "second"]


def test_a_consumer_without_a_handler_is_refused(store: MemoryStore) -> None:
    with pytest.raises(ConfigError, match="no handler"):
        Consumer(store).process([call(1)])


def test_a_shared_store_needs_a_name() -> None:
    class Shared(MemoryStore):
        embedded = False

    with pytest.raises(ConfigError, match="name="):
        Consumer(Shared())


def test_two_consumers_on_one_store_each_run_the_event(store: MemoryStore) -> None:
    ran: list[str] = []

    def noting(name: str) -> Callable[[Job], None]:
        return lambda _: ran.append(name)

    for name in ("crm", "billing"):
        consumer = Consumer(store, name=name, rules=[CALL], handler=noting(name))
        assert statuses(consumer.process([call(1), call(1)])) == ["done", "duplicate"]
    assert ran == ["crm", "billing"]


def test_a_copy_gets_the_result_of_the_first_run(store: MemoryStore) -> None:
    consumer = Consumer(store, rules=[CALL], handler=lambda job: {"ticket": job.event.id})
    results = [consumer.process([call(1)])[0].result for _ in range(2)]
    in_batch = [outcome.result for outcome in consumer.process([call(2), call(2)])]
    assert results == [{"ticket": "id-1"}] * 2
    assert in_batch == [{"ticket": "id-2"}] * 2


@pytest.mark.parametrize("result", [object(), "x" * 100_000])
def test_a_result_that_cannot_be_kept_is_reported_and_the_event_is_done(
    store: MemoryStore, result: object
) -> None:
    consumer = Consumer(store, rules=[CALL], handler=lambda _: result)
    first, second = consumer.process([call(1)]) + consumer.process([call(1)])
    assert (first.status, second.status, second.result) == ("done", "duplicate", None)
    assert "not kept" in first.reason


def test_an_async_handler_runs_from_plain_code_and_on_a_loop(store: MemoryStore) -> None:
    ran: list[str] = []

    async def handler(job: Job) -> str:
        await asyncio.sleep(0)
        ran.append(job.event.id)
        return job.event.id

    consumer = Consumer(store, rules=[CALL], handler=handler)
    assert statuses(consumer.process([call(1), call(1)])) == ["done", "duplicate"]
    assert statuses(asyncio.run(consumer.process_async([call(1), call(2)]))) == [
        "duplicate",
        "done",
    ]
    assert ran == ["id-1", "id-2"]
    consumer.close()


def test_process_with_an_async_handler_on_a_loop_is_refused_and_names_process_async(
    store: MemoryStore,
) -> None:
    async def handler(_: Job) -> None: ...

    consumer = Consumer(store, rules=[CALL], handler=handler)

    async def caller() -> None:
        consumer.process([call(1)])

    with pytest.raises(ConfigError, match="process_async"):
        asyncio.run(caller())
    assert store.stats().records == 0


def test_an_event_whose_plain_handler_returns_a_coroutine_is_failed(store: MemoryStore) -> None:
    async def inner() -> None: ...

    def handler(_: Job) -> Any:
        coroutine = inner()
        coroutine.close()
        return coroutine

    (outcome,) = Consumer(store, rules=[CALL], handler=handler).process([call(1)])
    assert outcome.status == "failed"
    assert "async def" in outcome.reason


def test_async_handlers_of_one_batch_run_side_by_side(store: MemoryStore) -> None:
    waiting = 0

    async def main() -> list[Outcome]:
        together = asyncio.Event()

        async def handler(_: Job) -> None:
            nonlocal waiting
            waiting += 1
            if waiting == 5:
                together.set()
            await asyncio.wait_for(together.wait(), 60)

        consumer = Consumer(store, rules=[CALL], handler=handler)
        outcomes = await consumer.process_async([call(n) for n in range(5)])
        consumer.close()
        return outcomes

    assert statuses(asyncio.run(main())) == ["done"] * 5


def test_a_cancelled_batch_releases_the_events_that_were_not_done(
    store: MemoryStore, clock: ManualClock
) -> None:
    async def main() -> None:
        started = asyncio.Event()

        async def handler(_: Job) -> None:
            started.set()
            await asyncio.sleep(3600)

        consumer = Consumer(store, rules=[CALL], handler=handler, clock=clock)
        task = asyncio.create_task(consumer.process_async([call(1)]))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        consumer.close()

    asyncio.run(main())
    after = Consumer(store, rules=[CALL], handler=lambda _: None, clock=clock)
    assert statuses(after.process([call(1)])) == ["done"]


def test_an_interrupted_batch_settles_its_finished_events_and_releases_the_others(
    store: MemoryStore, clock: ManualClock
) -> None:
    def handler(job: Job) -> None:
        if job.event.id == "id-2":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Consumer(store, rules=[CALL], handler=handler, clock=clock).process([call(1), call(2)])
    after = Consumer(store, rules=[CALL], handler=lambda _: None, clock=clock)
    assert statuses(after.process([call(1), call(2)])) == ["duplicate", "done"]


def test_once_completes_a_block_and_skips_its_copy(consumer: Consumer) -> None:
    ran = 0
    for _ in range(2):
        with consumer.once(call(1)) as job:
            if job.run:
                ran += 1
                job.result = "ticket"
    assert ran == 1
    assert job.outcome is not None
    assert (job.outcome.status, job.result) == ("duplicate", "ticket")


def test_an_async_function_is_guarded_by_once_without_any_other_handler() -> None:
    consumer = Consumer(MemoryStore(), rules=[CALL])
    ran: list[str] = []

    @consumer.once
    async def close_call(job: Job) -> None:
        ran.append(job.event.id)

    async def twice() -> list[str]:
        return [(await close_call(call(1))).status for _ in range(2)]

    with consumer:
        assert asyncio.run(twice()) == ["done", "duplicate"]
    assert len(ran) == 1


def test_a_block_of_once_may_be_left_in_another_context_than_the_context_of_its_entry(
    consumer: Consumer,
) -> None:
    """FastAPI enters and leaves a plain dependency in two threads, each with its own context."""
    block = consumer.once(call(1))
    job = contextvars.copy_context().run(block.__enter__)
    contextvars.copy_context().run(block.__exit__, None, None, None)
    assert job.outcome is not None
    assert job.outcome.status == "done"


def test_once_releases_the_event_of_a_block_that_raised(consumer: Consumer) -> None:
    with pytest.raises(ValueError, match="no"), consumer.once(call(1)) as job:
        raise ValueError("no")
    assert job.outcome is not None
    assert job.outcome.status == "failed"
    with consumer.once(call(1)) as job:
        assert job.run
        assert job.attempt == 2
    assert job.outcome is not None
    assert job.outcome.status == "done"


def test_once_does_not_run_invalid_input(consumer: Consumer) -> None:
    with consumer.once(b"{") as job:
        assert not job.run
    assert job.outcome is not None
    assert job.outcome.status == "invalid"


def test_once_needs_no_handler(store: MemoryStore) -> None:
    with Consumer(store, rules=[CALL]).once(call(1)) as job:
        assert job.run


def test_the_effect_id_is_the_same_over_retries_and_differs_between_versions(
    store: MemoryStore, clock: ManualClock
) -> None:
    names: list[tuple[str, bytes]] = []

    def handler(job: Job) -> None:
        names.append((job.effect_id, job.key))
        if len(names) == 1:
            raise Retry

    consumer = Consumer(store, rules=[AGENT], handler=handler, clock=clock)
    for event in (agent(1, "A"), agent(1, "A"), agent(2, "B")):
        consumer.process([event])
    (first, again, second) = names
    assert first == again
    assert first[0] != second[0]
    assert first[1] == second[1]


def test_observers_get_every_outcome_and_an_error_of_an_observer_fails_no_event(
    consumer: Consumer, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(outcome: Outcome, seconds: float) -> None:
        raise RuntimeError("observer")

    tally = Tally()
    consumer.observers += [broken, tally]
    assert statuses(consumer.process([call(1), call(1), b"{"])) == ["done", "duplicate", "invalid"]
    assert tally.counts == {"done": 1, "duplicate": 1, "invalid": 1}
    assert "observer" in caplog.text


def test_with_the_store_away_nothing_runs_and_nothing_is_acknowledged() -> None:
    store = WatchedStore(away("claim", "put_letters"))
    ran: list[str] = []
    consumer = Consumer(store, rules=[CALL], handler=lambda job: ran.append(job.event.id))
    outcomes = consumer.process([call(1), b"{"])
    assert statuses(outcomes) == ["failed", "failed"]
    assert all(isinstance(outcome.error, StoreUnavailable) for outcome in outcomes)
    assert ran == []
    store.look = away()
    assert statuses(consumer.process([call(1)])) == ["done"]


def test_a_rule_may_run_unguarded_with_the_store_away_and_says_so() -> None:
    store = WatchedStore(away("claim", "put_letters"))
    rule = msgspec.structs.replace(CALL, on_store_error="run")
    (outcome,) = Consumer(store, rules=[rule], handler=lambda _: "ok").process([call(1)])
    assert (outcome.status, outcome.ack, outcome.result) == ("unguarded", True, "ok")
    assert "away" in outcome.reason


def test_a_completion_is_sent_again_while_the_store_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: None)
    store = WatchedStore(away("settle", times=2))
    consumer = Consumer(store, rules=[CALL], handler=lambda _: None)
    assert statuses(consumer.process([call(1)]) + consumer.process([call(1)])) == [
        "done",
        "duplicate",
    ]


def test_a_completion_that_cannot_be_stored_is_not_acknowledged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: None)
    store = WatchedStore(away("settle"))
    (outcome,) = Consumer(store, rules=[CALL], handler=lambda _: None).process([call(1)])
    assert (outcome.status, outcome.ack) == ("failed", False)
    assert "could not be stored" in outcome.reason


def test_an_event_whose_dead_letter_cannot_be_kept_is_failed() -> None:
    store = WatchedStore(away("put_letters"))
    consumer = Consumer(store, rules=[CALL], handler=reject)
    assert statuses(consumer.process([call(1), b"{"])) == ["failed", "failed"]
    store.look = away()
    assert statuses(consumer.process([call(1)])) == ["dead"]
    assert len(list(consumer.letters())) == 1


def test_a_shadow_rule_runs_every_event_and_reports_the_copy(
    store: MemoryStore,
) -> None:
    ran: list[str] = []
    rule = msgspec.structs.replace(CALL, shadow=True)
    consumer = Consumer(store, rules=[rule], handler=lambda job: ran.append(job.event.id))
    outcomes = consumer.process([call(1)]) + consumer.process([call(1)])
    assert statuses(outcomes) == ["done", "unguarded"]
    assert outcomes[1].reason.endswith("under the same transport id")
    assert ran == ["id-1", "id-1"]


def test_two_consumers_with_different_rules_on_one_store_each_keep_their_rules(
    store: MemoryStore, clock: ManualClock
) -> None:
    """E9: the second configuration of a store object is not silently ignored."""
    short = msgspec.structs.replace(CALL, remember="500ms")
    first = Consumer(store, name="a", rules=[CALL], handler=lambda _: None, clock=clock)
    second = Consumer(store, name="b", rules=[short], handler=lambda _: None, clock=clock)
    first.process([call(1)])
    second.process([call(1)])
    clock.advance(0.5)
    assert statuses(first.process([call(1)]) + second.process([call(1)])) == ["duplicate", "done"]
