"""The size limit of an event: the limit of the consumer applies to every way in."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eventonce import Consumer, Job, Reject
from eventonce.aws import lambda_handler
from eventonce.envelope import read
from eventonce.envelope.reader import refused
from eventonce.errors import EnvelopeError
from eventonce.sources import FileSource
from eventonce.types import Letter
from eventonce.worker import Worker, WorkerSettings
from tests.helpers import ruled, statuses
from tests.unit.invoked import record

LIMIT = 1_000
FITS, LONG = (
    json.dumps({"id": name, "source": "s", "detail-type": "call", "detail": {"text": "x" * size}})
    for name, size in (("fits", 100), ("long", 2 * LIMIT))
)


class Calls:
    """A consumer with a small limit, the ids of the events that it ran, and its dead letters."""

    def __init__(self, max_bytes: int = LIMIT) -> None:
        self.ran: list[str] = []
        self.consumer = Consumer("memory:", handler=self._run, max_bytes=max_bytes)

    def _run(self, job: Job) -> None:
        self.ran.append(job.event.id)

    @property
    def letters(self) -> list[Letter]:
        return list(self.consumer.letters())


def worked_on(consumer: Consumer, folder: Path, content: str) -> None:
    file = folder / "capture.jsonl"
    file.write_text(content)
    Worker(consumer, FileSource([file]), WorkerSettings(concurrency=2, receivers=1)).run()


def by_http(body: str) -> dict[str, Any]:
    return {"requestContext": {"http": {"method": "POST"}}, "body": body}


WAYS_IN: dict[str, Callable[[Consumer, Path], object]] = {
    "process": lambda made, _: made.process([FITS, LONG]),
    "process, read before": lambda made, _: made.process([read(FITS), read(LONG)]),
    "process_async": lambda made, _: asyncio.run(made.process_async([FITS, LONG])),
    "a worker": lambda made, folder: worked_on(made, folder, f"{FITS}\n{LONG}\n"),
    "a worker, in one batch": lambda made, folder: worked_on(made, folder, f"[{FITS},{LONG}]"),
    "lambda": lambda made, _: lambda_handler(made)([json.loads(FITS), json.loads(LONG)], None),
    "lambda behind a queue": lambda made, _: lambda_handler(made)(
        {"Records": [record("1", body=FITS), record("2", body=LONG)]}, None
    ),
    "lambda behind HTTP": lambda made, _: lambda_handler(made)(by_http(f"[{FITS},{LONG}]"), None),
}


@pytest.mark.parametrize("way", WAYS_IN)
def test_an_event_beyond_the_limit_is_invalid_and_kept_whole(way: str, tmp_path: Path) -> None:
    calls = Calls()
    WAYS_IN[way](calls.consumer, tmp_path)
    assert calls.ran == ["fits"]
    (letter,) = calls.letters
    assert letter.status == "invalid"
    assert f"the limit is {LIMIT}" in letter.reason
    assert read(letter.event, max_bytes=10 * LIMIT).detail == json.loads(LONG)["detail"]


@pytest.mark.parametrize("way", WAYS_IN)
def test_a_higher_limit_applies_to_every_way_in(way: str, tmp_path: Path) -> None:
    calls = Calls(max_bytes=10 * LIMIT)
    WAYS_IN[way](calls.consumer, tmp_path)
    assert sorted(calls.ran) == ["fits", "long"]
    assert calls.letters == []


def test_an_event_that_was_read_before_is_checked_against_the_limit() -> None:
    calls = Calls()
    (outcome,) = calls.consumer.process(read(LONG))
    assert (outcome.status, outcome.event and outcome.event.id) == ("invalid", "long")
    assert calls.ran == []


def test_a_worker_accepts_an_event_beyond_the_default_limit_if_its_consumer_does(
    tmp_path: Path,
) -> None:
    event = json.loads(FITS) | {"detail": {"text": "x" * (2 << 20)}}
    calls = Calls(max_bytes=4 << 20)
    worked_on(calls.consumer, tmp_path, json.dumps(event) + "\n")
    assert calls.ran == ["fits"]


def test_every_event_of_a_document_beyond_the_limit_of_one_event_runs(tmp_path: Path) -> None:
    events = [json.loads(FITS) | {"id": str(number)} for number in range(100)]
    calls = Calls()
    worked_on(calls.consumer, tmp_path, json.dumps({"Records": events}))
    assert sorted(calls.ran, key=int) == [str(number) for number in range(100)]
    assert calls.letters == []


def test_an_event_at_the_limit_is_redriven_with_the_longest_headers() -> None:
    ran: list[str] = []

    def handler(job: Job) -> None:
        ran.append(job.event.id)
        if len(ran) == 1:
            raise Reject("not yet")

    headers = {"ce-specversion": "1.0", "ce-source": "s", "ce-type": "t", "ce-id": '"' * 65_400}
    with Consumer("memory:", handler=handler, max_bytes=2) as consumer:
        event = read(b"{}", headers=headers)
        assert statuses(consumer.process([event])) == ["dead"]
        assert statuses(consumer.redrive()) == ["done"]
    assert len(ran) == 2


def test_a_body_that_is_no_event_is_kept_with_its_headers() -> None:
    sent = refused(b"no event", {"webhook-id": "w-1"})
    calls = Calls()
    calls.consumer.process([sent])
    (letter,) = calls.letters
    assert json.loads(letter.event)["headers"] == {"webhook-id": "w-1"}


def test_an_object_of_another_type_is_kept_as_its_repr_with_its_error() -> None:
    calls = Calls()
    given: Any = object()
    (outcome,) = calls.consumer.process([given])
    assert isinstance(outcome.error, EnvelopeError)
    assert [letter.event for letter in calls.letters] == [repr(given).encode()]


def test_the_error_of_an_event_without_its_key_is_the_reason_of_its_outcome() -> None:
    with Consumer("memory:", rules=ruled(), handler=lambda _: None) as consumer:
        (outcome,) = consumer.process([{"id": "1", "detail-type": "call", "detail": {}}])
    assert isinstance(outcome.error, EnvelopeError)
    assert str(outcome.error) == outcome.reason
