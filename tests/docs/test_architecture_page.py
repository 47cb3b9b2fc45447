"""docs/architecture.md is true: its files and names exist, and it names every package."""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

from eventonce import Consumer
from eventonce.aws.sqs import Queue
from eventonce.sources import SQSSource
from eventonce.stores.memory import MemoryStore
from tests.docs.pages import DOCS
from tests.helpers import until
from tests.unit.asking import ask
from tests.unit.aws_service import FUNCTION, say, serving
from tests.unit.endpoint import Endpoint, call
from tests.unit.invoked import Crm, record
from tests.unit.test_worker_whole import working

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "eventonce"
TEXT = (DOCS / "architecture.md").read_text(encoding="utf-8")
WALK = TEXT.partition("## The walk of one event")[2].partition("\n## ")[0]


def test_every_file_on_the_page_exists() -> None:
    named = set(re.findall(r"`([a-z_]+(?:/[a-z_]+)*\.py)`", TEXT))
    assert len(named) > 15
    inside = {path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py")}
    inside |= {path.relative_to(ROOT).as_posix() for path in ROOT.glob("tests/*/*.py")}
    assert {name for name in named if "/" in name} <= inside
    assert {Path(name).name for name in named} <= {Path(name).name for name in inside}


def test_every_package_is_named_on_the_page() -> None:
    rooms = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert rooms <= set(re.findall(r"`([a-z]+)/", TEXT))


def test_every_table_that_takes_a_line_is_in_the_file_that_the_page_names() -> None:
    found = re.findall(r"`(_?[A-Z_]{4,})`(?: or `([A-Z_]+)`)? of `([a-z_/]+\.py)`", TEXT)
    assert len(found) >= 6
    for first, second, file in found:
        for name in filter(None, (first, second)):
            text = (ROOT if file.startswith("tests/") else SOURCE).joinpath(file).read_text()
            assert re.search(rf"^{name}\b", text, re.MULTILINE), f"no table {name} in {file}"


@contextmanager
def files_passed() -> Iterator[set[str]]:
    """The files of eventonce whose code runs meanwhile, in any thread that begins meanwhile."""
    passed: set[str] = set()

    def note(frame: FrameType, *_: object) -> None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(SOURCE):
            passed.add(path.relative_to(SOURCE).as_posix())

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield passed
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def not_named(passed: set[str]) -> set[str]:
    return {one for one in passed if not one.startswith("stores/") and f"`{one}`" not in WALK}


def test_every_file_that_a_message_passes_is_on_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in FUNCTION.items():
        monkeypatch.setenv(name, value)
    message = {"MessageId": "m", "ReceiptHandle": "r", "Body": json.dumps(call("a"))}
    consumer = Consumer(MemoryStore(), handler=lambda _: None)
    with serving() as service:
        service.answers = [say(200, json.dumps({"Messages": [message]}).encode())]
        source = SQSSource(Queue.from_uri(f"{service.url}/1/calls"))
        with files_passed() as passed, working(consumer, source):
            until(lambda: any("Delete" in asked["x-amz-target"] for asked in service.asked))
    assert {"worker/fetcher.py", "core/engine.py", "worker/ack_buffer.py"} <= passed
    assert not_named(passed) == set()


def test_every_file_that_a_request_passes_is_on_the_page() -> None:
    endpoint = Endpoint()
    with files_passed() as passed:
        ask(endpoint.app, call("a"))
        ask(endpoint.app, call("a"))
    assert endpoint.ran == ["a"], "the second request brings a copy"
    assert {"web/events.py", "core/engine.py", "http_report.py"} <= passed
    assert not_named(passed) == set()


def test_every_file_that_a_record_of_lambda_passes_is_on_the_page() -> None:
    crm = Crm()
    crm.handler({"Records": [record("a")]}, None)
    with files_passed() as passed:
        crm.handler({"Records": [record("b")]}, None)
    assert crm.ran == ["a", "b"]
    assert {"aws/handler.py", "core/engine.py", "aws/sqs_batch.py"} <= passed
    assert not_named(passed) == set()


AROUND = {"demo/worker.py", "privacy/sealed_store.py", "runtime/brief_results.py"}
"""Stores around another store, which pass its answers on."""

TRIALS = {"doctor/storage.py", "stores/probe.py"}
"""Claims of a key that no event has."""


def test_the_gate_alone_claims_and_settles_events() -> None:
    calls = re.compile(r"\b_?(?:store|inner)\.(?:claim|settle)\b")
    callers = {
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        if "testing" not in path.parts and calls.search(path.read_text(encoding="utf-8"))
    }
    assert callers == {"runtime/gate.py", *AROUND, *TRIALS}
