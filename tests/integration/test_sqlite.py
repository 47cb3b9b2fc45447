"""The SQLite store at work: beside other connections, while it sweeps, and in transactions."""

from __future__ import annotations

import random
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from eventonce.core.ports import Stats
from eventonce.errors import StoreError, StoreUnavailable
from eventonce.stores.memory import MemoryStore
from eventonce.stores.sqlite import SQLiteStore, admin, connections, store
from eventonce.stores.sqlite.uri import Location
from eventonce.types import Claim, Settlement
from tests.helpers import PATIENCE, until

NOW = 1_790_000_000_000
LEASE = 60_000


def fact(key: bytes | int, nonce: int = 1, *, remember: int = 864_000_000) -> Claim:
    key = key if isinstance(key, bytes) else key.to_bytes(16, "big")
    return Claim(key, nonce, LEASE, remember, 5, by=b"here")


def facts(start: int, stop: int, nonce: int = 1) -> list[Claim]:
    return [fact(number, nonce) for number in range(start, stop)]


def complete(sqlite: SQLiteStore, claims: list[Claim], now: int = NOW) -> None:
    verdicts = sqlite.claim(claims, now)
    settlements = [
        Settlement(claim, verdict.token, "complete")
        for claim, verdict in zip(claims, verdicts, strict=True)
    ]
    assert sqlite.settle(settlements, now) == ["kept"] * len(claims)


def kinds(sqlite: SQLiteStore, claims: list[Claim], now: int = NOW) -> list[str]:
    return [verdict.kind for verdict in sqlite.claim(claims, now)]


def raw(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=0, isolation_level=None)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "eventonce.db"


@pytest.fixture
def sqlite(path: Path) -> Iterator[SQLiteStore]:
    with closing(SQLiteStore(path, clock=lambda: NOW, wait=PATIENCE)) as opened:
        yield opened


# Beside other connections


def test_a_call_locks_the_file_before_it_reads_the_clock(path: Path) -> None:
    """A transaction that locks at its first write would decide by records that may have changed."""
    seen: list[str] = []

    def clock() -> int:
        with closing(raw(path)) as other, pytest.raises(sqlite3.OperationalError, match="locked"):
            other.execute("BEGIN IMMEDIATE")
        seen.append("locked")
        return NOW

    with closing(SQLiteStore(path, clock=clock)) as sqlite:
        (verdict,) = sqlite.claim([fact(1)])
        sqlite.settle([Settlement(fact(1), verdict.token, "complete")])
        sqlite.sweep()
    assert seen == ["locked"] * 3


def test_readers_see_committed_records_while_another_connection_writes(
    path: Path, sqlite: SQLiteStore
) -> None:
    complete(sqlite, facts(0, 3))
    with closing(raw(path)) as other:
        other.execute("BEGIN IMMEDIATE")
        other.execute("DELETE FROM eventonce_keys")
        assert sqlite.show(fact(1).key) is not None
        assert sqlite.stats().records == 3
        other.execute("ROLLBACK")


def test_many_threads_may_open_a_file_that_does_not_exist_yet(tmp_path: Path) -> None:
    def open_and_close(number: int) -> None:
        SQLiteStore(tmp_path / f"{number // 4}.db", wait=PATIENCE).close()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(open_and_close, range(80)))


def test_a_key_twice_in_a_batch_is_judged_in_the_order_asked(sqlite: SQLiteStore) -> None:
    for start in (0, 10):  # with and without the assumption that all keys are new
        claims = [fact(start, 1), fact(start + 1), fact(start, 2), fact(start, 1)]
        assert kinds(sqlite, claims) == ["run", "run", "busy", "run"]


def test_known_and_new_keys_of_a_batch_are_answered_in_the_order_asked(
    sqlite: SQLiteStore,
) -> None:
    sqlite.claim(facts(0, 3), NOW)
    for new in (10, 20):  # with and without the assumption that all keys are new
        claims = [fact(0, 2), fact(new, 2), fact(1, 2), fact(new + 1, 2)]
        assert kinds(sqlite, claims) == ["busy", "run", "busy", "run"]
        assert kinds(sqlite, facts(new, new + 2)) == ["busy", "busy"]


