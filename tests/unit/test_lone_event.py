"""A lone event: it has the same outcome in the caller's thread and on a loop, and it is not
claimed, run or settled twice."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from eventonce import Consumer, Job, Outcome, Reject, Retry, Rule
from eventonce.envelope import read
from eventonce.errors import StoreError, StoreMismatch, StoreUnavailable
from eventonce.runtime.gate import Gate
from eventonce.runtime.shared_process import SharedProcess
from eventonce.types import Verdict
from tests.helpers import PATIENCE, Look, WatchedStore, call, statuses

RULE = Rule(name="call", match="call", key=["detail.call"], attempts=2)

Story = list[object]


def recorded(story: Story, answers: dict[str, Any]) -> Look:
    """A look that records the calls, and answers or fails the first call of these verbs."""

    def look(verb: str, asked: Sequence[Any]) -> Any:
        if verb == "put_letters":
            return None
        story.append((verb, [one.alone if verb == "claim" else one.action for one in asked]))
        answer = answers.pop(verb, None)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return look


def in_thread(consumer: Consumer, number: int) -> list[Outcome]:
    return consumer.process([call(number)])


def on_loop(consumer: Consumer, number: int) -> list[Outcome]:
    return asyncio.run(consumer.process_async([call(number)]))


def played(
    way: Callable[[Consumer, int], list[Outcome]],
    answers: dict[str, Any],
    error: Exception | None,
    rule: Rule = RULE,
) -> tuple[Story, list[object]]:
    """The steps, and the outcomes of an event and of its copy."""
    story: Story = []

    def handler(job: Job) -> str:
        story.append(("run", job.attempt))
        if error is not None:
            raise error
        return "result"

    became: list[object] = []
    with Consumer(
        WatchedStore(recorded(story, dict(answers))), rules=rule, handler=handler
    ) as consumer:
        consumer.runtime.pauses = ()
        for _ in range(2):
            try:
                outcomes = way(consumer, 0)
            except (StoreError, ZeroDivisionError) as raised:
                became.append(repr(raised))
            else:
                became += [(one.status, one.reason, one.result, one.ack) for one in outcomes]
        gate = consumer.runtime.gate
        assert (gate.held(), gate._running) == ([], {})
        story.append(len(list(consumer.letters())))
    return story, became


AWAY, MISMATCH = StoreUnavailable("away"), StoreMismatch("newer")
CASES: dict[str, tuple[dict[str, Any], Exception | None]] = {
    "usual": ({}, None),
    "fails": ({}, ValueError("no")),
    "is rejected": ({}, Reject("no")),
    "wants another try": ({}, Retry("later", after=3)),
    "busy": ({"claim": [Verdict("busy", wait=1)]}, None),
    "claim is lost": ({"claim": AWAY}, None),
    "claim is refused": ({"claim": MISMATCH}, None),
    "completion is lost": ({"settle": AWAY}, None),
    "completion is refused": ({"settle": ["fenced"]}, None),
    "fails, and that is lost": ({"settle": AWAY}, ValueError("no")),
    "was spared": ({"claim": [Verdict("run", 7, 2, 60_000, spared=1)]}, None),
    "was spared, and fails": ({"claim": [Verdict("run", 7, 2, 60_000, spared=1)]}, ValueError()),
    "store fails to claim": ({"claim": ZeroDivisionError()}, None),
    "store fails to settle": ({"settle": ZeroDivisionError()}, None),
    "ended a process": ({"claim": [Verdict("run", 7, 2, 60_000, alone=True)]}, None),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("on_store_error", ["retry", "run"])
def test_a_lone_event_has_the_same_steps_and_outcome_in_a_thread_and_on_a_loop(
    on_store_error: Any, case: str
) -> None:
    rule = structs.replace(RULE, on_store_error=on_store_error)
    assert played(in_thread, *CASES[case], rule) == played(on_loop, *CASES[case], rule)


@pytest.mark.parametrize("way", [in_thread, on_loop])
def test_a_failed_event_runs_once_for_each_delivery(
    way: Callable[[Consumer, int], list[Outcome]],
) -> None:
    story, _ = played(way, {}, ValueError("no"))
    # An attempt for each delivery, and the second is the last.
    assert story == [
        ("claim", [False]),
        ("run", 1),
        ("settle", ["release"]),
        ("claim", [False]),
        ("run", 2),
        ("settle", ["bury"]),
        1,
    ]


@pytest.mark.parametrize("way", [in_thread, on_loop])
def test_an_outcome_has_its_key_status_reason_result_and_error(
    way: Callable[[Consumer, int], list[Outcome]],
) -> None:
    error = Reject("caf\udce9")

    def handler(job: Job) -> str:
        if job.event.id == "id-1":
            raise error
        return "result"

    with Consumer("memory:", rules=RULE, handler=handler) as consumer:
        (done,), (dead,) = way(consumer, 0), way(consumer, 1)
        keys = [consumer.rules.plan(read(call(number)), 1)[1].key for number in range(2)]
    assert [done.key, dead.key] == keys
    assert (done.status, done.reason, done.result, done.shadowed) == ("done", "", "result", "")
    assert (dead.status, dead.reason) == ("dead", "rejected by the handler: caf\\udce9")
    assert dead.error is error


def test_requests_of_one_turn_of_a_loop_share_one_claim_call_with_different_nonces() -> None:
    asked: list[list[int]] = []

    def look(verb: str, some: Sequence[Any]) -> None:
        if verb == "claim":
            asked.append([claim.nonce for claim in some])

    async def story(consumer: Consumer) -> list[list[Outcome]]:
        return await asyncio.gather(*(consumer.process_async([call(n)]) for n in range(50)))

    with Consumer(WatchedStore(look), rules=RULE, handler=lambda _: None) as consumer:
        outcomes = asyncio.run(story(consumer))
    assert {one.status for (one,) in outcomes} == {"done"}
    (nonces,) = asked
    assert len(set(nonces)) == 50
    assert all(0 < nonce < 2**52 and nonce % 2 for nonce in nonces)


def test_a_copy_is_answered_while_all_threads_run_handlers() -> None:
    go = threading.Event()

    def handler(job: Job) -> None:
        if job.event.id != "id-0":
            assert go.wait(PATIENCE)

    async def story(consumer: Consumer) -> list[str]:
        await consumer.process_async([call(0)])
        slow = [asyncio.ensure_future(consumer.process_async([call(n)])) for n in range(1, 6)]
        copy = statuses(await asyncio.wait_for(consumer.process_async([call(0)]), PATIENCE))
        go.set()
        return [*copy, *[status for one in slow for status in statuses(await one)]]

    with Consumer("memory:", rules=RULE, handler=handler, threads=2) as consumer:
        assert asyncio.run(story(consumer)) == ["duplicate", *["done"] * 5]


@pytest.mark.parametrize("way", [in_thread, on_loop])
def test_a_run_settled_by_the_transaction_of_its_handler_is_not_settled_again(
    way: Callable[[Consumer, int], list[Outcome]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    monkeypatch.setattr(Gate, "settle", lambda _, some, __: asked.append(some))

    def handler(job: Job) -> None:
        job.connection.execute("CREATE TABLE effects (id)")

    with Consumer(f"sqlite:///{tmp_path}/store.db", rules=RULE, handler=handler) as consumer:
        assert [statuses(way(consumer, 0)) for _ in range(2)] == [["done"], ["duplicate"]]
    assert not asked


def test_a_run_that_fails_is_released_while_a_run_that_must_be_alone_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = SharedProcess()
    monkeypatch.setattr("eventonce.runtime.running_batch.THIS_PROCESS", here)
    story: Story = []

    def handler(_: Job) -> None:
        waiting = here.entering("another", alone=True, nested=False)
        assert next(waiting, "waits") is None
        raise ValueError

    with Consumer(WatchedStore(recorded(story, {})), rules=RULE, handler=handler) as consumer:
        assert statuses(consumer.process([call(0)])) == ["failed"]
    assert story == [("claim", [False]), ("settle", ["release"])]
    assert not here._entered
