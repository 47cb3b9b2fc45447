"""Threads that cannot be started: a call fails or works without them, and no event is lost, runs
twice or stays busy."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from itertools import count
from queue import SimpleQueue
from typing import Any

import pytest

from eventonce import Consumer, Job
from eventonce.runtime.async_scope import TransactionThreads
from eventonce.runtime.running_batch import CopyWait, RunningBatch
from eventonce.runtime.shared_process import THIS_PROCESS
from eventonce.runtime.stages import StagedBatch, Stages
from tests.helpers import PATIENCE, call, ruled

CALLS = range(6)
NESTED = 100
STARTS = 9
"""More starts of threads than any of `WAYS` makes with so few handlers."""

Way = Callable[[Consumer], object]


def in_thread(consumer: Consumer) -> None:
    for number in CALLS:
        with suppress(RuntimeError):
            consumer.process([call(number), *([call(50 + number)] if number % 2 else [])])


def on_loop(consumer: Consumer) -> None:
    async def story() -> None:
        # Lone events and a batch, each with copies that wait for the first.
        batches = [[call(number)] for number in CALLS] * 2 + [[call(60), call(61)]] * 2
        asked = [consumer.process_async(batch) for batch in batches]
        found = await asyncio.gather(*asked, return_exceptions=True)
        assert all(isinstance(one, list | RuntimeError) for one in found), found

    asyncio.run(story())


def staged(consumer: Consumer) -> None:
    """The batches go through stages, as in a worker."""
    runtime, told = consumer.runtime, SimpleQueue[StagedBatch]()
    stages = Stages(runtime, 2)
    running = [RunningBatch(runtime, runtime.plan([call(number)]), CopyWait(5)) for number in CALLS]
    batches = [StagedBatch(one, told.put, context=copy_context()) for one in running]
    stages.submit(batches[:2])
    stages.submit(batches[2:])
    for _ in batches:
        with suppress(RuntimeError):
            told.get(timeout=PATIENCE).result()
    stages.close()


def plain(effects: Counter[int]) -> Callable[[Job], Any]:
    def handler(job: Job) -> None:
        # Longer than the other calls wait before they start threads of their own.
        time.sleep(0.003)
        effects[job.event.detail["call"]] += 1

    return handler


def awaited(effects: Counter[int]) -> Callable[[Job], Any]:
    async def handler(job: Job) -> None:
        await asyncio.sleep(0.001)
        effects[job.event.detail["call"]] += 1

    return handler


def nesting(effects: Counter[int]) -> Callable[[Job], Any]:
    def handler(job: Job) -> None:
        number = job.event.detail["call"]
        if number < NESTED:
            asyncio.run(consumers[-1].process_async([call(number + NESTED)]))
        effects[number] += 1

    return handler


consumers: list[Consumer] = []
WAYS: dict[str, tuple[Way, Callable[[Counter[int]], Callable[[Job], Any]]]] = {
    "a thread": (in_thread, plain),
    "a thread, awaited": (in_thread, awaited),
    "a loop": (on_loop, plain),
    "a loop, awaited": (on_loop, awaited),
    "a loop, nested": (on_loop, nesting),
    "a worker": (staged, plain),
}


def refuse(patch: pytest.MonkeyPatch, which: range) -> None:
    """Some starts of our threads fail: `which` counts the starts from 0."""
    start, starts = threading.Thread.start, count()

    def starting(thread: threading.Thread) -> None:
        if thread.name.startswith("eventonce-") and next(starts) in which:
            raise RuntimeError("can't start new thread")
        start(thread)

    patch.setattr(threading.Thread, "start", starting)


@pytest.mark.parametrize("from_then_on", [False, True], ids=["once", "from then on"])
@pytest.mark.parametrize("name", WAYS)
def test_no_event_is_lost_or_run_twice_when_a_thread_cannot_be_started(
    name: str, *, from_then_on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    way, handler = WAYS[name]
    before = set(threading.enumerate())
    for nth in range(STARTS):
        effects = Counter[int]()
        consumer = Consumer("memory:", rules=ruled(), handler=handler(effects), threads=3)
        consumers[:] = [consumer]
        with monkeypatch.context() as patch:
            refuse(patch, range(nth, nth + (100 if from_then_on else 1)))
            caller = threading.Thread(target=way, args=[consumer], daemon=True)
            caller.start()
            caller.join(PATIENCE)
            assert not caller.is_alive()
        gate = consumer.runtime.gate
        assert (gate.held(), gate._running, THIS_PROCESS._entered) == ([], {}, set())
        way(consumer)
        consumer.close()
        assert set(effects.values()) == {1}, effects
        assert effects.keys() >= set(CALLS)
        new = set(threading.enumerate()) - before
        assert not [one for one in new if one.name == "eventonce-slot"]


def test_a_transaction_ends_although_no_thread_can_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:

    threads, ended = TransactionThreads(), list[str]()
    refuse(monkeypatch, range(2))
    with pytest.raises(RuntimeError, match="begin a transaction"):
        threads.begin(lambda: 1 / 0).result(0)  # type: ignore[arg-type,return-value]
    threads.end(lambda: ended.append("ended")).result(0)
    assert ended == ["ended"]