@pytest.mark.parametrize("terms", [{"peek": True}, {"alone": True}, {"lease": 400 * 86_400_000}])
def test_a_claim_on_other_terms_in_a_batch_of_new_claims_is_judged_by_its_own_terms(
    sqlite: SQLiteStore, terms: dict[str, Any]
) -> None:
    claims = [fact(1), replace(fact(2), **terms), fact(3)]
    with closing(MemoryStore(clock=lambda: NOW)) as memory:
        assert sqlite.claim(claims, NOW) == memory.claim(claims, NOW)
        for claim in claims:
            assert sqlite.show(claim.key) == memory.show(claim.key)


def test_a_batch_with_one_known_key_leaves_each_record_once(
    path: Path, sqlite: SQLiteStore
) -> None:
    complete(sqlite, [fact(299)])
    with closing(SQLiteStore(path)) as other:  # assumes that all are new, and has inserted 256
        verdicts = other.claim(facts(0, 300), NOW)
        assert [one.kind for one in verdicts] == ["run"] * 299 + ["duplicate"]
        ends = [Settlement(fact(n), verdicts[n].token, "complete") for n in range(299)]
        assert other.settle(ends, NOW) == ["kept"] * 299
    with closing(raw(path)) as connection:
        for table in ("eventonce_keys", "eventonce_records"):
            assert connection.execute(f"SELECT count(*) FROM {table}").fetchone() == (300,)
        together = "SELECT count(*) FROM eventonce_keys JOIN eventonce_records USING (id)"
        assert connection.execute(together).fetchone() == (300,)


def test_nothing_is_left_of_a_record_that_was_forgotten_or_swept(
    path: Path, sqlite: SQLiteStore
) -> None:
    complete(sqlite, facts(0, 3))
    assert sqlite.forget([fact(1).key, fact(7).key]) == 1
    with closing(raw(path)) as connection:
        for swept, left in ((0, 2), (2, 0)):
            assert sqlite.sweep(now=NOW + 864_000_000 * swept) == swept
            for table in ("eventonce_keys", "eventonce_records"):
                assert connection.execute(f"SELECT count(*) FROM {table}").fetchone() == (left,)


def test_a_completion_that_is_remembered_for_no_time_is_kept_once(sqlite: SQLiteStore) -> None:
    claim = fact(1, remember=0)
    (run,) = sqlite.claim([claim], NOW)
    complete = Settlement(claim, run.token, "complete")
    assert sqlite.settle([complete, complete], NOW) == ["kept", "unknown"]


@pytest.mark.parametrize("token", [-1, 0, 1])
def test_a_completion_of_a_key_that_was_not_claimed_leaves_no_record(
    sqlite: SQLiteStore, token: int
) -> None:
    assert sqlite.settle([Settlement(fact(1), token, "complete")], NOW) == ["unknown"]
    assert sqlite.stats().records == 0


