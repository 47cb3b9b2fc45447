"""A worker in a thread of the test's own process, for what needs no process to die."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from eventonce import Consumer, Rule
from eventonce.ports import Source
from eventonce.sources import SQSSource
from eventonce.sqs import Queue
from eventonce.types import Job
from eventonce.worker import Report, Settings, Worker
from tests.integration.worker.conftest import PATIENCE

RULE = Rule(name="numbers", key="detail.n", lease=3, attempts=5)


class Ran:
    """A handler that notes what ran."""

    def __init__(self) -> None:
        self.numbers: list[Any] = []

    def __call__(self, job: Job) -> None:
        self.numbers.append(job.event.detail["n"])


def source(uri: str, *, visibility: float = 2) -> SQSSource:
    """It does not wait for messages, so that a test does not wait for its end."""
    return SQSSource(Queue.from_uri(uri), visibility=visibility, wait=0)


@contextmanager
def working(consumer: Consumer, taken_from: Source, **settings: Any) -> Iterator[Worker]:
    """A worker, until the block is left; it must then end as it should."""
    worker = Worker(consumer, taken_from, Settings(**settings))
    reports: list[Report] = []
    thread = threading.Thread(target=lambda: reports.append(worker.run()))
    thread.start()
    try:
        yield worker
    finally:
        worker.stop()
        thread.join(PATIENCE)
        consumer.close()
    assert reports == [Report()]
