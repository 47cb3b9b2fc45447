"""Hard cases of the engine and its runners: each was a fault once."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import contextmanager, suppress
from functools import partial, wraps
from pathlib import Path
from typing import Any

import msgspec
import pytest

from eventonce import ConfigError, Consumer, Job, Reject, Retry, Rule, StoreUnavailable
from eventonce.aws import lambda_handler
from eventonce.cli import main
from eventonce.core import routing
from eventonce.runtime import gate as runners
from eventonce.stores.memory import MemoryStore
from eventonce.stores.sqlite import SQLiteStore
from eventonce.testing.harness import ManualClock
from tests.helpers import PATIENCE, Run, WatchedStore, away, statuses

RULE = Rule(name="call", match="call", key=["detail.call"], attempts=3)


def call(n: int, id: str | None = None, **more: Any) -> dict[str, Any]:
    return {
        "id": id or f"id-{n}",
        "detail-type": "call",
        "source": "s",
        "detail": {"call": n},
        **more,
    }


def slow_to_settle(verb: str, asked: Sequence[Any]) -> None:
    if verb == "settle" and asked[0].action == "complete":
        time.sleep(0.2)


def test_the_leases_of_a_long_batch_are_renewed_until_its_last_event(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # If this machine is too slow to renew in time, the same is tried with longer leases.
    for interval in (0.1, 1.0, 5.0):
        monkeypatch.setattr(runners, "SETTLE_INTERVAL", interval)
        ended, late = _long_batch(interval)
        if late == ["busy"]:
            break
    assert late == ["busy"]
    assert ended == ["done"] * 10


def _long_batch(interval: float) -> tuple[list[str], list[str]]:
    """The statuses of ten events that take an interval each, and of a rival's copy of the last."""
    rule = Rule(name="call", match="call", key=["detail.call"], lease=6 * interval)
    store, late = MemoryStore(), list[str]()
    thief = Consumer(store, rules=rule, handler=lambda _: None)

    def handler(job: Job) -> None:
        time.sleep(1.1 * interval)
        if job.event.id == "id-8":
            late.extend(statuses(thief.process([call(9)])))

    consumer = Consumer(store, rules=rule, handler=handler)
    return statuses(consumer.process([call(n) for n in range(10)])), late


def test_a_run_that_finishes_while_other_runs_are_settled_is_settled_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("eventonce.runtime.gate.SETTLE_INTERVAL", 0.1)
    delays = {"id-1": 0.0, "id-2": 0.2, "id-3": 0.6}

    async def handler(job: Job) -> None:
        await asyncio.sleep(delays[job.event.id])

    with Consumer(WatchedStore(slow_to_settle), rules=RULE, handler=handler) as consumer:
        assert statuses(consumer.process([call(1), call(2), call(3)])) == ["done"] * 3


def test_the_timer_does_not_complete_a_run_whose_commit_is_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eventonce.runtime.gate.SETTLE_INTERVAL", 0.1)
    store = SQLiteStore(tmp_path / "a.db", wait=PATIENCE)
    transact = store.transaction

    @contextmanager
    def slow_and_failing() -> Any:
        with transact() as transaction:
            yield transaction
            time.sleep(0.3)
            raise StoreUnavailable("disk full")

    store.transaction = slow_and_failing  # type: ignore[method-assign, assignment]

    def handler(job: Job) -> None:
        if job.event.id == "id-1":
            job.connection.execute("SELECT 1")
        elif job.event.id == "id-2":
            time.sleep(0.7)

    consumer = Consumer(store, rules=RULE, handler=handler)
    outcomes = asyncio.run(consumer.process_async([call(1), call(2), call(3)]))
    consumer.close()
    assert statuses(outcomes) == ["failed", "done", "done"]


def test_a_version_does_not_get_the_grant_of_another_version_in_its_batch() -> None:
    rule = Rule(name="a", match="a", subject=["detail.a"], order="detail.v", state=["detail.v"])
    ran: list[int] = []

    store = WatchedStore(away("settle", times=1))
    events = [{"id": str(v), "detail-type": "a", "detail": {"a": 1, "v": v}} for v in (2, 1)]
    consumer = Consumer(store, rules=rule, handler=lambda job: ran.append(job.event.detail["v"]))
    consumer.runtime.pauses = ()
    assert statuses(consumer.process(events)) == ["failed", "busy"]
    assert ran == [2]