def test_a_completed_fact_takes_no_more_than_eighty_bytes(path: Path) -> None:
    chance = random.Random(1)
    with closing(SQLiteStore(path)) as sqlite:
        for second in range(50):
            # Keys as `rules` makes them: hundredths of a second, then a digest.
            times = [(NOW // 10 + second * 100 + number // 10) for number in range(1000)]
            keys = [(at % 2**32).to_bytes(4, "big") + chance.randbytes(12) for at in times]
            complete(sqlite, [fact(key) for key in keys])
    assert path.stat().st_size / 50_000 <= 80


# Sweeping


def test_a_sweep_works_in_short_transactions(
    sqlite: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    complete(sqlite, facts(0, 100))
    begun: list[None] = []
    begin = admin.begin

    def counting(connection: sqlite3.Connection, location: Location) -> None:
        begun.append(None)
        begin(connection, location)

    monkeypatch.setattr(connections, "begin", counting)
    monkeypatch.setattr(store, "SWEEP_STEP", 10)
    assert sqlite.sweep(35, NOW + 864_000_000) == 35
    assert len(begun) == 4


def test_a_sweep_goes_on_where_another_handle_stopped_and_begins_again(path: Path) -> None:
    late = NOW + 864_000_000
    with closing(SQLiteStore(path)) as sqlite:
        complete(sqlite, facts(0, 10), late)
        complete(sqlite, facts(10, 20))
        assert [sqlite.sweep(5, late), sqlite.sweep(5, late)] == [0, 0]
    with closing(SQLiteStore(path)) as sqlite:
        assert sqlite.sweep(6, late) == 6
        complete(sqlite, facts(30, 34))
        assert sqlite.sweep(8, late) == 8
        assert sqlite.sweep(100, late + 864_000_000) == 10


def test_a_round_of_sweeps_begins_with_the_very_first_key(sqlite: SQLiteStore) -> None:
    complete(sqlite, [fact(bytes([first]) * 16) for first in range(256)])
    assert sqlite.sweep(1_000, NOW) == 0
    assert sqlite.sweep(1_000, NOW + 864_000_000) == 256


def test_the_stats_of_a_store_are_its_records_and_the_size_of_its_files(
    path: Path, sqlite: SQLiteStore
) -> None:
    sqlite.claim([fact(1)], NOW)
    size = sum(one.stat().st_size for one in path.parent.iterdir())
    assert sqlite.stats() == Stats(records=1, letters=0, bytes=size)


def test_room_that_was_swept_is_used_again(path: Path) -> None:
    with closing(SQLiteStore(path)) as sqlite:
        complete(sqlite, facts(0, 20_000))
        with sqlite.transaction() as transaction:
            (pages,) = transaction.connection.execute("PRAGMA page_count").fetchone()
        later = NOW + 864_000_000
        assert sqlite.sweep(20_000, later) == 20_000
        complete(sqlite, facts(20_000, 40_000), later)
        with sqlite.transaction() as transaction:
            (now,) = transaction.connection.execute("PRAGMA page_count").fetchone()
        assert now <= pages * 1.05


@pytest.mark.parametrize("timed", [True, False])
def test_expired_records_are_dropped_by_later_claims(path: Path, timed: bool) -> None:
    """Whether keys begin with their time or not, the file does not grow without end."""
    chance = random.Random(1)
    most = 0
    with closing(SQLiteStore(path)) as sqlite:
        for second in range(60):
            prefix = (100 * second).to_bytes(4, "big") if timed else b""
            keys = [prefix + chance.randbytes(16 - len(prefix)) for _ in range(500)]
            complete(sqlite, [fact(key, remember=1_000) for key in keys], NOW + second * 1_000)
            most = max(most, sqlite.stats().records)
    assert most <= 2_500


def test_records_that_have_not_expired_are_not_dropped_by_claims(sqlite: SQLiteStore) -> None:
    complete(sqlite, facts(0, 1_000))
    for start in range(10_000, 30_000, 1_000):
        claims = [fact(number, remember=1_000) for number in range(start, start + 1_000)]
        complete(sqlite, claims, NOW + start)
    assert set(kinds(sqlite, facts(0, 1_000), NOW + 30_000)) == {"duplicate"}


def test_each_claim_looks_at_only_a_few_records_for_expiry(sqlite: SQLiteStore) -> None:
    """However many records there are: other calls wait for as long as a claim looks."""
    chance = random.Random(1)
    complete(sqlite, [fact(chance.randbytes(16)) for _ in range(20_000)])
    for _ in range(20):
        sqlite.claim([fact(chance.randbytes(16)) for _ in range(100)], NOW + 864_000_000)
    dropped = 22_000 - sqlite.stats().records
    assert 0 < dropped <= store.LOOKS_AT_ONCE + 2_000 * store.LOOKS


# Transactions


def effects(sqlite: SQLiteStore) -> int:
    with sqlite.transaction() as transaction:
        return int(transaction.connection.execute("SELECT count(*) FROM effects").fetchone()[0])


def test_another_connection_may_write_as_soon_as_a_call_or_a_transaction_has_failed(
    path: Path, sqlite: SQLiteStore
) -> None:
    def write() -> None:
        with closing(raw(path)) as other:
            other.execute("BEGIN IMMEDIATE")

    assert kinds(sqlite, [fact(2), fact(1, nonce=2**70)]) == ["run", "error"]
    write()
    with pytest.raises(sqlite3.OperationalError), sqlite.transaction() as transaction:
        transaction.connection.execute("no statement")
    write()


def test_a_transaction_distinguishes_errors_of_the_file_from_errors_of_its_caller(
    sqlite: SQLiteStore,
) -> None:
    with sqlite.transaction() as transaction:
        assert transaction.failed(StoreUnavailable("the disk is full"))
        assert not transaction.failed(StoreError("commit() is refused"))
        assert not transaction.failed(LookupError())
        for code, failed in ((sqlite3.SQLITE_FULL, True), (sqlite3.SQLITE_CONSTRAINT, False)):
            error = sqlite3.OperationalError()
            error.sqlite_errorcode = code
            assert transaction.failed(error) is failed


def test_a_call_that_waited_while_the_store_was_closed_does_not_open_it_again(
    sqlite: SQLiteStore,
) -> None:
    waiting = sqlite._connections.lock._calls
    with ThreadPoolExecutor() as pool:
        with sqlite.transaction():
            closed = pool.submit(sqlite.close)
            until(lambda: len(waiting) == 1)
            called = pool.submit(sqlite.claim, [fact(1)], NOW)
            until(lambda: len(waiting) == 2)
        closed.result(PATIENCE)
        with pytest.raises(StoreError, match="this store is closed"):
            called.result(PATIENCE)


def test_the_callers_own_errors_stay_as_they_are(sqlite: SQLiteStore) -> None:
    def handle() -> None:
        with sqlite.transaction() as transaction:
            transaction.connection.execute("CREATE TABLE effects (n PRIMARY KEY)")
            transaction.connection.executemany("INSERT INTO effects VALUES (?)", [(1,), (1,)])

    with pytest.raises(sqlite3.IntegrityError):
        handle()
    with pytest.raises(sqlite3.OperationalError, match="no such table"):
        effects(sqlite)


def test_settings_of_the_caller_on_the_connection_do_not_disturb_the_store(
    sqlite: SQLiteStore,
) -> None:
    (run,) = sqlite.claim([fact(1)], NOW)
    with sqlite.transaction() as transaction:
        transaction.connection.row_factory = lambda _, row: {"columns": row}
        assert transaction.settle(Settlement(fact(1), run.token, "extend")) == "kept"
    assert kinds(sqlite, [fact(1), fact(1, nonce=2)]) == ["run", "busy"]


def test_threads_queue_for_a_transaction(sqlite: SQLiteStore) -> None:
    with sqlite.transaction() as transaction:
        transaction.connection.execute("CREATE TABLE counter AS SELECT 0 AS n")

    def count(_: int) -> None:
        with sqlite.transaction() as transaction:
            (n,) = transaction.connection.execute("SELECT n FROM counter").fetchone()
            transaction.connection.execute("UPDATE counter SET n = ?", (n + 1,))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(count, range(100)))
    with sqlite.transaction() as transaction:
        assert transaction.connection.execute("SELECT n FROM counter").fetchone() == (100,)


@pytest.mark.parametrize(
    "call",
    [
        lambda sqlite: sqlite.claim([fact(2)]),
        lambda sqlite: sqlite.settle([Settlement(fact(1), 1, "extend")]),
        lambda sqlite: sqlite.transaction().__enter__(),
        lambda sqlite: sqlite.sweep(),
        lambda sqlite: sqlite.close(),
    ],
)
def test_a_call_inside_the_threads_own_transaction_is_refused_at_once(
    sqlite: SQLiteStore, call: Callable[[SQLiteStore], object]
) -> None:
    with sqlite.transaction(), pytest.raises(StoreError, match="this thread has a transaction"):
        call(sqlite)
    assert kinds(sqlite, [fact(2)]) == ["run"]


def test_a_call_of_a_thread_that_had_the_last_transaction_waits_for_the_next_transaction(
    path: Path, sqlite: SQLiteStore
) -> None:
    def block() -> None:
        with sqlite.transaction():
            pass

    with closing(raw(path)) as other, ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as two:
        one.submit(block).result(PATIENCE)
        other.execute("BEGIN IMMEDIATE")
        begins = two.submit(block)
        until(lambda: sqlite._connections.transaction is not None)
        called = one.submit(sqlite.claim, [fact(1)], NOW)
        until(lambda: called.done() or sqlite._connections.lock._calls)
        other.execute("COMMIT")
        begins.result(PATIENCE)
        assert called.result(PATIENCE)[0].kind == "run"


def test_a_renewal_waits_for_the_transaction_of_another_thread(sqlite: SQLiteStore) -> None:
    (run,) = sqlite.claim([fact(1)], NOW)
    with ThreadPoolExecutor(1) as pool:
        with sqlite.transaction():
            extend = Settlement(fact(1), run.token, "extend")
            renewal = pool.submit(sqlite.settle, [extend], NOW)
            until(lambda: renewal.done() or sqlite._connections.lock._calls)
            assert not renewal.done()
        assert renewal.result(PATIENCE) == ["kept"]


@pytest.mark.parametrize(
    "call",
    [
        lambda sqlite, extend: sqlite.settle([extend], NOW),
        lambda sqlite, _: sqlite.close(),
        lambda sqlite, _: sqlite._connections.close_if_idle(sqlite._connections.location),
    ],
    ids=["a renewal", "a close", "a close of another store"],
)
def test_a_call_that_waits_too_long_does_not_disturb_the_open_transaction(
    path: Path, call: Callable[[SQLiteStore, Settlement], object]
) -> None:
    with closing(SQLiteStore(path, wait=0.01)) as sqlite, ThreadPoolExecutor(1) as pool:
        (run,) = sqlite.claim([fact(1)], NOW)
        extend = Settlement(fact(1), run.token, "extend")
        with sqlite.transaction() as transaction:
            transaction.connection.execute("CREATE TABLE effects (n)")
            with suppress(StoreUnavailable):
                pool.submit(call, sqlite, extend).result(PATIENCE)
            renewal = pool.submit(sqlite.settle, [extend], NOW)
            with pytest.raises(StoreUnavailable, match="other threads have held the store"):
                renewal.result(PATIENCE)
        assert effects(sqlite) == 0
        assert sqlite.settle([extend], NOW) == ["kept"]


def test_a_claim_waits_for_the_lock_of_another_connection(
    path: Path, sqlite: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = threading.Event()

    def pause(*_: float) -> float:
        refused.set()
        return 0.001

    monkeypatch.setattr(admin, "random", SimpleNamespace(uniform=pause))
    with closing(raw(path)) as other, ThreadPoolExecutor(1) as pool:
        other.execute("BEGIN IMMEDIATE")
        answer = pool.submit(sqlite.claim, [fact(1)])
        assert refused.wait(PATIENCE)
        assert not answer.done()
        other.execute("COMMIT")
        assert [verdict.kind for verdict in answer.result(PATIENCE)] == ["run"]


# Turns


def waiting(sqlite: SQLiteStore, *, calls: int = 0, handlers: int = 0) -> None:
    """Return when so many threads wait for the store."""
    line = sqlite._connections.lock
    while len(line._calls) < calls or len(line._handlers) < handlers:
        time.sleep(0.001)


def test_a_call_waits_for_only_one_transaction_and_handlers_take_turns_in_order(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MAX_REST", 0)
    order: list[object] = []

    def clock() -> int:
        order.append("call")
        return NOW

    opened = SQLiteStore(path, clock=clock, wait=PATIENCE)

    def handle(number: int) -> None:
        with opened.transaction():
            order.append(number)

    with closing(opened), ThreadPoolExecutor(9) as pool, opened.transaction():
        for number in range(8):
            pool.submit(handle, number)
            waiting(opened, handlers=number + 1)
        pool.submit(opened.claim, [fact(1)])
        waiting(opened, calls=1)
    assert order == ["call", *range(8)]


def test_calls_that_keep_coming_do_not_keep_a_handler_from_its_turn(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MAX_REST", 0)
    order: list[str] = []

    def clock() -> int:
        order.append("call")
        if len(order) == 1:
            other.start()
            waiting(sqlite, calls=1)
        return NOW

    def handle() -> None:
        with sqlite.transaction():
            order.append("handler")

    with (
        closing(SQLiteStore(path, clock=clock, wait=PATIENCE)) as sqlite,
        ThreadPoolExecutor(2) as pool,
    ):
        other = threading.Thread(target=sqlite.claim, args=([fact(2)],))
        with sqlite.transaction():
            pool.submit(handle)
            waiting(sqlite, handlers=1)
            first = pool.submit(sqlite.claim, [fact(1)])
            waiting(sqlite, calls=1)
        first.result(PATIENCE)
        other.join(PATIENCE)
    assert order == ["call", "handler", "call"]


def test_a_thread_that_gives_up_waiting_leaves_the_queue(path: Path) -> None:
    with closing(SQLiteStore(path, wait=0.01)) as sqlite, ThreadPoolExecutor(1) as pool:
        with sqlite.transaction():
            late = pool.submit(sqlite.claim, [fact(1)])
            with pytest.raises(StoreUnavailable, match="other threads have held the store"):
                late.result(PATIENCE)
        waiting(sqlite)
        assert kinds(sqlite, [fact(1)]) == ["run"]


def test_other_processes_get_their_chance_between_two_long_transactions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "MAX_REST", PATIENCE)
    line = connections.WriteLock()
    line.ended(10 * PATIENCE)
    handler, call = connections.Waiter(), connections.Waiter()
    assert not line.take(handler, 0, handler=True), "the file is left to others for a moment"
    assert line.take(call, 0)
    line.holder = None
    line.ended(0)
    assert line.take(handler, PATIENCE, handler=True)
