"""The names of consumers in the store: no event waits for them, and none fails because of them."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from eventonce import Consumer
from eventonce.core.ports import StoreNames, offers
from eventonce.errors import ConfigError, StoreUnavailable
from eventonce.privacy import SealedStore, Sealer
from eventonce.runtime import background_task
from eventonce.runtime.background_task import keep_name
from eventonce.stores.memory import MemoryStore
from eventonce.stores.sqlite import SQLiteStore
from tests.helpers import PATIENCE, call, ruled


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name is kept before a test goes on, however busy the machine is."""
    monkeypatch.setattr(background_task, "EXIT_WAIT", PATIENCE)


class Listed(MemoryStore):
    """A memory store with names; `look` is called before each call for names."""

    def __init__(self, look: Callable[[str], object] = lambda _: None) -> None:
        super().__init__()
        self.look = look
        self.kept: list[str] = []
        self.calls: list[str] = []

    def names(self) -> list[str]:
        self.calls.append("names")
        self.look("names")
        return self.kept

    def add_name(self, name: str) -> None:
        self.calls.append("add_name")
        self.look("add_name")
        self.kept.append(name)


def consumer(store: Any, name: str = "crm-x", **given: Any) -> Consumer:
    return Consumer(store, name=name, rules=ruled(), handler=lambda _: None, **given)


def run(store: Any, numbers: Sequence[int] = (1,), **given: Any) -> None:
    with consumer(store, **given) as one:
        for number in numbers:
            assert [it.ack for it in one.process([call(number)])] == [True]


def test_a_consumer_reads_the_names_once_and_adds_its_own_if_absent() -> None:
    store = Listed()
    assert store.calls == []
    run(store, range(3))
    assert store.calls == ["names", "add_name"]
    run(store, range(3))
    assert store.calls == ["names", "add_name", "names"]
    assert store.kept == ["crm-x"]


def test_the_names_are_not_read_before_the_first_batch() -> None:
    store = Listed()
    with consumer(store):
        pass
    assert store.calls == []


def test_only_the_first_invocation_of_lambda_waits_for_the_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits: list[float | None] = []

    class Watched(Thread):
        def join(self, timeout: float | None = None) -> None:
            waits.append(timeout)
            super().join(timeout)

    monkeypatch.setattr(background_task, "Thread", Watched)
    store = Listed()
    with consumer(store) as one:
        for number in range(3):
            one.process([call(number)])
            one.runtime.flush()
            assert store.kept == ["crm-x"]
            assert waits == [PATIENCE]


def test_no_batch_waits_for_the_name_to_be_stored() -> None:
    asked, go_on = Event(), Event()

    def hold(_: str) -> None:
        asked.set()
        assert go_on.wait(PATIENCE)

    store = Listed(hold)
    with consumer(store) as one:
        for number in range(3):
            assert one.process([call(number)])[0].status == "done"
        assert asked.wait(PATIENCE)
        assert store.kept == []
        go_on.set()
    assert store.kept == ["crm-x"]


@pytest.mark.parametrize("verb", ["names", "add_name"])
@pytest.mark.parametrize(
    "error", [StoreUnavailable("away"), ConfigError("no right"), KeyError("defect")]
)
def test_a_store_that_refuses_the_name_fails_no_event_and_is_not_asked_again(
    verb: str, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(called: str) -> None:
        if called == verb:
            raise error

    store = Listed(refuse)
    with caplog.at_level(logging.DEBUG, "eventonce"):
        run(store, range(3))
    (record,) = [it for it in caplog.records if "crm-x" in it.message]
    assert record.levelno == logging.DEBUG
    assert store.calls.count("names") == 1


def test_no_event_fails_when_the_thread_for_the_name_cannot_start(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class NoThread(Thread):
        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    monkeypatch.setattr(background_task, "Thread", NoThread)
    run(Listed(), range(3))
    assert caplog.messages == [
        "names: not done, because no thread could start: can't start new thread"
    ]


def test_the_names_that_a_program_stores_are_limited_in_number_and_length(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = Listed()
    with caplog.at_level(logging.DEBUG, "eventonce"):
        keep_name(store, "x" * (background_task.LONGEST_NAME + 1))
        for number in range(background_task.MOST_NAMES + 5):
            keep_name(store, f"crm-{number}")
    assert store.kept == [f"crm-{number}" for number in range(background_task.MOST_NAMES)]
    assert len(caplog.records) == 6
    keep_name(store, "crm-7")
    assert len(caplog.records) == 6


def test_a_store_without_names_still_processes_events() -> None:
    run(MemoryStore())


def test_the_name_of_a_consumer_is_stored_unencrypted_in_a_sealed_store(tmp_path: Path) -> None:
    path = tmp_path / "eventonce.db"
    run(SQLiteStore(path), sealing_keys=["00" * 32])
    assert offers(SealedStore(Listed(), Sealer(["00" * 32])), StoreNames)
    store = SQLiteStore(path)
    assert store.names() == ["crm-x"]
    store.close()


PROGRAM = """
import sys
from eventonce import Consumer
from eventonce.runtime import background_task
background_task.EXIT_WAIT = 240  # however busy the machine is
consumer = Consumer(sys.argv[1], name="crm-x", handler=lambda job: None)
consumer.process([{"id": "1", "source": "s", "detail-type": "call", "detail": {}}])
"""


def test_a_program_that_does_not_close_its_consumer_still_stores_the_name(tmp_path: Path) -> None:
    path = tmp_path / "eventonce.db"
    subprocess.run(
        [sys.executable, "-c", PROGRAM, f"sqlite:///{path}"], check=True, timeout=PATIENCE
    )
    store = SQLiteStore(path)
    assert store.names() == ["crm-x"]
    store.close()


SILENT = """
import threading
from eventonce import Consumer
from eventonce.runtime import background_task
from eventonce.stores.memory import MemoryStore

class Silent(MemoryStore):
    def names(self):
        threading.Event().wait()
    def add_name(self, name):
        pass

background_task.EXIT_WAIT = 0.1
Consumer(Silent(), name="crm-x", handler=lambda _: None).process([b'{"id": "1"}'])
print("ran")
"""


def test_a_program_ends_although_the_store_never_answers_for_names() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", SILENT], capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    assert ended.stdout == "ran\n"


def test_a_new_sqlite_file_has_no_names(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "eventonce.db")
    assert store.names() == []
    store.close()
