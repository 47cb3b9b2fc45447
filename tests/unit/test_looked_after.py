"""Running batches: the gate renews and settles them even if the store or the timer thread fails,
and holds them no longer when they have ended."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest

from eventonce import Consumer, Job, Rule, StoreError, StoreUnavailable, envelope
from eventonce.core.plan import Plan, Run
from eventonce.core.reasons import NOT_STARTED
from eventonce.runtime import gate, inline
from eventonce.types import Claim
from tests.helpers import PATIENCE, WatchedStore, call

SHORT = Rule(name="call", match="call", key=["detail.call"], lease=0.3)
"""Its lease may end before it is renewed: no other claim is made, and the lease is taken again."""
RULE = Rule(name="call", match="call", key=["detail.call"])


class Failing(WatchedStore):
    """A store that fails the timer's first call with this action; the second sets `asked_again`."""

    def __init__(self, action: str, error: BaseException) -> None:
        super().__init__(self._fail)
        self._action = action
        self._errors = [error]
        self.failed, self.asked_again = threading.Event(), threading.Event()
        self.thread = threading.current_thread()

    def _fail(self, verb: str, asked: Sequence[Any]) -> None:
        renewal = threading.current_thread().name == "eventonce-gate"
        if renewal and verb == "settle" and asked[0].action == self._action:
            if self._errors:
                self.thread = threading.current_thread()
                self.failed.set()
                raise self._errors.pop()
            self.asked_again.set()


@pytest.mark.parametrize("error", [StoreError("no"), StoreUnavailable("away")], ids=repr)
def test_a_store_that_fails_once_is_asked_again_for_the_same_lease(error: StoreError) -> None:
    store = Failing("extend", error)
    consumer = Consumer(store, rules=SHORT, handler=lambda _: store.asked_again.wait(PATIENCE))
    assert [outcome.result for outcome in consumer.process([call(1)])] == [True]


@pytest.mark.parametrize("error", [StoreError("no"), StoreUnavailable("away")], ids=repr)
def test_a_store_that_fails_once_is_asked_again_to_complete_the_same_run(
    error: StoreError, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eventonce.runtime.gate.SETTLE_INTERVAL", 0.05)
    store = Failing("complete", error)

    def handler(job: Job) -> bool:
        return job.event.id == "id-1" or store.asked_again.wait(PATIENCE)

    outcomes = Consumer(store, rules=RULE, handler=handler).process([call(1), call(2)])
    assert [(outcome.status, outcome.result) for outcome in outcomes] == [("done", True)] * 2


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_timer_thread_that_ended_is_replaced_with_the_next_batch() -> None:
    store = Failing("extend", SystemExit())

    def handler(job: Job) -> bool:
        if job.event.id == "id-1":
            assert store.failed.wait(PATIENCE)
            store.thread.join(PATIENCE)
            return True
        return store.asked_again.wait(PATIENCE)

    consumer = Consumer(store, rules=SHORT, handler=handler)
    results = [consumer.process([call(number)])[0].result for number in (1, 2)]
    assert results == [True, True]


def test_a_lease_is_renewed_early_enough_for_two_renewals_to_fail() -> None:
    claim = Claim(b"key", 1, lease=60_000, remember=1, attempts=1)
    run = Run(Plan(envelope.read(call(1)), RULE, claim), claim, token=1, renewed=100.0)
    assert gate._due(run) == 120.0


def test_an_event_that_another_run_took_over_while_it_waited_is_not_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ran: list[str] = []
    consumer = Consumer(
        "memory:", rules=RULE, handler=lambda job: ran.append(job.event.id), clock=lambda: 5_000
    )
    invoke = inline.invoke  # type: ignore[attr-defined]

    def lose_the_second(run: Run, transactions: Any) -> None:
        if run.plan.event.id == "id-2":
            run.lose()
        invoke(run, transactions)

    monkeypatch.setattr(inline, "invoke", lose_the_second)
    first, second = consumer.process([call(1), call(2)])
    assert ran == ["id-1"]
    assert (first.status, second.status, second.reason) == ("done", "fenced", NOT_STARTED)
    assert (second.ack, second.retry_at) == (False, 6_000)


def once(consumer: Consumer) -> None:
    with consumer.once(call(1)):
        raise KeyboardInterrupt


WAYS: dict[str, Callable[[Consumer], object]] = {
    "inline": lambda consumer: consumer.process([call(1), call(2)]),
    "inline, interrupted": lambda consumer: consumer.process([call(1), call(0)]),
    "on a loop": lambda consumer: asyncio.run(consumer.process_async([call(1), call(2)])),
    "around a block": once,
}


@pytest.mark.parametrize("way", WAYS)
def test_a_batch_that_has_ended_is_no_longer_held_by_the_gate(way: str) -> None:
    seen: list[int] = []

    def handler(job: Job) -> None:
        seen.append(len(consumer.runtime.gate.held()))
        if job.event.id == "id-0":
            raise KeyboardInterrupt

    with Consumer("memory:", rules=RULE, handler=handler) as consumer:
        with suppress(KeyboardInterrupt):
            WAYS[way](consumer)
        assert consumer.runtime.gate.held() == []
    assert all(seen)


def test_a_cancelled_batch_is_no_longer_held_by_the_gate() -> None:
    async def story() -> None:
        begun = asyncio.Event()

        async def handler(_: Job) -> None:
            begun.set()
            await asyncio.sleep(3600)

        with Consumer("memory:", rules=RULE, handler=handler) as consumer:
            batch = asyncio.ensure_future(consumer.process_async([call(1)]))
            await begun.wait()
            assert len(consumer.runtime.gate.held()) == 1
            batch.cancel()
            with pytest.raises(asyncio.CancelledError):
                await batch
            assert consumer.runtime.gate.held() == []

    asyncio.run(story())
