"""The guarded connection of an SQLite store: the uses that are allowed and refused."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from eventonce import Consumer, Job, Rule
from eventonce.errors import ConfigError, StoreError, StoreUnavailable
from eventonce.stores.sqlite import SQLiteStore
from eventonce.types import Claim, Settlement
from tests.helpers import call
from tests.unit.interrupts import Interrupt

NOW = 1_790_000_000_000
RULE = Rule(name="call", match="call", key=["detail.call"], attempts=3)

Use = Callable[[sqlite3.Connection], object]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "eventonce.db"


@pytest.fixture
def sqlite(path: Path) -> Iterator[SQLiteStore]:
    with closing(SQLiteStore(path, clock=lambda: NOW)) as opened:
        with opened.transaction() as transaction:
            transaction.connection.execute("CREATE TABLE effects (call INTEGER UNIQUE)")
        yield opened


def effects(path: Path) -> list[int]:
    with closing(sqlite3.connect(path)) as connection:
        return [n for (n,) in connection.execute("SELECT call FROM effects ORDER BY call")]


def insert(db: sqlite3.Connection, number: int) -> None:
    db.execute("INSERT INTO effects VALUES (?)", (number,))


def within(db: sqlite3.Connection) -> None:
    with db:
        insert(db, 2)


def in_another_mode(db: sqlite3.Connection) -> None:
    db.isolation_level = None


def begun_anew(db: sqlite3.Connection) -> None:
    """Writes before the error are undone; a write after the error would be committed alone."""
    with suppress(sqlite3.IntegrityError):
        db.execute("INSERT OR ROLLBACK INTO effects VALUES (1)")
    insert(db, 2)


def through_a_cursor(db: sqlite3.Connection) -> None:
    with suppress(sqlite3.IntegrityError):
        db.execute("INSERT OR ROLLBACK INTO effects VALUES (1)")
    db.cursor().executemany("INSERT INTO effects VALUES (?)", [(2,), (3,)])


ENDS: tuple[Use, ...] = (
    within,
    in_another_mode,
    begun_anew,
    through_a_cursor,
    lambda db: db.commit(),
    lambda db: db.rollback(),
    lambda db: db.close(),
    lambda db: db.executescript("INSERT INTO effects VALUES (2)"),
    lambda db: db.cursor().executescript("INSERT INTO effects VALUES (2)"),
    lambda db: db.execute("COMMIT"),
    lambda db: db.execute(" end transaction;"),
    lambda db: db.execute("ROLLBACK"),
    lambda db: db.cursor().execute("COMMIT"),
    lambda db: db.set_authorizer(None),
    lambda db: db.__exit__(None, None, None),
)


@pytest.mark.parametrize("end", ENDS)
def test_a_handler_that_ends_the_transaction_leaves_no_effect_behind(
    path: Path, sqlite: SQLiteStore, end: Use
) -> None:
    """Neither in the first attempt nor in all attempts together; and the next handler can work."""
    calls: list[int] = []

    def handler(job: Job) -> None:
        number = job.event.detail["call"]
        calls.append(number)
        insert(job.connection, number)
        if number == 1:
            end(job.connection)

    consumer = Consumer(sqlite, rules=RULE, handler=handler, clock=lambda: NOW)
    statuses = [consumer.process([call(1)])[0].status for _ in range(4)]
    assert statuses == ["failed", "failed", "dead", "dead"]
    assert effects(path) == []
    assert [outcome.status for outcome in consumer.process([call(7)])] == ["done"]
    assert effects(path) == [7]
    assert calls == [1, 1, 1, 7]


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
def test_the_error_of_a_refused_statement_advises_a_savepoint(
    sqlite: SQLiteStore, end: str
) -> None:
    def handle() -> None:
        with sqlite.transaction() as transaction:
            transaction.connection.execute(end)

    for _ in range(2):
        with pytest.raises(StoreError, match=f"^{end} is refused .* use a SAVEPOINT") as caught:
            handle()
        assert isinstance(caught.value.__cause__, sqlite3.DatabaseError)


def test_a_refusal_that_is_caught_changes_nothing(path: Path, sqlite: SQLiteStore) -> None:
    def handler(job: Job) -> None:
        insert(job.connection, 1)
        with suppress(StoreError):
            job.connection.commit()
        insert(job.connection, 2)

    consumer = Consumer(sqlite, rules=RULE, handler=handler)
    assert [outcome.status for outcome in consumer.process([call(1), call(1)])] == [
        "done",
        "duplicate",
    ]
    assert effects(path) == [1, 2]


def test_a_connection_that_a_handler_closes_by_force_fails_only_its_own_run(
    path: Path, sqlite: SQLiteStore
) -> None:
    def handler(job: Job) -> None:
        number = job.event.detail["call"]
        insert(job.connection, number)
        if number in (2, 3):
            sqlite3.Connection.close(job.connection)
        if number == 3:
            insert(job.connection, 5)

    consumer = Consumer(sqlite, rules=RULE, handler=handler, clock=lambda: NOW)
    outcomes = consumer.process([call(number) for number in range(1, 5)])
    assert [outcome.status for outcome in outcomes] == ["done", "failed", "failed", "done"]
    assert isinstance(outcomes[1].error, StoreError)
    assert effects(path) == [1, 4]


def test_a_savepoint_can_undo_a_part_of_the_writes(path: Path, sqlite: SQLiteStore) -> None:
    def handler(job: Job) -> None:
        db = job.connection
        insert(db, 1)
        db.execute("SAVEPOINT try")
        insert(db, 2)
        db.execute("ROLLBACK TO try")
        insert(db, 3)
        db.execute("RELEASE try")

    consumer = Consumer(sqlite, rules=RULE, handler=handler)
    assert consumer.process([call(1)])[0].status == "done"
    assert effects(path) == [1, 3]


def test_a_connection_that_was_kept_runs_nothing_outside_of_a_transaction(
    path: Path, sqlite: SQLiteStore
) -> None:
    with sqlite.transaction() as transaction:
        kept = transaction.connection
    for run in (kept.execute, kept.cursor().execute):
        with pytest.raises(StoreError, match="again in each run"):
            run("INSERT INTO effects VALUES (1)")
    assert effects(path) == []


def test_a_connection_that_was_kept_cannot_write_into_the_transaction_of_another_thread(
    path: Path, sqlite: SQLiteStore
) -> None:
    with sqlite.transaction() as transaction:
        kept = transaction.connection
    refused: list[BaseException] = []

    def write() -> None:
        try:
            insert(kept, 1)
        except StoreError as error:
            refused.append(error)

    with sqlite.transaction() as transaction:
        insert(transaction.connection, 2)
        other = threading.Thread(target=write)
        other.start()
        other.join()
    assert "another thread" in str(refused[0])
    assert effects(path) == [2]


def test_settings_of_a_failed_handler_end_with_its_connection(
    path: Path, sqlite: SQLiteStore
) -> None:
    with suppress(ZeroDivisionError), sqlite.transaction() as transaction:
        transaction.connection.execute("PRAGMA query_only = ON")
        raise ZeroDivisionError
    assert transaction.connection.closed, "or a fork would take it along"
    with sqlite.transaction() as transaction:
        insert(transaction.connection, 1)
    assert effects(path) == [1]


def test_temporary_tables_of_a_caller_are_not_kept_in_memory(sqlite: SQLiteStore) -> None:
    """The tables of the store are kept in memory; those of a caller may be of any size."""
    with sqlite.transaction() as transaction:
        assert transaction.connection.execute("PRAGMA temp_store").fetchone() == (0,)
    own = sqlite._connections._writer
    assert own is not None
    assert own.execute("PRAGMA temp_store").fetchone() == (2,)


class Cursor(sqlite3.Cursor):
    """A subclass of the cursor, such as Django has."""


def test_rows_and_cursors_are_as_the_caller_sets_them(sqlite: SQLiteStore) -> None:
    claim = Claim(b"k" * 16, 1, 60_000, 864_000_000, 5)
    (run,) = sqlite.claim([claim], NOW)
    with sqlite.transaction() as transaction:
        db = transaction.connection
        db.row_factory = sqlite3.Row
        db.executemany("INSERT INTO effects VALUES (:call)", [{"call": 1}, {"call": 2}])
        found = db.execute("SELECT call FROM effects WHERE call = :call", {"call": 1}).fetchone()
        assert found["call"] == 1
        cursor = db.cursor()
        assert cursor.executemany("INSERT INTO effects VALUES (?)", [(3,)]) is cursor
        assert [row["call"] for row in cursor.execute("SELECT call FROM effects")] == [1, 2, 3]
        assert type(db.cursor(Cursor)) is Cursor
        assert transaction.settle(Settlement(claim, run.token, "complete")) == "kept"


@pytest.mark.parametrize(
    "end",
    [
        lambda db: db.execute("INSERT OR ROLLBACK INTO effects VALUES (1)"),
        sqlite3.Connection.close,
    ],
)
def test_a_transaction_that_ended_inside_its_block_is_an_error(
    path: Path, sqlite: SQLiteStore, end: Use
) -> None:
    """Neither its settlement nor the end of its block is accepted, although nothing raised."""
    claim = Claim(b"k" * 16, 1, 60_000, 864_000_000, 5)
    (run,) = sqlite.claim([claim], NOW)

    def block(*, settles: bool) -> None:
        with sqlite.transaction() as transaction:
            insert(transaction.connection, 1)
            with suppress(sqlite3.IntegrityError):
                end(transaction.connection)
            if settles:
                transaction.settle(Settlement(claim, run.token, "complete"))

    for settles in (True, False):
        with pytest.raises(StoreError, match="was ended inside its block"):
            block(settles=settles)
    assert effects(path) == []
    assert sqlite.claim([Claim(b"k" * 16, 2, 60_000, 864_000_000, 5)], NOW)[0].kind == "busy"


def test_a_job_kept_after_its_handler_has_no_connection_and_opens_none(
    path: Path, sqlite: SQLiteStore
) -> None:
    jobs: list[Job] = []

    def handler(job: Job) -> None:
        jobs.append(job)
        if job.event.detail["call"] % 2:
            insert(job.connection, job.event.detail["call"])
        if job.event.detail["call"] > 2:
            raise ZeroDivisionError

    consumer = Consumer(sqlite, rules=RULE, handler=handler, clock=lambda: NOW)
    consumer.process([call(number) for number in (1, 2, 3, 4)])
    for job in jobs:
        with pytest.raises(ConfigError, match="no transaction to offer"):
            job.connection.execute("INSERT INTO effects VALUES (7)")
    assert effects(path) == [1]
    assert consumer.process([call(5)])[0].status == "failed"


@pytest.mark.parametrize("refused", [False, True])
def test_an_interruption_that_sqlite_swallows_is_not_reported_as_a_refusal(
    sqlite: SQLiteStore, refused: bool
) -> None:
    """SQLite treats an exception in the authorizer as a refusal, even after a real refusal."""
    falls: list[Interrupt] = []
    with sqlite.transaction() as transaction:
        connection = transaction.connection

        def interrupted(*asked: Any) -> int:
            if falls:
                raise falls.pop()
            return connection._authorize(*asked)

        sqlite3.Connection.set_authorizer(connection, interrupted)
        if refused:
            with pytest.raises(StoreError, match="is refused"):
                connection.execute("COMMIT")
        falls.append(Interrupt())
        with pytest.raises(StoreUnavailable, match="an exception from a signal was lost"):
            connection.execute("SELECT 1")
    assert not falls