def test_a_live_event_runs_beside_a_replay_that_is_only_reported() -> None:
    rule = Rule(name="call", match="call", key=["detail.call"], on_replay="report")
    consumer = Consumer("memory:", rules=rule, handler=lambda _: None)
    assert statuses(consumer.process([call(1, **{"replay-name": "r"}), call(1)])) == [
        "ignored",
        "done",
    ]


def test_a_shadow_rule_runs_copies_of_one_batch_too() -> None:
    rule = Rule(name="call", match="call", key=["detail.call"], shadow=True)
    consumer = Consumer("memory:", rules=rule, handler=lambda _: None)
    assert statuses(consumer.process([call(1), call(1)])) == ["done", "unguarded"]


def test_other_content_under_the_key_of_a_dead_letter_is_a_second_dead_letter() -> None:
    def never(_: Job) -> None:
        raise Reject("no")

    rule = Rule(name="call", match="call", key=["detail.call"], verify=["source"])
    consumer = Consumer("memory:", rules=rule, handler=never)
    consumer.process([call(1)])
    consumer.process([call(1, source="other")])
    assert {json.loads(letter.event)["source"] for letter in consumer.letters()} == {"s", "other"}


def test_a_dead_letter_under_an_older_key_can_be_redriven() -> None:
    store, bad = MemoryStore(), [True]

    def handler(_: Job) -> None:
        if bad[0]:
            raise Reject("no")

    Consumer(store, rules=RULE, handler=handler).process([call(1)])
    bad[0] = False
    newer = Rule(name="call", match="call", key=["detail.call", "source"], also=[["detail.call"]])
    assert statuses(Consumer(store, rules=newer, handler=handler).redrive()) == ["done"]


def test_an_event_that_runs_under_an_older_key_is_busy_under_the_newer_key() -> None:
    store, ran = MemoryStore(), list[str]()
    newer = Rule(name="call", match="call", key=["detail.call", "source"], also=[["detail.call"]])
    deployed = Consumer(store, rules=newer, handler=lambda job: ran.append(job.event.id))

    def handler(_: Job) -> None:
        assert statuses(deployed.process([call(1)])) == ["busy"]

    assert statuses(Consumer(store, rules=RULE, handler=handler).process([call(1)])) == ["done"]
    assert statuses(deployed.process([call(1)])) == ["duplicate"]
    assert ran == []


@pytest.mark.parametrize(("policy", "status"), [("retry", "failed"), ("run", "unguarded")])
def test_an_unavailable_store_is_reported_also_when_an_older_key_is_claimed(
    policy: Any, status: str
) -> None:
    newer = Rule(
        name="call",
        match="call",
        key=["detail.call", "id"],
        also=[["detail.call"]],
        on_store_error=policy,
    )
    consumer = Consumer(WatchedStore(away("claim")), rules=newer, handler=lambda _: None)
    (outcome,) = consumer.process([call(1)])
    assert (outcome.status, outcome.shadowed) == (status, "")
    assert outcome.reason.startswith("the store did not answer"), outcome.reason


def test_two_events_with_one_older_key_are_claimed_one_after_the_other() -> None:
    def look(verb: str, asked: Sequence[Any]) -> None:
        assert verb != "claim" or len({claim.key for claim in asked}) == len(asked)

    newer = Rule(name="call", match="call", key=["detail.call", "id"], also=[["detail.call"]])
    consumer = Consumer(WatchedStore(look), rules=newer, handler=lambda _: None)
    for expected in ("done", "duplicate"):
        assert statuses(consumer.process([call(1, "a"), call(1, "b")])) == [expected] * 2


def generator(job: Job) -> Any:
    yield job


async def async_generator(job: Job) -> Any:
    yield job


class GeneratorObject:
    def __call__(self, job: Job) -> Any:
        yield job


@pytest.mark.parametrize(
    "handler",
    [
        generator,
        async_generator,
        partial(generator),
        partial(async_generator),
        GeneratorObject(),
        wraps(generator)(async_generator),
    ],
)
def test_a_handler_that_is_a_generator_is_refused(handler: Any) -> None:
    with pytest.raises(ConfigError, match="yield"):
        Consumer("memory:", rules=RULE, handler=handler)


@pytest.mark.parametrize(
    "handler",
    [
        lambda: None,
        lambda event, context: None,
        lambda job, *, table: None,
        lambda **named: None,
    ],
)
def test_a_function_that_does_not_take_one_argument_is_refused_as_a_handler(handler: Any) -> None:
    consumer = Consumer("memory:", rules=RULE)
    for register in (consumer.on(), consumer.on("call"), consumer.once):
        with pytest.raises(ConfigError, match="one argument, the job"):
            register(handler)


