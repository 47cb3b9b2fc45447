"""The handler's writes and its completion commit together, whenever the process is killed."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Self

import msgspec
import pytest

from eventonce import ConfigError, Consumer, Job, Rule
from eventonce.stores.sqlite import SQLiteStore
from eventonce.testing.factory import StoreFactory
from eventonce.testing.harness import ManualClock
from eventonce.testing.workers import spawn
from eventonce.types import Claim, Settlement
from tests.helpers import PATIENCE, call

RULE = Rule(name="call", match="call", key=["detail.call"], lease="60s")

STEPS = (
    "claimed",
    "handler begun",
    "written",
    "settled",
    "committed",
)


def work(pipe: Connection, factory: StoreFactory, now: int, step: str) -> None:
    """The killed process: one event, one effect."""

    def die_at(reached: str) -> None:
        if reached == step:
            os.kill(os.getpid(), signal.SIGKILL)

    store = factory.open()
    assert isinstance(store, SQLiteStore)
    with store.transaction() as transaction:
        transaction.connection.execute("CREATE TABLE IF NOT EXISTS effects (call INTEGER)")
    claim, transact = store.claim, store.transaction

    def claimed(claims: list[Claim], now: int | None = None) -> object:
        verdicts = claim(claims, now)
        die_at("claimed")
        return verdicts

    class Watched:
        """The transaction, with a place to die between its settlement and its commit."""

        def __init__(self) -> None:
            self._context = transact()

        def __enter__(self) -> Self:
            self._inner = self._context.__enter__()
            self.connection = self._inner.connection
            return self

        def settle(self, settlement: Settlement) -> object:
            kept = self._inner.settle(settlement)
            die_at("settled")
            return kept

        def __exit__(self, *what: object) -> None:
            self._context.__exit__(*what)  # type: ignore[arg-type]
            die_at("committed")

    store.claim = claimed  # type: ignore[method-assign,assignment]
    store.transaction = Watched  # type: ignore[method-assign,assignment]
    consumer = Consumer(store, rules=RULE, clock=lambda: now)

    @consumer.on()
    def handler(job: Job) -> None:
        die_at("handler begun")
        job.connection.execute("INSERT INTO effects VALUES (?)", (job.event.detail["call"],))
        die_at("written")

    (outcome,) = consumer.process([call(1)])
    pipe.send([outcome.status])


def worker(database: Path, now: int, step: str = "") -> str:
    """The status of the event, or `killed` if the process was killed at the step."""
    factory = StoreFactory(partial(SQLiteStore, database, clock=partial(int, now)))
    begun = spawn(factory, work, now, step)
    try:
        (status,) = begun.hear()
    except EOFError:
        begun.process.join(PATIENCE)
        assert begun.process.exitcode == -signal.SIGKILL
        return "killed"
    return str(status)


def effects(database: Path) -> int:
    with closing(sqlite3.connect(database)) as connection:
        (count,) = connection.execute("SELECT count(*) FROM effects").fetchone()
    return int(count)


@pytest.mark.parametrize("step", STEPS)
def test_a_process_killed_at_any_step_leaves_each_effect_exactly_once(
    step: str, tmp_path: Path
) -> None:
    database, now = tmp_path / "app.db", ManualClock().now
    assert worker(database, now, step) == "killed"
    assert effects(database) == (1 if step == "committed" else 0)
    again = worker(database, now + 61_000)
    assert again == ("duplicate" if step == "committed" else "done")
    assert effects(database) == 1
    assert worker(database, now + 122_000) == "duplicate"
    assert effects(database) == 1


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SQLiteStore]:
    with closing(SQLiteStore(tmp_path / "app.db")) as opened:
        yield opened


def table(store: SQLiteStore) -> None:
    with store.transaction() as transaction:
        transaction.connection.execute("CREATE TABLE effects (call INTEGER)")


def write(job: Job) -> None:
    job.connection.execute("INSERT INTO effects VALUES (?)", (job.event.detail["call"],))


def test_the_writes_of_a_handler_that_fails_are_undone(store: SQLiteStore, tmp_path: Path) -> None:
    table(store)

    def handler(job: Job) -> None:
        write(job)
        raise ValueError("no")

    (outcome,) = Consumer(store, rules=RULE, handler=handler).process([call(1)])
    assert outcome.status == "failed"
    assert effects(tmp_path / "app.db") == 0


def test_a_run_that_was_overtaken_has_its_writes_undone(tmp_path: Path) -> None:
    clock = ManualClock()
    store = SQLiteStore(tmp_path / "app.db", clock=clock)
    table(store)
    rival = SQLiteStore(tmp_path / "app.db", clock=clock)

    def slow(job: Job) -> None:
        clock.advance(61)
        assert rival.claim([msgspec.structs.replace(job.claim, nonce=7)])[0].kind == "run"
        write(job)

    (outcome,) = Consumer(store, rules=RULE, handler=slow, clock=clock).process([call(1)])
    assert outcome.status == "fenced"
    assert effects(tmp_path / "app.db") == 0


def test_a_batch_of_handlers_with_transactions_commits_each_effect(
    store: SQLiteStore, tmp_path: Path
) -> None:
    table(store)
    consumer = Consumer(store, rules=RULE, handler=write)
    outcomes = consumer.process([call(number) for number in range(20)])
    assert [outcome.status for outcome in outcomes] == ["done"] * 20
    assert effects(tmp_path / "app.db") == 20


def test_a_block_of_code_may_share_the_transaction(store: SQLiteStore, tmp_path: Path) -> None:
    table(store)
    consumer = Consumer(store, rules=RULE)
    for _ in range(2):
        with consumer.once(call(1)) as job:
            if job.run:
                write(job)
    assert effects(tmp_path / "app.db") == 1


def test_an_async_handler_that_uses_the_connection_fails_with_the_reason(
    store: SQLiteStore,
) -> None:
    async def handler(job: Job) -> None:
        write(job)

    with Consumer(store, rules=RULE, handler=handler) as consumer:
        (outcome,) = consumer.process([call(1)])
    assert outcome.status == "failed"
    assert isinstance(outcome.error, ConfigError)
    assert "plain `def`" in outcome.reason


def test_a_handler_that_uses_the_connection_fails_on_a_store_without_transactions() -> None:
    (outcome,) = Consumer("memory:", rules=RULE, handler=write).process([call(1)])
    assert isinstance(outcome.error, ConfigError)
