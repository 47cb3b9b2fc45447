"""The worker from SQS to a sink that does nothing, with Redis, against the usual tutorial's loop.

Both get the same messages from the same queue and use the same server. One figure takes off both
what receiving and deleting cost that loop, with plain boto3, ten at a time; the worker's own client
is so much thriftier that less than nothing is left of the worker. A stricter figure takes off each
what its own client costs. Each runs in a process of its own.
`EVENTONCE_BENCH_EVENTS` makes the queue shorter.
"""

from __future__ import annotations

import json
import logging
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from statistics import median
from typing import Any, NamedTuple

import boto3
import redis

from benchmarks import Figure
from benchmarks.yardstick import EVENT
from eventonce import Consumer
from eventonce.aws.sqs import Entry, Queue
from eventonce.history import History
from eventonce.metrics import measure
from eventonce.sources import SQSSource
from eventonce.types import Job
from eventonce.worker import Worker, WorkerSettings
from tests.servers.aws import emulated, ministack
from tests.servers.valkey import serving

EVENTS = int(os.environ.get("EVENTONCE_BENCH_EVENTS", "3000"))
WARM = 300
"""Events before the measurement begins: imports and first connections do not count."""
ROUNDS = 7
"""Each round runs all variants one after the other, because the load of the machine changes from
one moment to the next; medians count."""


class Spent(NamedTuple):
    """The seconds an event of one process."""

    cpu: float
    wall: float


class Watch:
    """Measures this process from the first event after the warm-up."""

    def __init__(self) -> None:
        self.events = 0
        self._from = (0.0, 0.0)
        self._last = 0.0

    def count(self, events: int) -> bool:
        """Count so many more events; return whether all are done."""
        before, self.events = self.events, self.events + events
        if before < WARM <= self.events:
            self._from = _now()
        if self.events < WARM + EVENTS:
            return False
        self._last = time.perf_counter()
        return True

    def spent(self) -> Spent:
        """Return the CPU time until now, and the time until the last event."""
        cpu, measured = _now()[0] - self._from[0], self.events - WARM
        return Spent(cpu / measured, (self._last - self._from[1]) / measured)


def _now() -> tuple[float, float]:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime, time.perf_counter()


def _loop(url: str, endpoint: str, each: Callable[[list[dict[str, Any]]], list[str]]) -> Spent:
    """Receive ten messages, call the function with them, and delete those that it returns."""
    client = boto3.client("sqs", endpoint_url=endpoint)
    watch, ended = Watch(), False
    while not ended:
        answer = client.receive_message(
            QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=5, VisibilityTimeout=30
        )
        receipts = each(answer.get("Messages", []))
        if receipts:
            entries = [
                {"Id": str(number), "ReceiptHandle": receipt}
                for number, receipt in enumerate(receipts)
            ]
            client.delete_message_batch(QueueUrl=url, Entries=entries)
        ended = watch.count(len(receipts))
    return watch.spent()


def bare(url: str, endpoint: str, _: str) -> Spent:
    """Only receive and delete."""
    return _loop(url, endpoint, lambda messages: [it["ReceiptHandle"] for it in messages])


def ours_bare(url: str, endpoint: str, _: str) -> Spent:
    """Only receive and delete, with our own client."""
    source = SQSSource(Queue.from_uri(f"{url}?endpoint={endpoint}"))
    watch, ended = Watch(), False
    while not ended:
        received = source.receive(10)
        source.acknowledge(received)
        ended = watch.count(len(received))
    return watch.spent()


def tutorial(url: str, endpoint: str, store: str) -> Spent:
    """Remember each event's id for five minutes, and log each, as such loops do."""
    logging.basicConfig(level=logging.INFO)
    log = logging.getLogger(__name__)
    cache = redis.Redis.from_url(store)

    def each(messages: list[dict[str, Any]]) -> list[str]:
        log.info("%d messages received", len(messages))
        receipts = []
        for message in messages:
            try:
                event = json.loads(message["Body"])
                name = event["id"]
                if cache.set(f"event:{name}", "1", nx=True, ex=300) is None:
                    print("copy, passed over:", name)
                else:
                    print("new:", name)
                    log.info("processing event %s", event.get("id", "unknown"))
                receipts.append(message["ReceiptHandle"])
            except Exception:
                log.exception("message %s", message["MessageId"])
        log.info("%d messages to delete", len(receipts))
        return receipts

    return _loop(url, endpoint, each)


