"""Dead letters and expired records: both are deleted after their time."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest

from eventonce import Consumer
from eventonce.clock import wall_clock
from eventonce.core.ports import Store
from eventonce.errors import ConfigError, StoreError, StoreUnavailable
from eventonce.metrics.meter import measure
from eventonce.metrics.names import EXPIRED_LETTERS
from eventonce.runtime import background_task, retention
from eventonce.runtime.retention import drop_expired, maintained
from eventonce.stores import open_store
from eventonce.stores.memory import MemoryStore
from eventonce.types import Letter
from tests.helpers import Run, WatchedStore, away, call, reject, ruled, until

NOW = 1_790_000_000_000
DAY = 86_400_000


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search for old dead letters ends before a test goes on, however busy the machine is."""
    monkeypatch.setattr(background_task, "EXIT_WAIT", 60.0)


def letter(id: str, at: int, consumer: str = "crm") -> Letter:
    return Letter(id, consumer, "dead", "why", "call", b"k" * 16, call(1), at)


def consumer(store: Store, **given: Any) -> Consumer:
    return Consumer(
        store,
        name="crm",
        rules=ruled(),
        handler=reject,
        keep_letters="90d",
        clock=lambda: NOW,
        **given,
    )


def test_a_batch_drops_the_old_dead_letters_of_its_consumer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = MemoryStore(clock=lambda: NOW)
    store.put_letters(
        [
            letter("old", NOW - 90 * DAY - 1),
            letter("other's", NOW - 900 * DAY, "billing"),
            letter("just", NOW - 90 * DAY),
        ]
    )
    with consumer(store) as one, caplog.at_level(logging.WARNING, "eventonce"):
        (new,) = one.process([call(1)])
        one.runtime.flush()
        assert new.status == "dead"
        assert {it.id for it in store.letters()} - {"other's", "just"} == {
            it.id for it in store.letters() if it.at == NOW
        }
    assert "dropped 1 of crm that were kept for 90d" in caplog.text


def test_dead_letters_stay_for_ever_without_keep_letters() -> None:
    store = MemoryStore(clock=lambda: NOW)
    store.put_letters([letter("old", 0)])
    with Consumer(store, name="crm", rules=ruled(), handler=reject, clock=lambda: NOW) as one:
        one.process([call(1)])
    assert store.letter("old") is not None


def test_dropped_dead_letters_are_counted() -> None:
    store = MemoryStore(clock=lambda: NOW)
    store.put_letters([letter(str(at), at) for at in range(3)])
    with consumer(store) as one:
        meter = measure(one)
        assert meter.counted().counts(EXPIRED_LETTERS) == {(): 0}
        one.process([call(1)])
        one.runtime.flush()
        assert meter.counted().counts(EXPIRED_LETTERS) == {(): 3}


def test_run_and_serve_drop_old_dead_letters_although_no_event_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retention, "LOOK_INTERVAL", 0)
    monkeypatch.setattr(retention, "SWEEP_INTERVAL", 0.01)
    store = MemoryStore(clock=lambda: NOW)
    with consumer(store) as one, maintained(store, one.runtime.retention):
        for number in range(3):
            store.put_letters([letter(f"old-{number}", number)])
            until(lambda: not list(store.letters()))


class Shared(MemoryStore):
    """A store like PostgreSQL, which deletes no expired record during a claim."""

    embedded = False

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[int] = []
        self.dropped: list[int] = []
        """The answers of the next sweeps; StoreUnavailable after these."""

    def sweep(self, limit: int = 0, now: int | None = None) -> int:
        self.asked.append(limit)
        if not self.dropped:
            raise StoreUnavailable("away")
        return self.dropped.pop(0)


