"""The SQLite store over forks, and in processes that are killed at any point."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from weakref import WeakSet

import pytest

from eventonce.errors import StoreError
from eventonce.stores.sqlite import SQLiteStore, admin, connections
from eventonce.stores.sqlite.uri import Location
from eventonce.types import Claim, Settlement
from tests.helpers import PATIENCE

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")

NOW = 1_790_000_000_000
LEASE = 60_000

KILLS = 20
BATCH = 100
STEPS = ("claimed", "begun", "written", "settled", "committed")


def fact(number: int, nonce: int = 1) -> Claim:
    return Claim(number.to_bytes(16, "big"), nonce, LEASE, 864_000_000, 5, by=b"here")


class Child:
    """A forked process that sends its answers through a pipe."""

    def __init__(self, work: Callable[..., None], *args: object) -> None:
        context = get_context("fork")
        self.pipe, there = context.Pipe()
        self.process = context.Process(target=work, args=(there, *args), daemon=True)
        self.process.start()
        there.close()

    def hear(self) -> Any:
        assert self.pipe.poll(PATIENCE), "it hangs"
        return self.pipe.recv()

    def heard(self) -> list[Any]:
        """All answers of the process until its end."""
        said = []
        try:
            while True:
                said.append(self.hear())
        except EOFError:
            return said

    def end(self) -> int | None:
        self.process.join(PATIENCE)
        return self.process.exitcode

    def kill(self) -> None:
        self.process.kill()
        self.process.join(PATIENCE)


def integrity(path: Path) -> str:
    with closing(sqlite3.connect(path)) as connection:
        return str(connection.execute("PRAGMA integrity_check").fetchone()[0])


# Killed


def work_without_end(pipe: Connection, path: Path, start: int) -> None:
    # So that the kill sometimes happens during a checkpoint.
    admin.CHECKPOINT_PAGES = 8  # type: ignore[misc]
    sqlite = SQLiteStore(path, clock=lambda: NOW)
    while True:
        claims = [fact(number) for number in range(start, start + BATCH)]
        verdicts = sqlite.claim(claims)
        pipe.send(("claimed", start, [verdict.kind for verdict in verdicts]))
        sqlite.settle(
            [
                Settlement(claim, verdict.token, "complete", b"done")
                for claim, verdict in zip(claims, verdicts, strict=True)
            ]
        )
        pipe.send(("settled", start, []))
        start += BATCH


def test_a_kill_at_any_point_loses_no_call_that_was_answered(tmp_path: Path) -> None:
    path = tmp_path / "eventonce.db"
    chance = random.Random(3)
    told: dict[int, str] = {}
    for kill in range(KILLS):
        child = Child(work_without_end, path, kill * 1_000_000)
        said = [child.hear() for _ in range(chance.randint(1, 12))]
        child.kill()
        for what, start, answers in said + child.heard():
            assert set(answers) <= {"run"}
            told[start] = what
    assert integrity(path) == "ok"
    with closing(SQLiteStore(path, clock=lambda: NOW)) as sqlite:
        for start, what in told.items():
            verdicts = sqlite.claim([fact(n, nonce=2) for n in range(start, start + BATCH)])
            # A batch is one transaction: where the reply was lost, all of it is stored or nothing.
            (kind,) = {verdict.kind for verdict in verdicts}
            assert kind in ({"duplicate"} if what == "settled" else {"busy", "duplicate"})
            if kind == "duplicate":
                assert {verdict.result for verdict in verdicts} == {b"done"}


def take_effect(pipe: Connection, path: Path, die_at: str, now: int) -> None:
    def step(name: str) -> None:
        if name == die_at:
            os.kill(os.getpid(), signal.SIGKILL)

    sqlite = SQLiteStore(path, clock=lambda: now)
    (verdict,) = sqlite.claim([fact(1, nonce=now)])
    step("claimed")
    if verdict.kind == "run":
        with sqlite.transaction() as transaction:
            step("begun")
            transaction.connection.execute("INSERT INTO effects VALUES (1)")
            step("written")
            assert (
                transaction.settle(Settlement(fact(1, nonce=now), verdict.token, "complete"))
                == "kept"
            )
            step("settled")
        step("committed")
    pipe.send(verdict.kind)


@pytest.mark.parametrize("first", STEPS)
@pytest.mark.parametrize("second", STEPS)
def test_an_effect_happens_once_in_processes_that_are_killed_between_any_steps(
    tmp_path: Path, first: str, second: str
) -> None:
    path = tmp_path / "eventonce.db"
    with closing(SQLiteStore(path)) as sqlite, sqlite.transaction() as transaction:
        transaction.connection.execute("CREATE TABLE effects (n)")
    for attempt, die_at in enumerate((first, second, "", "")):
        Child(take_effect, path, die_at, NOW + attempt * LEASE).end()
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM effects").fetchone() == (1,)
    assert integrity(path) == "ok"


# Forked


def use(pipe: Connection, sqlite: SQLiteStore, numbers: list[int]) -> None:
    for number in numbers:
        try:
            pipe.send(sqlite.claim([fact(number, nonce=os.getpid())])[0].kind)
        except StoreError as error:
            pipe.send(str(error))
        pipe.recv()


def test_parent_and_child_of_a_fork_both_use_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "eventonce.db"
    sqlite = SQLiteStore(path, clock=lambda: NOW)
    assert sqlite.claim([fact(0)])[0].kind == "run"
    child = Child(use, sqlite, [0, 1, 2, 3])
    assert child.hear() == "busy"
    child.pipe.send(None)
    assert child.hear() == "run"
    assert sqlite.claim([fact(1), fact(2)])[0].kind == "busy"
    child.pipe.send(None)
    assert child.hear() == "busy"
    # The last connection to close deletes the log: the child must still be counted.
    sqlite.close()
    child.pipe.send(None)
    assert child.hear() == "run"
    child.pipe.send(None)
    assert child.end() == 0
    with closing(SQLiteStore(path, clock=lambda: NOW)) as sqlite:
        verdicts = sqlite.claim([fact(number, nonce=2) for number in range(4)])
    assert [verdict.kind for verdict in verdicts] == ["busy"] * 4
    assert integrity(path) == "ok"


def test_two_threads_that_fork_at_once_release_their_own_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hooks as a fork calls them: the second thread waits while the first thread forks."""

    held: list[object] = []

    def forks() -> None:
        connections._before_fork()
        held.append(sqlite._connections.lock.holder)
        connections._after_fork(child=False)

    with closing(SQLiteStore(tmp_path / "eventonce.db", clock=lambda: NOW, wait=5.0)) as sqlite:
        # Without the stores that other tests left behind: the hooks would wait for each of them.
        monkeypatch.setattr(connections, "_all", WeakSet([sqlite._connections]))
        connections._before_fork()
        second = threading.Thread(target=forks)
        second.start()
        while not sqlite._connections.lock._calls:
            assert second.is_alive()
        connections._after_fork(child=False)
        second.join(PATIENCE)
        assert held != [None], "it waited in vain"
        # From a file whose log was deleted with the last connection.
        assert sqlite.stats().records == 0
        assert sqlite.claim([fact(1)])[0].kind == "run"