def ours(url: str, endpoint: str, store: str, *, watched: bool = False) -> Spent:
    """Run the worker as `eventonce run` makes it."""
    watch = Watch()

    def sink(_: Job) -> None:
        if watch.count(1):
            worker.stop()

    consumer = Consumer(store, name="bench", rules="genesys", handler=sink)
    source = SQSSource(Queue.from_uri(f"{url}?endpoint={endpoint}"))
    worker = Worker(consumer, source, WorkerSettings())
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        if watched:
            measure(consumer)
            history = stack.enter_context(History(f"sqlite:///{folder}/history.db"))
            observer = history.observer(consumer)
            consumer.observers.append(observer)
        report = worker.run()
        assert report.error is None
        assert not report.unfinished
    return watch.spent()


def ours_watched(url: str, endpoint: str, store: str) -> Spent:
    """Run the worker with history and metrics."""
    return ours(url, endpoint, store, watched=True)


WAYS: dict[str, Callable[[str, str, str], Spent]] = {
    "receive and delete, boto3": bare,
    "receive and delete, ours": ours_bare,
    "the loop": tutorial,
    "the worker": ours,
    "the worker, with history and metrics": ours_watched,
}


def _measured(way: str, url: str, endpoint: str, store: str) -> Spent:
    command = [sys.executable, "-m", "benchmarks.worker", way, url, endpoint, store]
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        said = process.stderr.read()
    cpu, wall = said.rsplit("spent ", 1)[1].split()
    return Spent(float(cpu), float(wall))


def _fill(queue: Queue, chance: random.Random) -> None:
    """Send somewhat more events than are measured: the last are in flight when the others end."""
    entries = []
    for _ in range(WARM + EVENTS):
        event = EVENT.replace(b"1b8e4c38", b"%08x" % chance.getrandbits(32))
        event = event.replace(b"6a7e8feb", b"%08x" % chance.getrandbits(32))
        entries.append(Entry(event.decode()))
    assert not queue.send(entries)


def run() -> Iterator[Figure]:
    """Yield the CPU time beyond receiving and deleting, and the throughput, of both."""
    chance = random.Random(1)
    found: dict[str, list[Spent]] = {way: [] for way in WAYS}
    with emulated(), ministack() as endpoint, serving() as node:
        queue = Queue.from_uri(f"sqs://bench?endpoint={endpoint}")
        queue.client.create_queue(QueueName=queue.name)
        for _ in range(ROUNDS):
            for way in WAYS:
                queue.client.purge_queue(QueueUrl=queue.url)
                _fill(queue, chance)
                found[way].append(_measured(way, queue.url, endpoint, node.uri))
    cpu = {way: median(one.cpu for one in spent) for way, spent in found.items()}
    for way, spent in found.items():
        yield Figure(f"{way}: CPU", cpu[way] * 1e6, "µs an event")
        yield Figure(f"{way}: time", median(one.wall for one in spent) * 1e6, "µs an event")
    # Differences of medians, not medians of differences, which would have the noise of both.
    bare_cpu = cpu["receive and delete, boto3"]
    loop = cpu["the loop"] - bare_cpu
    yield Figure("CPU: worker / loop", cpu["the worker"] / cpu["the loop"], "x")
    what = "CPU beyond boto3's receiving and deleting: worker / loop"
    yield Figure(what, (cpu["the worker"] - bare_cpu) / loop, "x", at_most=0.3)
    added = cpu["the worker"] - cpu["receive and delete, ours"]
    yield Figure("the same, the worker's beyond its own client's", added / loop, "x")
    rounds = zip(found["the loop"], found["the worker"], strict=True)
    faster = median(one.wall / own.wall for one, own in rounds)
    yield Figure("throughput: worker / loop", faster, "x", at_least=1.0)
    rounds = zip(found["the worker"], found["the worker, with history and metrics"], strict=True)
    kept = median(plain.wall / watched.wall for plain, watched in rounds)
    yield Figure("throughput: with history and metrics / without", kept, "x", at_least=0.9)


if __name__ == "__main__":
    spent = WAYS[sys.argv[1]](*sys.argv[2:])
    print(f"spent {spent.cpu:.9f} {spent.wall:.9f}", file=sys.stderr)
    sys.stderr.flush()
    os._exit(0)
