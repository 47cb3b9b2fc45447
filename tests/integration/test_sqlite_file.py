"""The file of the SQLite store: its marks, its versions, and the errors if it cannot be used."""

from __future__ import annotations

import os
import re
import resource
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from itertools import count
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from eventonce.errors import (
    ConfigError,
    EventonceError,
    StoreError,
    StoreMismatch,
    StoreUnavailable,
)
from eventonce.stores import open_store
from eventonce.stores.probe import PROBE, write_finding
from eventonce.stores.sqlite import SQLiteStore, admin, errors, queries
from eventonce.stores.sqlite.admin import SQLiteSchema
from eventonce.stores.sqlite.errors import explain, not_writable
from eventonce.stores.sqlite.uri import Location, Options, Synchronous
from eventonce.types import Claim, Letter, Settlement
from tests.helpers import PATIENCE

NOW = 1_790_000_000_000
NOBODY = 65_534


@pytest.mark.parametrize("seen", [1, 2], ids=["within a check", "between two checks"])
def test_a_log_that_vanishes_during_the_check_of_permissions_is_not_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen: int
) -> None:
    """The last process to close the file deletes its log, and the next to open it makes another."""
    log = tmp_path / "store.db-wal"
    made: list[int] = []

    def churning(path: Path, how: int) -> bool:
        if path != log:
            return True
        made.append(how)
        return how == os.F_OK and made.count(os.F_OK) <= seen

    monkeypatch.setattr(errors, "may", churning)
    assert errors.refused(tmp_path / "store.db") is None
    assert made[:2] == [os.F_OK, os.R_OK | os.W_OK]
    monkeypatch.setattr(errors, "may", lambda path, how: path != log or how == os.F_OK)
    assert errors.refused(tmp_path / "store.db") == log


def fact(number: int, nonce: int = 1) -> Claim:
    return Claim(number.to_bytes(16, "big"), nonce, 60_000, 864_000_000, 5, by=b"here")


def raw(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, isolation_level=None)


def made(path: Path, script: str) -> Path:
    """Make a file as another application would."""
    with closing(raw(path)) as connection:
        connection.executescript(script)
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "eventonce.db"


# Dropped data


def test_dropped_data_is_overwritten_in_the_file_and_its_log(path: Path) -> None:
    """Data of every size, in one page and over many pages; of expired records, too."""
    with closing(SQLiteStore(path, clock=lambda: NOW)) as store:
        claims = [fact(number) for number in range(6)]
        runs = store.claim(claims, now=NOW - 864_000_000)
        words = [b"+49 30 901820" * size for size in (1, 30, 3_000, 1, 30, 3_000)]
        ended = zip(claims, runs, words, strict=True)
        store.settle(
            [Settlement(claim, run.token, "complete", said) for claim, run, said in ended],
            now=NOW - 864_000_000,
        )
        store.put_letters(
            [
                Letter(str(at), "crm", "dead", "why", "calls", b"", said, at)
                for at, said in enumerate(words)
            ]
        )
        assert b"901820" in _bytes(path)
        assert store.drop_letters([str(at) for at in range(6)], before=6) == 6
        assert store.clear_results([claim.key for claim in claims]) == 6
        # While the file is open: the last connection to close deletes the log.
        assert b"901820" not in _bytes(path)


