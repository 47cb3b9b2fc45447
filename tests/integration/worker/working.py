"""A worker in a thread of the test's own process, for tests that kill no process."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from eventonce import Consumer, Rule
from eventonce.aws.sqs import Queue
from eventonce.core.ports import Delivery, Source
from eventonce.sources import SQSSource
from eventonce.types import Job
from eventonce.worker import ExitReport, Worker, WorkerSettings
from tests.helpers import PATIENCE

RULE = Rule(name="numbers", key="detail.n", lease=30, attempts=5)
"""A lease that does not end under a handler because the machine is busy elsewhere."""


class Ran:
    """A handler that records the numbers of its events."""

    def __init__(self) -> None:
        self.numbers: list[Any] = []

    def __call__(self, job: Job) -> None:
        self.numbers.append(job.event.detail["n"])


class Polling(SQSSource):
    """A source that does not wait in its requests, so that no test waits for their end, but between
    them, so that tests beside it have a processor, too."""

    def receive(self, most: int) -> list[Delivery]:
        received = super().receive(most)
        if not received:
            time.sleep(0.05)
        return received


def source(uri: str, *, visibility: float = 30) -> SQSSource:
    """A queue as a source for a worker that ends at once when it is stopped."""
    return Polling(Queue.from_uri(uri), visibility=visibility, wait=0)


@contextmanager
def working(consumer: Consumer, taken_from: Source, **settings: Any) -> Iterator[Worker]:
    """A worker that runs until the block is left, and then ends with an empty report."""
    worker = Worker(consumer, taken_from, WorkerSettings(**settings))
    reports: list[ExitReport] = []
    thread = threading.Thread(target=lambda: reports.append(worker.run()), daemon=True)
    thread.start()
    try:
        yield worker
    finally:
        worker.stop()
        thread.join(PATIENCE)
        consumer.close()
    assert reports == [ExitReport()]