def test_a_child_does_not_wait_for_threads_that_only_its_parent_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hooks as a fork calls them, in the child."""
    with closing(SQLiteStore(tmp_path / "eventonce.db", clock=lambda: NOW, wait=0.1)) as sqlite:
        monkeypatch.setattr(connections, "_all", WeakSet([sqlite._connections]))
        connections._before_fork()
        sqlite._connections.lock._calls.append(connections.Waiter())
        connections._after_fork(child=True)
        assert sqlite.claim([fact(1)])[0].kind == "run"


def test_a_fork_waits_for_the_end_of_a_read_of_another_thread(tmp_path: Path) -> None:
    """Otherwise the child would begin during the read, and its SQLite would count locks of the
    parent as its own."""
    began, forked, ended = threading.Event(), threading.Event(), threading.Event()
    path = tmp_path / "eventonce.db"
    sqlite = SQLiteStore(path, clock=lambda: NOW, wait=PATIENCE)

    def work(connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN").execute("SELECT count(*) FROM eventonce_keys").fetchall()
        began.set()
        while not forked.is_set() and sqlite._connections.forking is None:
            forked.wait(0.001)

    def read() -> None:
        sqlite._connections.read(work)
        # A read that begins during the fork waits for its end; by then the child may have claimed.
        assert sqlite.stats().records <= 1
        ended.set()

    reader = threading.Thread(target=read)
    reader.start()
    assert began.wait(PATIENCE)
    child = Child(use, sqlite, [1, 2])
    forked.set()
    reader.join(PATIENCE)
    assert ended.is_set()
    assert child.hear() == "run"
    # The last connection to close deletes the log: the child must be counted.
    sqlite.close()
    assert Path(f"{path}-wal").exists()
    child.pipe.send(None)
    assert child.hear() == "run"
    child.pipe.send(None)
    assert child.end() == 0


def use_anew(pipe: Connection, path: Path, numbers: list[int]) -> None:
    with closing(SQLiteStore(path, clock=lambda: NOW)) as sqlite:
        use(pipe, sqlite, numbers)


def test_a_fork_waits_for_a_store_that_another_thread_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, forked = threading.Event(), threading.Event()
    path = tmp_path / "eventonce.db"
    opened: list[SQLiteStore] = []

    def slowly(location: Location, kind: type[sqlite3.Connection]) -> sqlite3.Connection:
        connection = admin.open_for_writing(location, kind)
        if not began.is_set():
            began.set()
            while not forked.is_set() and not any(each.lock._calls for each in connections._all):
                forked.wait(0.001)
        return connection

    monkeypatch.setattr(connections, "_all", WeakSet())
    monkeypatch.setattr(connections, "open_for_writing", slowly)
    opener = threading.Thread(target=lambda: opened.append(SQLiteStore(path, wait=PATIENCE)))
    opener.start()
    assert began.wait(PATIENCE)
    child = Child(use_anew, path, [1, 2])
    forked.set()
    opener.join(PATIENCE)
    assert child.hear() == "run"
    opened[0].close()
    assert Path(f"{path}-wal").exists()
    child.pipe.send(None)
    assert child.hear() == "run"
    child.pipe.send(None)
    assert child.end() == 0


def test_a_child_that_is_forked_during_a_long_read_has_no_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The read takes longer than the time for which the store waits."""
    with closing(SQLiteStore(tmp_path / "eventonce.db", clock=lambda: NOW, wait=0.1)) as sqlite:
        monkeypatch.setattr(connections, "_all", WeakSet([sqlite._connections]))

        def work(connection: sqlite3.Connection) -> None:
            child = Child(use, sqlite, [1])
            assert "forked while a transaction was open or the file was read" in child.hear()
            child.pipe.send(None)
            assert child.end() == 0

        sqlite._connections.read(work)
        assert sqlite.stats().records == 0
        assert sqlite.claim([fact(1)])[0].kind == "run"