def test_a_scrub_leaves_no_copy_in_a_page_that_was_divided(path: Path) -> None:
    """Zeros do not reach such a copy: the row itself is in another page by then."""
    with closing(SQLiteStore(path, clock=lambda: NOW)) as store:
        claims = [fact(number) for number in range(300)]
        # Claimed together, and settled later, so that a page gets more than it can hold.
        for start in range(0, 300, 50):
            some = claims[start : start + 50]
            runs = zip(some, store.claim(some), strict=True)
            store.settle(
                [
                    Settlement(claim, run.token, "complete", b"+49 30 901820" * (1 + at * 7 % 70))
                    for at, (claim, run) in enumerate(runs)
                ]
            )
        assert store.clear_results([claim.key for claim in claims]) == 300
        with closing(raw(path)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT * FROM eventonce_tables").fetchall()
            busy = SQLiteStore.from_uri(f"sqlite:///{path}?wait=0.1")
            assert busy.scrub() in (
                "database is locked",
                "another process reads it, or writes to it, for long",
            )
            busy.close()
        assert store.scrub() == ""
        assert b"901820" not in _bytes(path)
        assert {it.kind for it in store.claim(claims)} == {"duplicate"}
        with closing(raw(path)) as other:
            other.execute("CREATE TABLE theirs (a)")
        assert "tables of others" in store.scrub()


def _bytes(path: Path) -> bytes:
    return b"".join(it.read_bytes() for it in path.parent.glob(f"{path.name}*"))


# Marks and versions


def test_a_new_file_records_the_format_of_its_tables(path: Path) -> None:
    SQLiteStore(path).close()
    with closing(raw(path)) as connection:
        assert connection.execute("SELECT format FROM eventonce_tables").fetchone() == (2,)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


@pytest.mark.parametrize(("query", "level"), [("", 1), ("?synchronous=full", 2)])
def test_the_uri_sets_the_synchronous_level_of_commits(path: Path, query: str, level: int) -> None:
    opened = closing(SQLiteStore.from_uri(f"sqlite:///{path}{query}"))
    with opened as sqlite, sqlite.transaction() as transaction:
        assert transaction.connection.execute("PRAGMA synchronous").fetchone() == (level,)


@pytest.mark.parametrize(("chosen", "level"), [({}, 1), ({"synchronous": "full"}, 2)])
def test_an_argument_sets_the_synchronous_level_of_commits(
    path: Path, chosen: dict[str, Synchronous], level: int
) -> None:
    opened = closing(SQLiteStore(path, **chosen))  # type: ignore[arg-type]
    with opened as sqlite, sqlite.transaction() as transaction:
        assert transaction.connection.execute("PRAGMA synchronous").fetchone() == (level,)


@pytest.mark.parametrize("other", [1, 7], ids=["never released", "newer"])
def test_a_file_of_another_format_is_refused_and_not_changed(path: Path, other: int) -> None:
    before = made(
        path, f"{admin.SCHEMA} UPDATE eventonce_tables SET format = {other};"
    ).read_bytes()
    with pytest.raises(
        StoreMismatch, match=rf"format {other}.*format 2\. Install the release.* path$"
    ):
        SQLiteStore(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "script",
    [
        "PRAGMA application_id = 252006675; CREATE TABLE theirs (n);",
        "PRAGMA user_version = 3;",
        "CREATE TABLE theirs (n);",
    ],
)
def test_a_file_of_another_application_is_shared_and_its_marks_and_tables_stay(
    path: Path, script: str
) -> None:
    marks = ("PRAGMA application_id", "PRAGMA user_version")
    with closing(raw(made(path, script))) as connection:
        before = [connection.execute(mark).fetchone() for mark in marks]
    with closing(SQLiteStore(path)) as sqlite:
        assert sqlite.claim([fact(1)], NOW)[0].kind == "run"
    with closing(raw(path)) as connection:
        assert [connection.execute(mark).fetchone() for mark in marks] == before
        tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        theirs = [name for (name,) in tables if not name.startswith("eventonce_")]
    assert theirs == (["theirs"] if "theirs" in script else [])


def test_a_creation_that_fails_leaves_the_file_as_it_was(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(path, "CREATE TABLE theirs (n);")
    monkeypatch.setattr(admin, "SCHEMA", admin.SCHEMA + "INSERT INTO nowhere VALUES (1);\n")
    with pytest.raises(StoreError, match="nowhere"):
        SQLiteStore(path)
    with closing(raw(path)) as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("theirs",)]
    monkeypatch.undo()
    SQLiteStore(path).close()


def test_columns_that_a_later_release_adds_are_ignored_and_kept(path: Path) -> None:
    with closing(SQLiteStore(path)) as sqlite:
        claims = [fact(number) for number in range(3)]
        runs = sqlite.claim(claims, NOW)
        made(
            path,
            "ALTER TABLE eventonce_records ADD COLUMN colour TEXT DEFAULT 'red';"
            "ALTER TABLE eventonce_letters ADD COLUMN colour TEXT DEFAULT 'red';"
            "UPDATE eventonce_records SET colour = 'blue';",
        )
        ends = zip(claims, runs, ("complete", "release", "extend"), strict=True)
        settlements = [Settlement(claim, run.token, action) for claim, run, action in ends]  # type: ignore[arg-type]
        for settlement in settlements:
            assert sqlite.settle([settlement], NOW) == ["kept"]
        assert sqlite.claim([fact(1)], NOW + 1)[0].attempt == 2
        assert sqlite.claim([fact(3)], NOW)[0].kind == "run"
        letter = Letter("1", "crm", "dead", "why", "rule", b"k", b"{}", NOW)
        sqlite.put_letters([letter])
        assert list(sqlite.letters()) == [letter]
    with closing(raw(path)) as connection:
        colours = connection.execute("SELECT colour FROM eventonce_records ORDER BY id").fetchall()
    assert colours == [("blue",), ("blue",), ("blue",), ("red",)]


def test_a_record_in_a_form_of_a_later_release_is_refused(path: Path) -> None:
    with closing(SQLiteStore(path)) as sqlite:
        sqlite.claim([fact(1)], NOW)
        made(path, "UPDATE eventonce_records SET body = x'7f';")
        with pytest.raises(StoreMismatch, match="a newer eventonce wrote it"):
            sqlite.claim([fact(1)], NOW)


# Paths and URIs


@pytest.mark.parametrize("path", ["", ":memory:"])
def test_a_store_without_a_file_is_the_memory_store(path: str) -> None:
    with pytest.raises(ConfigError, match="memory:"):
        SQLiteStore(path)


def test_a_path_with_a_nul_character_is_refused() -> None:
    with pytest.raises(ConfigError, match="without a NUL"):
        open_store("sqlite:///a%00b.db")


def test_a_relative_path_is_resolved_when_the_store_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with closing(open_store("sqlite:///a%20b%3F.db?synchronous=full&wait=0.5")) as sqlite:
        assert sqlite.claim([fact(1)], NOW)[0].kind == "run"
        monkeypatch.chdir("/")
        assert sqlite.stats().records == 1
    assert (tmp_path / "a b?.db").exists()


def test_four_slashes_begin_a_path_from_the_root(tmp_path: Path) -> None:
    open_store(f"sqlite:///{tmp_path}/absolute.db").close()
    assert (tmp_path / "absolute.db").exists()


@pytest.mark.parametrize(
    "uri",
    [
        "sqlite://eventonce.db",
        "sqlite://host/eventonce.db",
        "sqlite://user@/eventonce.db",
        "sqlite:eventonce.db",
        "sqlite:",
        "sqlite:///",
        "sqlite:///a.db?synchronous=off",
        "sqlite:///a.db?wait=long",
        "sqlite:///a.db?wiat=5",
        "sqlite:///a#b.db",
    ],
)
def test_an_invalid_uri_is_refused(uri: str) -> None:
    for opens in (open_store, SQLiteStore.from_uri):
        with pytest.raises(ConfigError, match="sqlite"):
            opens(uri)


# Errors


def test_a_directory_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"the directory .*/nowhere does not exist") as caught:
        SQLiteStore(tmp_path / "nowhere" / "eventonce.db")
    assert isinstance(caught.value.__cause__, sqlite3.Error)