@pytest.mark.parametrize(
    "handler",
    [
        lambda job, context=None: None,
        lambda job=None, *, table="calls": None,
        lambda *everything: None,
        partial(lambda table, job: None, "calls"),
        print,
    ],
)
def test_a_callable_that_takes_one_argument_is_a_handler(handler: Any) -> None:
    with Consumer("memory:", rules=RULE, handler=handler) as consumer:
        assert statuses(consumer.process([call(1)])) == ["done"]


def calls_a_generator(job: Job) -> Any:
    return generator(job)


def calls_an_async_generator(job: Job) -> Any:
    return async_generator(job)


async def awaits_and_calls_a_generator(job: Job) -> Any:
    return generator(job)


@pytest.mark.parametrize(
    "handler", [calls_a_generator, calls_an_async_generator, awaits_and_calls_a_generator]
)
def test_an_event_whose_handler_returns_a_generator_is_not_done(handler: Any) -> None:
    with Consumer("memory:", rules=RULE, handler=handler) as consumer:
        (outcome,) = consumer.process([call(1)])
    assert (outcome.status, "remove `yield`" in outcome.reason) == ("failed", True)


async def awaited(_: Job) -> str:
    return "awaited"


class AsyncObject:
    async def __call__(self, _: Job) -> str:
        return "awaited"


@pytest.mark.parametrize(
    "handler", [awaited, partial(awaited), AsyncObject(), AsyncObject().__call__]
)
def test_every_form_of_async_handler_is_awaited(handler: Any) -> None:
    with Consumer("memory:", rules=RULE, handler=handler) as consumer:
        (outcome,) = consumer.process([call(1)])
    assert outcome.result == "awaited"


def test_the_number_of_event_types_in_memory_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(routing, "KNOWN_TYPES", 10)
    routes = routing.Routes(lambda _: None)
    for number in range(25):
        assert routes.of(f"invented {number}") is not None
    assert len(routes._known) == 5


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


def throw(error: Exception) -> None:
    raise error


def list_that_contains_itself() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    ("do", "status", "reason"),
    [
        (lambda: throw(Retry(after=float("inf"))), "failed", "ValueError: Retry: after must be"),
        (lambda: throw(Unprintable()), "failed", "Unprintable"),
        (lambda: throw(Reject(os.fsdecode(b"caf\xe9"))), "dead", "by the handler: caf\\udce9"),
        (list_that_contains_itself, "done", "its result is not kept for copies: "),
    ],
)
def test_an_odd_exception_or_result_of_a_handler_decides_only_about_its_own_event(
    do: Any, status: str, reason: str, tmp_path: Path
) -> None:
    consumer = Consumer(
        SQLiteStore(tmp_path / "a.db"),
        rules=RULE,
        handler=lambda job: do() if job.event.id == "id-2" else None,
    )
    outcomes = consumer.process([call(1), call(2), call(3)])
    assert statuses(outcomes) == ["done", status, "done"]
    assert reason in outcomes[1].reason
    assert statuses(consumer.process([call(1), call(3)])) == ["duplicate"] * 2


def test_a_handler_that_commits_its_transaction_does_not_block_the_store(tmp_path: Path) -> None:
    consumer = Consumer(SQLiteStore(tmp_path / "a.db", wait=0.2), rules=RULE)
    consumer.on("call")(lambda job: job.connection.commit() if job.event.id == "id-1" else None)
    kept = consumer.process([call(1)])
    assert statuses(kept) == ["failed"]
    assert statuses(consumer.process([call(2)])) == ["done"]


def test_a_cancellation_inside_a_handler_fails_only_its_event() -> None:
    async def handler(job: Job) -> None:
        if job.event.id == "id-1":
            raise asyncio.CancelledError

    with Consumer("memory:", rules=RULE, handler=handler) as consumer:
        assert statuses(asyncio.run(consumer.process_async([call(1), call(2)]))) == [
            "failed",
            "done",
        ]