FORKING = """
import os, sys
from eventonce.stores.sqlite import SQLiteStore

sqlite = SQLiteStore(sys.argv[1])
with sqlite.transaction() as transaction:
    transaction.connection.execute("CREATE TABLE effects (n)")
with sqlite.transaction() as transaction:
    # More than fits in memory: what follows is in the log, which the child sees too.
    transaction.connection.execute("PRAGMA cache_size = 1")
    blobs = [(bytes(4_000),)] * 500
    transaction.connection.executemany("INSERT INTO effects VALUES (?)", blobs)
    if child := os.fork():
        _, status = os.waitpid(child, 0)
    else:
        {child}
sys.exit(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.parametrize(
    ("does", "told"),
    [
        ("pass", "forked while a transaction was open"),
        (
            "transaction.connection.execute('DELETE FROM effects')",
            "has ended, or belongs to another",
        ),
        ("sys.exit(1)", ""),
    ],
)
def test_a_child_neither_commits_nor_undoes_the_writes_of_its_parents_transaction(
    tmp_path: Path, does: str, told: str
) -> None:
    """Whether the child leaves the block, continues in it, or ends."""
    path = tmp_path / "eventonce.db"
    script = FORKING.replace("{child}", does)
    ran = subprocess.run([sys.executable, "-c", script, path], capture_output=True, check=False)
    assert ran.returncode == 1
    assert told in ran.stderr.decode()
    assert integrity(path) == "ok"
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM effects").fetchone() == (500,)


def test_a_fork_inside_a_transaction_leaves_the_child_without_a_store(tmp_path: Path) -> None:
    with closing(SQLiteStore(tmp_path / "eventonce.db", clock=lambda: NOW)) as sqlite:
        with sqlite.transaction() as transaction:
            child = Child(use, sqlite, [1])
            assert "forked while a transaction was open" in child.hear()
            child.pipe.send(None)
            assert child.end() == 0
            assert transaction.settle(Settlement(fact(1), 1, "complete")) == "unknown"
        assert sqlite.claim([fact(1)])[0].kind == "run"


def test_many_children_that_are_forked_during_work_share_the_file(tmp_path: Path) -> None:
    with closing(SQLiteStore(tmp_path / "eventonce.db", clock=lambda: NOW)) as sqlite:
        numbers = list(range(20))
        granted = []
        for _ in range(5):
            child = Child(use, sqlite, numbers)
            for number in numbers:
                granted.append((number, child.hear()))
                mine = sqlite.claim([fact(number, nonce=7)])[0]
                child.pipe.send(None)
                assert (mine.kind, mine.attempt) == ("busy", 0)
            assert child.end() == 0
    assert [kind for _, kind in granted] == ["run"] * 20 + ["busy"] * 80