def test_run_and_serve_sweep_a_store_that_does_not_sweep_during_claims(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a higher limit where many records have expired, and again after an outage."""
    monkeypatch.setattr(retention, "SWEEP_INTERVAL", 0.001)
    store = Shared()
    store.dropped = [9_000, 20_000, 40_000, 0, 0]
    with maintained(store, None):
        until(lambda: len(store.asked) > 6)
    assert store.asked[:7] == [10_000, 20_000, 40_000, 80_000, 40_000, 20_000, 20_000]


def test_a_refused_sweep_is_logged_and_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Refused(Shared):
        def sweep(self, limit: int = 0, now: int | None = None) -> int:
            self.asked.append(limit)
            raise StoreError("permission denied") if len(self.asked) % 2 else KeyError("defect")

    monkeypatch.setattr(retention, "SWEEP_INTERVAL", 0.001)
    store = Refused()
    with caplog.at_level(logging.WARNING, "eventonce"), maintained(store, None):
        until(lambda: len(store.asked) > 6)
    assert caplog.messages[0] == "expired records are not dropped: permission denied"
    assert len(caplog.messages) < len(store.asked)


def test_a_slow_search_for_old_dead_letters_delays_only_one_invocation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits: list[float | None] = []

    class Watched(Thread):
        def join(self, timeout: float | None = None) -> None:
            waits.append(timeout)

    monkeypatch.setattr(background_task, "Thread", Watched)
    with consumer(MemoryStore()) as one:
        for number in range(3):
            one.process([call(number)])
            one.runtime.flush()
        assert waits == [background_task.EXIT_WAIT]


def test_old_dead_letters_are_searched_for_once_an_hour(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: list[int] = []
    now = 1_000.0

    def drop(_: object, __: str, before: int) -> int:
        looks.append(before)
        return 0

    monkeypatch.setattr(retention, "drop_expired", drop)
    monkeypatch.setattr(retention, "time", SimpleNamespace(monotonic=lambda: now))
    with consumer(MemoryStore()) as one:
        for number, (passed, searches) in enumerate([(0, 1), (0, 1), (3_599.5, 1), (0.5, 2)]):
            now += passed
            one.process([call(number)])
            one.runtime.flush()
            assert looks == [NOW - 90 * DAY] * searches


def test_a_store_that_cannot_drop_dead_letters_fails_no_event(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = WatchedStore(away("drop_letters"))
    store.put_letters([letter("old", 0)])
    with consumer(store) as one, caplog.at_level(logging.WARNING, "eventonce"):
        assert one.process([call(1)])[0].status == "dead"
        one.runtime.flush()
    assert "the old ones are not dropped yet: away" in caplog.text
    assert store.letter("old") is not None


def test_no_event_fails_when_the_thread_of_the_retention_cannot_start(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class NoThread(Thread):
        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    monkeypatch.setattr(background_task, "Thread", NoThread)
    with consumer(MemoryStore()) as one, caplog.at_level(logging.WARNING, "eventonce"):
        assert one.process([call(1)])[0].status == "dead"
    assert "can't start new thread" in caplog.text


def test_a_dead_letter_that_a_redrive_stores_again_meanwhile_stays() -> None:
    renewed = letter("old", NOW)

    def look(verb: str, _: Sequence[Any]) -> None:
        if verb == "drop_letters":
            store._letters["old"] = renewed

    store = WatchedStore(look)
    store.put_letters([letter("old", 0)])
    assert drop_expired(store, "crm", NOW - DAY) == 0
    assert store.letter("old") == renewed


def test_all_old_dead_letters_are_dropped_and_of_the_newer_only_the_first_is_read() -> None:
    class Counted(MemoryStore):
        read = 0

        def letters(self, consumer: str | None = None) -> Iterator[Letter]:
            for one in super().letters(consumer):
                self.read += 1
                yield one

    store = Counted()
    store.put_letters([letter(f"{at:04}", at) for at in range(1_000)])
    assert drop_expired(store, "crm", 777) == 777
    assert store.read == 778
    assert [it.at for it in store.letters()] == list(range(777, 1_000))


@pytest.mark.parametrize("keep", ["soon", 0, "0s", -1, True])
def test_an_invalid_duration_of_keep_letters_is_refused(keep: Any) -> None:
    with pytest.raises(ConfigError, match=r"^Consumer: keep_letters: "):
        Consumer("memory:", keep_letters=keep)


def test_the_doctor_reports_an_old_dead_letter_and_a_sweep_drops_the_dead_letter(
    run: Run, tmp_path: Path
) -> None:
    file = tmp_path / "eventonce.toml"
    file.write_text('store = "sqlite:///e.db"\nname = "crm"\nkeep_letters = "1d"\n')
    store = open_store("sqlite:///e.db")
    store.put_letters([letter("old", 0), letter("new", wall_clock()), letter("x", 0, "other")])
    found = run("doctor")
    assert found.code == 1
    assert "FAILED   a dead letter of crm is older than 1d" in found.out
    assert run("sweep").out.splitlines()[1:] == ["deleted 1 dead letter of crm older than 1d"]
    assert {it.id for it in store.letters()} == {"new", "x"}
    # While another connection has the file open.
    assert Path("e.db-wal").stat().st_size == 0
    assert run("sweep", "--json").documents[0]["letters"] == 0
    assert "ok       no dead letter of crm is older than 1d" in run("doctor").out
    store.close()
    file.write_text('store = "sqlite:///e.db"\nkeep_letters = "soon"\n')
    assert "keep_letters: expected a duration" in run("check", "eventonce.toml").err