def test_a_batch_cancelled_while_it_settles_ends_its_other_handlers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("eventonce.runtime.gate.SETTLE_INTERVAL", 0.1)
    settling, cancelled = threading.Event(), threading.Event()
    ended: list[str] = []

    def look(verb: str, asked: Sequence[Any]) -> None:
        if verb == "settle" and asked[0].action == "complete":
            settling.set()
            assert cancelled.wait(PATIENCE)

    async def main_() -> None:
        async def handler(job: Job) -> None:
            if job.event.id == "id-2":
                try:
                    await asyncio.sleep(3600)
                finally:
                    ended.append(job.event.id)

        consumer = Consumer(WatchedStore(look), rules=RULE, handler=handler)
        task = asyncio.create_task(consumer.process_async([call(1), call(2)]))
        assert await asyncio.to_thread(settling.wait, PATIENCE)
        task.cancel()
        # One turn of the loop, in which the cancellation reaches the batch.
        await asyncio.sleep(0)
        cancelled.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        # By the batch, and not only when the loop ends.
        assert ended == ["id-2"]

    asyncio.run(main_())


def in_time(function: Any) -> bool:
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    return not thread.is_alive()


def test_exit_in_an_async_handler_does_not_hang() -> None:
    async def handler(_: Job) -> None:
        sys.exit(3)

    assert in_time(lambda: Consumer("memory:", rules=RULE, handler=handler).process([call(1)]))


def test_closing_does_not_leave_a_caller_waiting_for_ever() -> None:
    begun = threading.Event()

    async def handler(_: Job) -> None:
        begun.set()
        await asyncio.sleep(3600)

    consumer = Consumer("memory:", rules=RULE, handler=handler)

    def caller() -> None:
        with suppress(BaseException):
            consumer.process([call(1)])

    def closer() -> None:
        if begun.wait(PATIENCE):
            consumer.close()

    closing = threading.Thread(target=closer)
    closing.start()
    assert in_time(caller)
    closing.join()


def test_dead_letters_of_another_consumer_are_refused_and_kept() -> None:
    def never(_: Job) -> None:
        raise Reject("no")

    store = MemoryStore()
    billing = Consumer(store, name="billing", rules=RULE, handler=never)
    crm = Consumer(store, name="crm", rules=RULE, handler=lambda _: None)
    billing.process([call(1)])
    crm.process([call(1)])
    with pytest.raises(ConfigError):
        crm.redrive(list(billing.letters()))
    assert len(list(billing.letters())) == 1


def test_a_bytearray_is_one_event() -> None:
    consumer = Consumer("memory:", rules=RULE, handler=lambda _: None)
    assert statuses(consumer.process(bytearray(json.dumps(call(1)).encode()))) == ["done"]


def test_a_get_request_is_answered_with_405() -> None:
    consumer = Consumer("memory:", rules=RULE, handler=lambda _: None)
    answer = lambda_handler(consumer)(
        {"requestContext": {"http": {"method": "GET"}}, "headers": {}}, None
    )
    assert answer["statusCode"] == 405


def test_filter_rejects_an_event_that_is_dead_under_an_older_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def never(_: Job) -> None:
        raise Reject("no")

    with Consumer("sqlite:///s.db", rules=RULE, handler=never) as consumer:
        consumer.process([call(1)])
    Path("eventonce.toml").write_text(
        '[[rule]]\nname = "call"\nmatch = "call"\n'
        'key = ["detail.call", "source"]\nalso = [["detail.call"]]\n'
    )
    Path("in.jsonl").write_text(json.dumps(call(1)) + "\n")
    with pytest.raises(SystemExit):
        main(["filter", "in.jsonl", "--rejects", "rejects", "--store", "sqlite:///s.db"])
    assert "given up" in Path("rejects").read_text()


def test_a_file_that_cannot_be_opened_ends_the_command_with_one_line(run: Run) -> None:
    said = "eventonce: [Errno 21] Is a directory: '.'\n"
    assert run("show", ".") == (1, "", said)
    said = "eventonce: nowhere/x.toml cannot be written: No such file or directory\n"
    assert run("init", "nowhere/x.toml") == (2, "", said)


def test_a_run_that_was_overtaken_is_fenced_and_not_acknowledged() -> None:
    clock = ManualClock()
    store = MemoryStore(clock=clock)

    def handler(job: Job) -> None:
        clock.advance(61)
        assert store.claim([msgspec.structs.replace(job.claim, nonce=7)])[0].kind == "run"

    (outcome,) = Consumer(store, rules=RULE, handler=handler, clock=clock).process([call(1)])
    assert (outcome.status, outcome.ack) == ("fenced", False)
    assert "another run took over" in outcome.reason