def test_a_path_below_a_file_is_refused(path: Path) -> None:
    SQLiteStore(path).close()
    with pytest.raises(ConfigError, match=r"eventonce\.db is not a directory"):
        SQLiteStore(path / "another.db")


def test_a_file_system_without_a_shared_write_ahead_log_is_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def apart(location: Location, *_: object) -> sqlite3.Connection:
        uri = f"{location.path.as_uri()}?vfs=unix-dotfile"
        return sqlite3.connect(uri, uri=True, isolation_level=None)

    monkeypatch.setattr(admin, "connect", apart)
    with pytest.raises(ConfigError, match=r"write-ahead log .* not on a network file system"):
        SQLiteStore(path)


def test_a_path_that_is_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="this is a directory"):
        SQLiteStore(tmp_path)


@pytest.mark.parametrize(
    ("name", "told"), [("", "this is a directory"), ("x" * 300, "cannot be opened for writing")]
)
def test_a_path_that_cannot_be_created_is_a_wrong_path(
    tmp_path: Path, name: str, told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        SQLiteSchema(Location(tmp_path / name)).create()


def test_a_file_that_is_not_a_database_is_reported(path: Path) -> None:
    path.write_text("once upon a time\n" * 100)
    with pytest.raises(StoreMismatch, match="not an SQLite database") as caught:
        SQLiteStore(path)
    assert str(path) in str(caught.value)
    assert isinstance(caught.value.__cause__, sqlite3.DatabaseError)


def test_a_damaged_file_is_reported(path: Path) -> None:
    with closing(SQLiteStore(path)) as sqlite:
        sqlite.claim([fact(number) for number in range(2_000)], NOW)
    content = bytearray(path.read_bytes())
    # After the first pages, which are read when the file is opened.
    content[40_960:] = b"\xff" * (len(content) - 40_960)
    path.write_bytes(content)
    with closing(SQLiteStore(path)) as sqlite:
        with pytest.raises(StoreMismatch, match=r"is damaged.*\.recover"):
            sqlite.claim([fact(number) for number in range(2_000)], NOW)
        with pytest.raises(StoreMismatch, match="is damaged"):
            sqlite.stats()


@pytest.mark.parametrize(
    ("lost", "left"),
    [
        ("DELETE FROM eventonce_records WHERE id = 2", 3),
        ("DELETE FROM eventonce_keys WHERE id = 2", 3),
        ("UPDATE eventonce_keys SET id = 3 WHERE id = 2", 2),
    ],
)
def test_a_check_finds_keys_without_a_record_and_names_the_statement_that_drops_them(
    path: Path, lost: str, left: int
) -> None:
    """Such keys may exist after a `.recover`, or after a person has deleted records by hand."""
    with closing(SQLiteStore(path)) as sqlite:
        sqlite.claim([fact(number) for number in range(4)], NOW)
    schema = SQLiteSchema(Location(path))
    assert not any(found.fix for found in schema.check())
    with closing(raw(path)) as connection:
        connection.execute(lost)
        (found,) = (found for found in schema.check() if found.fix)
        assert found.what == "each key has a record of its own"
        connection.executescript(found.fix.split('"')[1])
    assert not any(found.fix for found in schema.check())
    with closing(SQLiteStore(path)) as sqlite:
        assert sqlite.stats().records == left
        verdicts = sqlite.claim([fact(number, nonce=2) for number in range(4)], NOW)
        assert [verdict.kind for verdict in verdicts].count("busy") == left


def test_a_claim_on_a_key_that_has_lost_its_record_is_an_error(path: Path) -> None:
    with closing(SQLiteStore(path)) as sqlite:
        sqlite.claim([fact(number) for number in range(4)], NOW)
        with closing(raw(path)) as connection:
            connection.execute("DELETE FROM eventonce_records WHERE id = 2")
        with pytest.raises(StoreError, match="lost its record; run `eventonce store check`"):
            sqlite.claim([fact(1), fact(9)], NOW)
        assert sqlite.show(fact(9).key) is None


def test_a_full_disk_is_reported_and_nothing_of_the_call_is_stored(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def limited(
        location: Location, mode: str, wait: float, kind: type[sqlite3.Connection]
    ) -> sqlite3.Connection:
        connection = connect(location, mode, wait, kind)
        connection.execute("PRAGMA max_page_count = 40")
        return connection

    connect = admin.connect
    with monkeypatch.context() as patch:
        patch.setattr(admin, "connect", limited)
        with closing(SQLiteStore(path)) as sqlite:
            assert sqlite.claim([fact(1)], NOW)[0].kind == "run"
            claims = [fact(number) for number in range(2, 10_000)]
            with pytest.raises(StoreUnavailable, match="the disk is full") as caught:
                sqlite.claim(claims, NOW)
            assert isinstance(caught.value.__cause__, sqlite3.OperationalError)
            assert sqlite.stats().records == 1
            assert sqlite.claim([fact(2)], NOW)[0].kind == "run"
    with closing(SQLiteStore(path)) as sqlite:
        assert {verdict.kind for verdict in sqlite.claim(claims, NOW)} == {"run"}


def hold(pipe: Connection, path: Path) -> None:
    connection = raw(path)
    connection.execute("BEGIN EXCLUSIVE")
    pipe.send("locked")
    pipe.recv()


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Another process locks the file until the block ends."""
    context = get_context("fork")
    here, there = context.Pipe()
    process = context.Process(target=hold, args=(there, path), daemon=True)
    process.start()
    assert here.poll(PATIENCE)
    try:
        yield
    finally:
        process.kill()
        process.join(PATIENCE)


def test_a_file_that_another_process_locks_is_reported(path: Path) -> None:
    with closing(SQLiteStore.from_uri(f"sqlite:///{path}?wait=0.05")) as sqlite:
        with locked(path):
            with pytest.raises(StoreUnavailable, match=r"locked by another .* 0\.05 s") as caught:
                sqlite.claim([fact(1)], NOW)
            assert isinstance(caught.value.__cause__, sqlite3.OperationalError)
            with pytest.raises(StoreUnavailable, match="locked by another"), sqlite.transaction():
                pass
        assert sqlite.claim([fact(1)], NOW)[0].kind == "run"


def test_a_file_that_is_locked_when_it_is_opened_is_reported(path: Path) -> None:
    made(path, "PRAGMA user_version = 0;")
    with locked(path), pytest.raises(StoreUnavailable, match="locked by another"):
        SQLiteStore(path, wait=0.05)
    SQLiteStore(path).close()


def fill(pipe: Connection, path: Path) -> None:
    """Use the disk up, and send the answers of the store to a probe, a check and a write."""
    uri = f"sqlite:///{path}"
    with closing(SQLiteStore(path)) as sqlite:
        # The largest size of a file in bytes: that of the log's index; the log may have as many.
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 15, resource.RLIM_INFINITY))
        numbers, refusals = count(1), 0
        # A write of fewer pages may fit where another did not.
        while refusals < 10:
            try:
                sqlite.claim([fact(next(numbers))], NOW)
                refusals = 0
            except StoreUnavailable:
                refusals += 1
        looked = sqlite.claim([PROBE])[0].kind
        faults = [it for it in SQLiteSchema.from_uri(uri).check() if not it.fine]
        fault = write_finding(uri).fix
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        pipe.send(((looked, faults), (fault, write_finding(uri).fix)))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux bounds the size of files like this")
def test_a_store_on_a_full_disk_answers_a_probe_and_fails_a_write(path: Path) -> None:
    seen, (fault, later) = run_in_child(path, fill)
    assert seen == ("run", [])
    assert "check the disk" in fault
    assert later == ""


def use(pipe: Connection, path: Path) -> None:
    if os.getuid() == 0:
        os.setuid(NOBODY)
    try:
        with closing(SQLiteStore(path)) as sqlite:
            sqlite.claim([fact(1)], NOW)
        pipe.send(("", ""))
    except EventonceError as error:
        pipe.send((type(error).__name__, str(error)))


def check(pipe: Connection, path: Path) -> None:
    if os.getuid() == 0:
        os.setuid(NOBODY)
    findings = SQLiteSchema.from_uri(f"sqlite:///{path}").check()
    pipe.send(next((it.what, it.fix) for it in findings if not it.fine))


def run_as_nobody(path: Path, does: Callable[..., None] = use) -> tuple[str, str]:
    """The answer of a child process that gives up the rights of root."""
    kind, message = run_in_child(path, does)
    return kind, message


def run_in_child(path: Path, does: Callable[..., None]) -> tuple[Any, Any]:
    """The answer of this function in a child process."""
    context = get_context("fork")
    here, there = context.Pipe()
    process = context.Process(target=does, args=(there, path), daemon=True)
    process.start()
    assert here.poll(PATIENCE)
    kind, message = here.recv()
    process.join(PATIENCE)
    return kind, message


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every user may read, unlike the folders of pytest."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)
        Path(name).chmod(0o755)


def test_a_file_without_permission_to_write_is_reported(folder: Path) -> None:
    path = folder / "eventonce.db"
    SQLiteStore(path).close()
    path.chmod(0o444)
    folder.chmod(0o777)
    kind, message = run_as_nobody(path)
    assert kind == "ConfigError"
    assert "no permission to read and write this file" in message
    what, fix = run_as_nobody(path, check)
    assert what == "this user may write it"
    assert fix.startswith("no permission to read and write this file; ")


def leave_open(pipe: Connection, path: Path) -> None:
    """End without closing, as a killed process does."""
    if os.getuid() == 0:
        os.setuid(NOBODY)
    SQLiteStore(path).claim([fact(1)], NOW)
    pipe.send(("", ""))
    os._exit(0)


def look(pipe: Connection, path: Path) -> None:
    """Read the file in every way that a command does."""
    if os.getuid() == 0:
        os.setuid(NOBODY)
    uri = f"sqlite:///{path}"
    schema = SQLiteSchema.from_uri(uri)
    schema.check()
    for looks in (partial(open_store, uri), partial(schema.migrate, dry_run=True)):
        with suppress(ConfigError):
            looks()
    pipe.send(("", ""))


@pytest.fixture
def theirs(folder: Path) -> Path:
    """A file of a user who is not root."""
    folder.chmod(0o777)
    path = folder / "eventonce.db"
    SQLiteStore(path).close()
    if os.getuid() == 0:
        os.chown(path, NOBODY, NOBODY)
    return path


def test_reads_of_a_file_without_write_permission_leave_no_file_that_breaks_later_use(
    theirs: Path,
) -> None:
    """SQLite makes the log and its index with the permissions of the file."""
    theirs.chmod(0o444)
    run_as_nobody(theirs, look)
    assert list(theirs.parent.iterdir()) == [theirs]
    theirs.chmod(0o600)
    assert run_as_nobody(theirs) == ("", "")


@pytest.mark.parametrize("end", ["-wal", "-shm"])
def test_a_log_or_an_index_that_may_not_be_written_is_named_with_the_remedy(
    theirs: Path, end: str
) -> None:
    run_in_child(theirs, leave_open)
    beside = theirs.with_name(theirs.name + end)
    beside.chmod(0o444)
    kind, message = run_as_nobody(theirs)
    assert kind == "ConfigError", "not at the first event"
    for told in (message, run_as_nobody(theirs, check)[1]):
        assert f"no permission to read and write {beside}, " in told
        assert f"chmod u+rw {beside}, and do not remove it" in told
    beside.chmod(0o600)
    assert run_as_nobody(theirs) == ("", "")


def test_a_file_of_another_user_is_named_as_such(folder: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("a file of another user needs root")
    path = folder / "eventonce.db"
    SQLiteStore(path).close()
    folder.chmod(0o777)
    message = run_as_nobody(path)[1]
    assert f"it belongs to user 0, with mode 600, and this is user {NOBODY}: run as that" in message


def test_a_file_system_that_is_read_only_is_named(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    SQLiteStore(path).close()
    found = os.statvfs(path.parent)
    assert "mounted read-only" not in not_writable(path)
    flags = SimpleNamespace(f_flag=found.f_flag | os.ST_RDONLY)
    monkeypatch.setattr(os, "statvfs", lambda _: flags)
    assert f"the file system of {path.parent} is mounted read-only" in not_writable(path)


def test_a_directory_without_permission_to_write_is_reported(folder: Path) -> None:
    path = folder / "eventonce.db"
    SQLiteStore(path).close()
    path.chmod(0o666)
    folder.chmod(0o555)
    kind, message = run_as_nobody(path)
    assert kind == "ConfigError"
    assert f"no permission to write in the directory {folder}" in message
    fault = run_as_nobody(folder / "another.db", check)
    assert f"no permission to write in the directory {folder}" in fault[1]


@pytest.mark.parametrize(("opening", "kind"), [(True, ConfigError), (False, StoreUnavailable)])
def test_a_file_that_cannot_be_written_is_a_wrong_path_only_while_it_is_opened(
    path: Path, kind: type[EventonceError], *, opening: bool
) -> None:
    error = sqlite3.OperationalError("attempt to write a readonly database")
    error.sqlite_errorcode = sqlite3.SQLITE_READONLY
    location = Location.of(path, Options())
    more = {"opening": True} if opening else {}
    assert type(explain(error, location, **more)) is kind


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (sqlite3.SQLITE_IOERR_FSYNC, StoreUnavailable),
        (sqlite3.SQLITE_NOMEM, StoreUnavailable),
        (sqlite3.SQLITE_BUSY_SNAPSHOT, StoreUnavailable),
        (sqlite3.SQLITE_CONSTRAINT, StoreError),
        (None, StoreError),
    ],
)
def test_errors_of_the_system_are_outages_and_other_errors_are_not(
    path: Path, code: int | None, kind: type[EventonceError]
) -> None:
    error = sqlite3.OperationalError("why")
    if code is not None:
        error.sqlite_errorcode = code
    assert type(explain(error, Location.of(path, Options()))) is kind


def settled_in_a_transaction(sqlite: SQLiteStore) -> None:
    with sqlite.transaction() as transaction:
        transaction.settle(Settlement(fact(1), 1, "complete"))


@pytest.mark.parametrize(
    "call", [lambda sqlite: sqlite.claim([fact(1)], NOW), settled_in_a_transaction]
)
def test_a_file_that_was_moved_away_is_reported_once_and_then_created_again(
    path: Path, call: Callable[[SQLiteStore], object]
) -> None:
    with closing(SQLiteStore(path)) as sqlite:
        call(sqlite)
        path.rename(path.with_suffix(".old"))
        with pytest.raises(StoreUnavailable, match="removed or replaced"):
            call(sqlite)
        assert sqlite.claim([fact(1)], NOW)[0].kind == "run"


@pytest.mark.parametrize("end", ["-shm", "-wal"])
def test_a_log_that_was_removed_is_reported_once_and_then_shared_again(
    path: Path, end: str
) -> None:
    """Two stores with two indexes of one log would each run the events of the other again."""
    with closing(SQLiteStore(path)) as sqlite, closing(SQLiteStore(path)) as another:
        sqlite.claim([fact(1)], NOW)
        path.with_name(path.name + end).unlink()
        with pytest.raises(StoreUnavailable, match=r"\(-wal, -shm\), was removed or replaced"):
            sqlite.claim([fact(2)], NOW)
        assert sqlite.claim([fact(2)], NOW)[0].kind == "run"
        assert another.claim([fact(2, nonce=2)], NOW)[0].kind == "busy"
        assert path.with_name(path.name + end).exists(), "as every other process will find it"


# Permissions


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_only_the_owner_may_read_and_write_a_new_file(path: Path) -> None:
    with closing(SQLiteStore(path)) as sqlite:
        sqlite.claim([fact(1)], NOW)
        assert [mode(Path(name)) for name in sqlite._connections.location.names] == [0o600] * 3


def test_a_file_that_exists_keeps_its_permissions(path: Path) -> None:
    made(path, "CREATE TABLE theirs (n);")
    path.chmod(0o640)
    with closing(SQLiteStore(path)) as sqlite:
        sqlite.claim([fact(1)], NOW)
        assert [mode(Path(name)) for name in sqlite._connections.location.names] == [0o640] * 3


def test_the_umask_removes_permissions_from_a_new_file(path: Path) -> None:
    before = os.umask(0o200)
    try:
        with suppress(EventonceError):  # only root can write the file then
            SQLiteStore(path).close()
    finally:
        os.umask(before)
    assert mode(path) == 0o400


def test_a_check_reports_a_file_that_other_users_may_read(folder: Path) -> None:
    path = folder / "eventonce.db"
    SQLiteStore(path).close()
    schema = SQLiteSchema.from_uri(f"sqlite:///{path}")
    assert all(finding.fine for finding in schema.check())
    path.chmod(0o644)
    (finding,) = [finding for finding in schema.check() if not finding.fine]
    assert "chmod o-rwx" in finding.fix
    path.chmod(0o660)
    assert all(finding.fine for finding in schema.check())


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells which files are open")
def test_a_check_names_the_process_that_works_on_a_removed_log(path: Path) -> None:
    schema = SQLiteSchema.from_uri(f"sqlite:///{path}")
    with closing(SQLiteStore(path)) as sqlite:
        sqlite.claim([fact(1)], NOW)
        assert all(finding.fine for finding in schema.check())
        path.with_name(path.name + "-shm").unlink()
        (finding,) = [finding for finding in schema.check() if not finding.fine]
        assert f"process {os.getpid()}," in finding.fix


def test_a_call_to_a_closed_store_is_an_error(path: Path) -> None:
    sqlite = SQLiteStore(path)
    letters = sqlite.letters()
    sqlite.close()
    sqlite.close()
    with pytest.raises(StoreError, match="is closed"):
        sqlite.claim([fact(1)], NOW)
    with pytest.raises(StoreError, match="is closed"):
        next(letters)


def test_an_sqlite_that_takes_too_few_values_is_refused_before_a_file_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, later = tmp_path / "eventonce.db", tmp_path / "later.db"
    SQLiteStore(path).close()
    largest = queries._complete(queries.ROWS[0], alike=False)
    assert max(map(int, re.findall(r"\?(\d+)", largest))) == 1025
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 31, 1))
    monkeypatch.setattr(sqlite3, "sqlite_version", "3.31.1")
    for refused in (path, later):
        with pytest.raises(StoreMismatch, match=r"has SQLite 3\.31\.1\. SQLite 3\.32 or newer is"):
            SQLiteStore(refused)
    assert not later.exists()
    (finding,) = [one for one in SQLiteSchema(Location(path)).check() if not one.fine]
    assert finding.what == "this Python has SQLite 3.31.1"
