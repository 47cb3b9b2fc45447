"""Programs that process copies of the same events in every way, and are killed at any instant or
paused for longer than a lease: each fact is settled once, and nothing is lost or left busy."""

from __future__ import annotations

import asyncio
import json
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from eventonce import Consumer, Job, Outcome, Rule
from eventonce.stores.postgres import PostgresStore
from eventonce.stores.redis import RedisStore
from eventonce.stores.sqlite import SQLiteStore
from eventonce.testing.contract import StoreFactory
from eventonce.testing.factory import opened
from eventonce.testing.workers import spawn
from eventonce.types import Claim, Settlement, SettleResult, Verdict
from tests.helpers import PATIENCE, call
from tests.integration.granted import made
from tests.servers import postgres, valkey

LEASE = 0.5
RULE = Rule(name="call", match="call", key=["detail.call"], lease=LEASE, attempts=1_000)
BATCHES = 25
"""Batches of each thread of a program, and of each task of its loops."""
NESTED = 10**12


class Program:
    """One process: two threads and two loops, which die together at a chosen instant."""

    def __init__(self, factory: StoreFactory, log: Path, seed: int, dies_at: int) -> None:
        self._log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._chance = random.Random(seed)
        self._instants, self._dies_at = count(), dies_at
        store = factory.open()
        claim, settle = store.claim, store.settle

        def claims(some: list[Claim]) -> list[Verdict]:
            self.instant()
            verdicts = claim(some)
            self.instant()
            return verdicts

        def settles(some: list[Settlement]) -> list[SettleResult]:
            self.instant()
            answers = settle(some)
            self.instant()
            return answers

        store.claim, store.settle = claims, settles  # type: ignore[method-assign,assignment]
        self.consumer = Consumer(store, name="test", rules=RULE, handler=self.handle, threads=3)

    def instant(self) -> None:
        if next(self._instants) == self._dies_at:
            os._exit(9)

    def say(self, *what: object) -> None:
        # One write: the line is complete or absent, whenever the process ends.
        os.write(self._log, json.dumps(what).encode() + b"\n")

    def handle(self, job: Job) -> None:
        number, luck = job.event.detail["call"], self._chance.random()
        self.say("begun", number, job.token)
        self.instant()
        if luck < 0.1:
            raise ValueError("by chance")
        if luck < 0.15 and number < NESTED:
            self.consumer.process([self.event(number + NESTED)])
        elif luck < 0.2 and number < NESTED:
            asyncio.run(self.consumer.process_async([self.event(number + NESTED)]))
        self.say("effect", number, job.token)
        self.instant()

    def event(self, number: int) -> bytes:
        return call(number, id=f"id-{self._chance.getrandbits(60)}")

    def some(self) -> list[bytes]:
        """Events of the last moments: other programs process the same events."""
        late = int(time.monotonic() * 50)
        size = self._chance.choice((1, 1, 1, 3))
        return [self.event(late - self._chance.randrange(20)) for _ in range(size)]

    def tell(self, outcomes: list[Outcome]) -> None:
        for outcome in outcomes:
            if outcome.status == "done":
                assert outcome.event is not None
                self.say("done", outcome.event.detail["call"])

    def in_thread(self) -> None:
        for _ in range(BATCHES):
            self.tell(self.consumer.process(self.some()))

    def on_loop(self) -> None:
        async def one() -> None:
            for _ in range(BATCHES):
                task = asyncio.ensure_future(self.consumer.process_async(self.some()))
                if self._chance.random() < 0.1:
                    await asyncio.sleep(self._chance.choice((0, 0.001)))
                    task.cancel()
                (found,) = await asyncio.gather(task, return_exceptions=True)
                if isinstance(found, list):
                    self.tell(found)
                else:
                    assert isinstance(found, asyncio.CancelledError), found

        async def some() -> None:
            await asyncio.gather(*(one() for _ in range(4)))

        asyncio.run(some())

    def run(self) -> None:
        ways = [self.in_thread, self.in_thread, self.on_loop, self.on_loop]
        threads = [threading.Thread(target=way, daemon=True) for way in ways]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        assert not any(thread.is_alive() for thread in threads), "a caller hangs"
        gate = self.consumer.runtime.gate
        assert (gate.held(), gate._running) == ([], {})
        self.consumer.close()


def program(pipe: Connection, factory: StoreFactory, *args: Any) -> None:
    """The main function of a process."""
    begun = Program(factory, *args)
    pipe.send(None)
    pipe.recv()
    begun.run()
    pipe.send(None)
    # The process waits here, so that a quick process can be paused, too.
    pipe.recv()


@pytest.fixture
def sqlite(tmp_path: Path) -> StoreFactory:
    return StoreFactory(partial(SQLiteStore, tmp_path / "store.db"))


@pytest.fixture
def redis() -> Iterator[StoreFactory]:
    with valkey.serving() as node:
        yield StoreFactory(partial(RedisStore.from_uri, node.uri))


@pytest.fixture
def postgresql() -> Iterator[StoreFactory]:
    with postgres.serving() as cluster:
        yield StoreFactory(partial(PostgresStore, made(cluster.uri())))


@pytest.mark.parametrize("store", ["sqlite", "redis", "postgresql"])
def test_killed_programs_settle_each_fact_once_and_lose_none(
    store: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    factory: StoreFactory = request.getfixturevalue(store)
    seed = int(os.environ.get("EVENTONCE_SEED", "1"))
    for number in range(int(os.environ.get("EVENTONCE_HISTORIES", "1"))):
        log = tmp_path / f"log-{number}"
        chance = random.Random(f"{seed}/{number}")
        _play(factory, log, chance)
        _check(factory, log)


def _play(factory: StoreFactory, log: Path, chance: random.Random) -> None:
    """Four programs: one ends itself at a chosen instant, one is killed, one is paused and goes on,
    and one runs undisturbed."""
    never = -1
    instants = [chance.randrange(150), never, never, never]
    workers = [spawn(factory, program, log, chance.getrandbits(30), one) for one in instants]
    try:
        for worker in workers:
            worker.ready()
        for worker in workers:
            worker.go()
        _, killed, paused, _ = workers
        time.sleep(chance.random() / 4)
        paused.pause()
        time.sleep(chance.choice((LEASE / 2, 1.5 * LEASE)))
        killed.kill()
        paused.go_on()
        for worker in workers[2:]:
            assert worker.hear() is None
    finally:
        for worker in workers:
            worker.kill()


def _check(factory: StoreFactory, log: Path) -> None:
    said = [tuple(json.loads(line)) for line in log.read_text().splitlines()]
    assert max(Counter(line for line in said if line[0] == "begun").values()) == 1
    done = Counter(line[1] for line in said if line[0] == "done")
    assert max(done.values()) == 1
    effects = {line[1] for line in said if line[0] == "effect"}
    assert done.keys() <= effects
    with opened(factory) as store:
        consumer = Consumer(store, name="test", rules=RULE, handler=lambda _: None)
        for number in {line[1] for line in said}:
            # The leases of killed programs end, because no program renews them.
            (outcome,) = consumer.process([call(number)], wait=PATIENCE)
            if outcome.status == "duplicate":
                assert number in effects
            else:
                assert (outcome.status, done[number]) == ("done", 0), outcome
