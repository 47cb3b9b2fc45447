"""The work of a worker: its concurrency, its order, and events that are invalid or fail."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter

import pytest

from eventonce import Consumer, Rule
from eventonce.stores.memory import MemoryStore
from eventonce.types import Job
from tests.helpers import PATIENCE, until
from tests.integration.dynamodb.between import Between
from tests.integration.worker.conftest import Site, event, overheard
from tests.integration.worker.working import RULE, Ran, source, working


class Gate:
    """Handlers that wait for `open`, and the largest number that ran at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._opened = threading.Event()
        self.inside = self.most = self.through = 0

    def open(self) -> None:
        self._opened.set()

    def plain(self, _: Job) -> None:
        self._enter()
        self._opened.wait(PATIENCE)
        self._leave()

    async def awaited(self, _: Job) -> None:
        self._enter()
        while not self._opened.is_set():  # noqa: ASYNC110  a thread sets it
            await asyncio.sleep(0.01)
        self._leave()

    def _enter(self) -> None:
        with self._lock:
            self.inside += 1
            self.most = max(self.most, self.inside)

    def _leave(self) -> None:
        with self._lock:
            self.inside -= 1
            self.through += 1


@pytest.mark.parametrize("kind", ["plain", "awaited"])
def test_handlers_run_side_by_side_up_to_the_limit_and_no_more_messages_are_received(
    site: Site, kind: str
) -> None:
    gate = Gate()
    site.send(*map(event, range(30)))
    consumer = Consumer(MemoryStore(), rules=RULE, handler=getattr(gate, kind))
    with working(consumer, source(site.uri, visibility=60), concurrency=4):
        until(lambda: gate.inside == 4)
        # The others are left in the queue, where another worker can receive them.
        until(lambda: site.counts() == (26, 4), otherwise=site.counts)
        gate.open()
        until(lambda: gate.through == 30)
        site.emptied()
    assert gate.most == 4


def test_quick_events_do_not_wait_for_a_slow_event(site: Site) -> None:
    gate, ran = Gate(), Ran()

    def handler(job: Job) -> None:
        if job.event.detail["n"] == "slow":
            gate.plain(job)
        ran(job)

    with working(
        Consumer(MemoryStore(), rules=RULE, handler=handler), source(site.uri, visibility=60)
    ):
        # So many that the worker counts the events as quick, and takes several together.
        site.send(*map(event, range(60)))
        until(lambda: len(ran.numbers) == 60)
        site.send(event("slow"))
        until(lambda: gate.inside == 1)
        site.send(*map(event, range(100, 105)))
        until(lambda: len(ran.numbers) == 65)
        assert gate.inside == 1
        gate.open()
        site.emptied()
    assert max(Counter(ran.numbers).values()) == 1


def test_invalid_input_becomes_a_dead_letter_and_leaves_the_queue(site: Site) -> None:
    ran, store = Ran(), MemoryStore()
    site.send("no event", '{"detail-type": "number", "detail": {}}', event(1), "[]")
    with working(Consumer(store, rules=RULE, handler=ran), source(site.uri)):
        until(lambda: ran.numbers == [1])
        site.emptied()
        letters = list(store.letters())
    assert len(letters) == 3
    for raw in (b"no event", b"[]", b'{"detail-type": "number", "detail": {}}'):
        assert any(raw in letter.event for letter in letters)
    assert {letter.status for letter in letters} == {"invalid"}


def test_an_event_that_fails_comes_again_later_and_becomes_a_dead_letter(
    site: Site, between: Between
) -> None:
    attempts: dict[int, float] = {}
    store = MemoryStore()

    def handler(job: Job) -> None:
        attempts[job.attempt] = time.monotonic()
        raise ValueError("told so")

    site.send(event(1))
    rule = Rule(name="numbers", key="detail.n", attempts=2)
    through = source(site.through(between.url), visibility=60)
    with (
        overheard(between) as delays,
        working(Consumer(store, rules=rule, handler=handler), through),
    ):
        until(lambda: list(store.letters()))
        site.emptied()
    assert list(attempts) == [1, 2]
    # One or two seconds, by chance, less the time that passed; the queue got no other request.
    (delay,) = delays
    assert delay <= 2
    assert attempts[2] - attempts[1] > 0.9


def test_a_fifo_queue_keeps_the_order_of_a_group_with_a_failing_record(fifo_site: Site) -> None:
    ran = Ran()

    def handler(job: Job) -> None:
        if job.event.detail["n"] == "a2" and job.attempt == 1:
            ran.numbers.append("a2 failed")
            raise ValueError("told so")
        ran(job)

    for number in range(1, 5):
        fifo_site.send(event(f"a{number}"), group="a")
        fifo_site.send(event(f"b{number}"), group="b")
    consumer = Consumer(MemoryStore(), rules=RULE, handler=handler)
    with working(consumer, source(fifo_site.uri, visibility=20)):
        until(lambda: "a4" in ran.numbers, otherwise=lambda: ran.numbers)
        fifo_site.emptied()
    groups = {name: [it for it in ran.numbers if it[0] == name] for name in "ab"}
    assert groups["a"] == ["a1", "a2 failed", "a2", "a3", "a4"]
    assert groups["b"] == ["b1", "b2", "b3", "b4"]
    # The other group did not wait for it.
    assert ran.numbers.index("b4") < ran.numbers.index("a2")


def test_an_event_without_an_id_gets_an_id_from_its_message(site: Site) -> None:
    seen: list[str] = []
    site.send('{"n": 1}', '{"n": 1}')
    consumer = Consumer(MemoryStore(), handler=lambda job: seen.append(job.event.id))
    with working(consumer, source(site.uri)):
        until(lambda: len(seen) == 2)
        site.emptied()
    assert len(set(seen)) == 2
    assert all(seen)
