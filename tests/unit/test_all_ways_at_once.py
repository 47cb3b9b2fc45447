"""Threads and two event loops that bring copies of the same events to one consumer at once."""

from __future__ import annotations

import asyncio
import random
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from eventonce import Consumer, Job, Outcome, Rule
from tests.unit.made import classic

RULE = Rule(name="r", key=["detail.n"], lease="5m", attempts=1_000)
COPIES = 3
NESTED = 1_000_000


@pytest.fixture
def _restless() -> Iterator[None]:
    """A switch interval so short that the threads switch as often as possible."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("_restless")
@pytest.mark.parametrize("store", ["memory:", "sqlite"])
def test_no_event_takes_effect_twice(store: str, tmp_path: Path) -> None:
    chance, numbers, ids = random.Random(7), count(), count()
    effects: Counter[int] = Counter()
    outcomes: list[Outcome] = []
    consumer: Consumer

    def some(most: int) -> list[dict[str, object]]:
        first = next(numbers) // COPIES
        return [made(first + step) for step in range(chance.choice((1, 1, 1, most)))]

    def made(number: int) -> dict[str, object]:
        return classic({"n": number}, id=f"id-{next(ids)}")

    def handler(job: Job) -> None:
        number = job.event.body["n"]
        luck = chance.random()
        if luck < 0.03:
            raise ValueError("by chance")
        if luck < 0.06 and number < NESTED:
            consumer.process([made(number + NESTED)])
        effects[number] += 1  # one thread at a time holds a key

    def in_thread() -> None:
        for _ in range(200):
            outcomes.extend(consumer.process(some(5)))

    async def on_loop() -> None:
        async def one() -> None:
            for _ in range(20):
                task = asyncio.ensure_future(consumer.process_async(some(3)))
                if chance.random() < 0.03:
                    await asyncio.sleep(0)
                    task.cancel()
                (found,) = await asyncio.gather(task, return_exceptions=True)
                if isinstance(found, list):
                    outcomes.extend(found)
                else:
                    assert isinstance(found, asyncio.CancelledError), found

        await asyncio.gather(*(one() for _ in range(30)))

    uri = store if store == "memory:" else f"sqlite:///{tmp_path / 'seen.db'}"
    with Consumer(uri, name="test", rules=[RULE], handler=handler) as consumer:
        ways = [
            in_thread,
            in_thread,
            lambda: asyncio.run(on_loop()),
            lambda: asyncio.run(on_loop()),
        ]
        threads = [threading.Thread(target=way) for way in ways]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    done = Counter(outcome.key for outcome in outcomes if outcome.status == "done")
    assert max(done.values()) == 1
    assert max(effects.values()) == 1
    assert len(done) > 300
