"""Settlements by other threads during a batch: no event is reported as done whose completion was
refused, made without its effect, or lost."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from eventonce import Consumer, Job, Reject, Retry, Rule
from eventonce.core.plan import Run
from eventonce.stores.memory import MemoryStore
from eventonce.stores.sqlite import SQLiteStore
from eventonce.types import Settlement
from tests.helpers import PATIENCE, WatchedStore, call

RULE = Rule(name="call", match="call", key=["detail.call"])


def by_the_timer() -> bool:
    return threading.current_thread().name == "eventonce-gate"


@pytest.fixture
def quick_settlements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eventonce.runtime.gate.SETTLE_INTERVAL", 0.05)


@pytest.mark.usefixtures("quick_settlements")
def test_a_completion_by_the_timer_that_was_refused_is_not_reported_as_done() -> None:
    asked = threading.Event()

    def refuse(verb: str, settled: Sequence[Any]) -> list[str]:
        if verb != "settle":
            return []
        if by_the_timer():
            asked.set()
        return ["fenced" if one.action == "complete" else "kept" for one in settled]

    def handler(job: Job) -> None:
        if job.event.id == "id-2":
            raise Reject("no")
        if job.event.id == "id-3":
            assert asked.wait(PATIENCE)

    consumer = Consumer(WatchedStore(refuse), rules=RULE, handler=handler, clock=lambda: 5_000)
    outcomes = consumer.process([call(1), call(2), call(3)])
    assert [outcome.status for outcome in outcomes] == ["fenced", "dead", "fenced"]
    assert [outcome.retry_at for outcome in outcomes] == [6_000, None, 6_000]


@pytest.mark.usefixtures("quick_settlements")
@pytest.mark.parametrize("on_a_loop", [False, True])
def test_a_run_that_the_timer_settles_is_settled_only_once(*, on_a_loop: bool) -> None:
    asked, actions = threading.Event(), list[str]()

    def take_time(verb: str, settled: Sequence[Any]) -> None:
        if verb == "settle":
            actions.extend(one.action for one in settled)
        if by_the_timer():
            asked.set()
            time.sleep(0.05)

    def handler(job: Job) -> None:
        if job.event.id == "id-2":
            assert asked.wait(PATIENCE)

    consumer = Consumer(WatchedStore(take_time), rules=RULE, handler=handler)
    events = [call(1), call(2)]
    if on_a_loop:
        outcomes = asyncio.run(consumer.process_async(events))
    else:
        outcomes = consumer.process(events)
    assert [outcome.status for outcome in outcomes] == ["done", "done"]
    assert actions == ["complete", "complete"]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_run_that_raised_is_not_completed_when_abandoned_at_that_moment(
    monkeypatch: pytest.MonkeyPatch, *, asynchronous: bool
) -> None:
    class Abandoned(Run):
        def __setattr__(self, name: str, value: object) -> None:
            super().__setattr__(name, value)
            if name == "finished":
                consumer.runtime.gate.salvage([self])

    def handler(job: Job) -> None:
        if job.attempt == 1:
            raise Retry(after=0)

    async def later(job: Job) -> None:
        handler(job)

    monkeypatch.setattr("eventonce.core.engine.Run", Abandoned)
    consumer = Consumer("memory:", rules=RULE, handler=later if asynchronous else handler)
    for expected in ("failed", "done"):
        assert [one.status for one in consumer.process([call(1)])] == [expected]


class Transactions(MemoryStore):
    """A store whose process is killed before its transaction commits."""

    connection = None

    def __init__(self) -> None:
        super().__init__()
        self.ending: Callable[[], object] = list

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        yield self

    def settle(self, settlements: Any, now: int | None = None) -> Any:
        if isinstance(settlements, Settlement):
            self.ending()
            raise Killed
        return super().settle(settlements, now)

    def failed(self, error: BaseException) -> bool:
        return False


class Killed(BaseException):
    """The process was killed."""


def test_a_run_abandoned_while_its_transaction_commits_is_not_completed_without_the_commit() -> (
    None
):
    store = Transactions()
    consumer = Consumer(store, rules=RULE, handler=lambda job: job.connection)
    store.ending = consumer.runtime.abandon
    with pytest.raises(Killed):
        consumer.process([call(1)])
    again = Consumer(store, rules=RULE, handler=lambda _: None)
    assert [one.status for one in again.process([call(1)])] == ["done"]


@pytest.mark.usefixtures("quick_settlements")
def test_every_effect_happens_once_whichever_thread_settles_first(
    tmp_path: Path,
) -> None:
    """Threads take the same events over and over; handlers fail, are interrupted, and write into
    the store's own database or not, while the timer settles the finished runs."""
    chance, counting = random.Random(7), threading.Lock()
    effects, done = Counter[int](), Counter[int]()
    store = SQLiteStore(tmp_path / "a.db", wait=PATIENCE)
    with store.transaction() as transaction:
        transaction.connection.execute("CREATE TABLE effects (number)")

    def handler(job: Job) -> int:
        number = int(job.event.detail["call"])
        with counting:
            do, pause, transacted = chance.random(), chance.random(), chance.random() < 0.3
        if transacted:
            job.connection.execute("INSERT INTO effects VALUES (?)", (number,))
        time.sleep(pause / 50)
        if do < 0.1:
            raise Retry(after=0)
        if do < 0.12:
            raise KeyboardInterrupt
        with counting:
            effects[number] += not transacted
        return number

    rule = Rule(name="call", match="call", key=["detail.call"], attempts=1000)
    consumer, left = Consumer(store, rules=rule, handler=handler), set(range(60))

    def work() -> None:
        # A second is usual; a slow disk takes its time for each of hundreds of commits.
        end = time.monotonic() + 10 * PATIENCE
        while left and time.monotonic() < end:
            with counting:
                taken = chance.sample(sorted(left), min(len(left), chance.randint(1, 6)))
            try:
                outcomes = consumer.process(map(call, taken))
            except KeyboardInterrupt:
                continue
            with counting:
                left.difference_update(
                    number for number, one in zip(taken, outcomes, strict=True) if one.ack
                )
                done.update(one.result for one in outcomes if one.status == "done")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with store.transaction() as transaction:
        rows = transaction.connection.execute("SELECT number FROM effects")
        effects.update(number for (number,) in rows)
    consumer.close()
    assert effects == dict.fromkeys(range(60), 1)
    assert set(done.values()) == {1}
