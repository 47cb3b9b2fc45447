"""The file: opened, created and checked.

The store creates its file when it is opened. `SQLiteSchema` creates and checks it for the command
line; a check creates nothing.
"""

from __future__ import annotations

import os
import random
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from eventonce.core.ports import Finding, judged
from eventonce.errors import ConfigError, StoreMismatch
from eventonce.stores.sqlite.errors import (
    beside,
    code_of,
    damaged,
    explained,
    may,
    open_to_all,
    read_only,
    refused,
    unwritable,
)
from eventonce.stores.sqlite.uri import Location, read

T = TypeVar("T")
C = TypeVar("C", bound=sqlite3.Connection)

FORMAT: Final = 2
"""The format that this release works with; rises only if older releases could not work on the file.
Format 1 was never released."""

SCHEMA: Final = Path(__file__).with_name("schema.sql").read_text(encoding="utf-8")

PAIRED: Final = (
    "SELECT (SELECT count(*) FROM eventonce_keys), (SELECT count(*) FROM eventonce_records),"
    " (SELECT count(DISTINCT id) FROM eventonce_keys CROSS JOIN eventonce_records USING (id))"
)
"""Counts keys, records, and records that have a key; all three are equal in a sound file."""

UNPAIRED: Final = (
    "DELETE FROM eventonce_keys WHERE id NOT IN (SELECT id FROM eventonce_records) OR id IN "
    "(SELECT id FROM eventonce_keys GROUP BY id HAVING count(*) > 1); "
    "DELETE FROM eventonce_records WHERE id NOT IN (SELECT id FROM eventonce_keys)"
)
"""Deletes keys and records that are not pairs of one key and one record."""

CACHE_KIB: Final = 16_384
"""The page cache of the connection that does the work: enough for the end of the tree if keys sort
by time, and a limit of memory if they do not."""

CHECKPOINT_PAGES: Final = 4_000
"""Pages in the log before a checkpoint: four times SQLite's default, because a page at the end of
the tree is written in many batches, and checkpointed once. The -wal file grows to some 16 MiB."""

OLDEST: Final = (3, 32)
"""The oldest SQLite that works. Older ones take at most 999 values in a statement; ours have up to
1,025 (`queries.ROWS`)."""

MAY_WRITE: Final = "this user may write it"

UPGRADE: Final = "SQLite 3.32 or newer is needed: install it, or a Python that comes with it"

POLL: Final = 0.002
"""The most seconds between two attempts to get a lock. SQLite's own pauses grow to a tenth of a
second: among eight busy processes, one did not get the lock within five seconds."""


def open_for_reading(location: Location) -> sqlite3.Connection:
    """Return a connection to an existing file. It leaves no other file behind."""
    path = location.path
    if not may(path, os.W_OK) and not all(may(one, os.F_OK) for one in beside(path)):
        # SQLite would open it for reading, make the other two with its permissions, and not remove
        # them: when the file is writable again, these would not be.
        raise read_only()
    return connect(location, "rw", location.options.wait, sqlite3.Connection)


def open_for_writing(location: Location, kind: type[C]) -> C:
    """Return a connection for transactions of `begin`. Creates the file if it does not exist."""
    return _patiently(location, lambda: _open(location, kind))


def begin(connection: sqlite3.Connection, location: Location) -> None:
    """Begin a transaction with the write lock: what it reads still holds when it writes."""
    # The driver's own method: a guarded connection runs nothing outside of a transaction.
    execute = sqlite3.Connection.execute
    _patiently(location, lambda: execute(connection, "BEGIN IMMEDIATE"))


def _patiently(location: Location, attempt: Callable[[], T]) -> T:
    deadline = time.monotonic() + location.options.wait
    while True:
        try:
            return attempt()
        except sqlite3.OperationalError as error:
            if code_of(error) != sqlite3.SQLITE_BUSY or time.monotonic() >= deadline:
                raise
        time.sleep(random.uniform(0, POLL))


def _open(location: Location, kind: type[C]) -> C:
    if sqlite3.sqlite_version_info < OLDEST:
        version = sqlite3.sqlite_version
        raise StoreMismatch(f"{location.path}: this Python has SQLite {version}. {UPGRADE}.")
    make_private(location.path)
    if refused(location.path) is not None:
        # SQLite would open it for reading, and report it only at the first write.
        raise read_only()
    connection = connect(location, "rwc", 0, kind)
    try:
        _create_tables(connection, location.path)
        connection.execute(f"PRAGMA synchronous = {location.options.synchronous}")
        connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
        # Deleted data is overwritten with zeros: results and dead letters hold personal data, which
        # would otherwise stay in the file until its place is reused. The cost cannot be measured.
        connection.execute("PRAGMA secure_delete = ON")
    except BaseException:
        sqlite3.Connection.close(connection)
        raise
    return connection


def connect(location: Location, mode: str, wait: float, kind: type[C]) -> C:
    """Return the driver's connection, which begins no transaction by itself."""
    return sqlite3.connect(
        f"{location.path.as_uri()}?mode={mode}",
        uri=True,
        timeout=wait,
        isolation_level=None,
        check_same_thread=False,
        factory=kind,
    )


def make_private(path: Path) -> None:
    """Create the file, if it does not exist, for its owner alone: dead letters hold whole events.
    SQLite gives its log and the log's index the same permissions."""
    with suppress(OSError):  # the file exists, or SQLite reports why it cannot be created
        if sys.platform == "linux":
            # Without opening it: a close would release the locks of our other connections.
            os.mknod(path, 0o600)
        else:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))


def _create_tables(connection: sqlite3.Connection, path: Path) -> None:
    """Create our tables if there are none."""
    # In one transaction, because another process may be creating the tables at this moment.
    connection.execute("BEGIN")
    complete = _has_tables(connection, path)
    connection.execute("COMMIT")
    # Before the write transaction, because the mode cannot be changed within one.
    _write_ahead(connection, path)
    if complete:
        return
    connection.execute("BEGIN IMMEDIATE")
    if not _has_tables(connection, path):
        for statement in _statements(SCHEMA):
            connection.execute(statement)
    connection.execute("COMMIT")


def _has_tables(connection: sqlite3.Connection, path: Path) -> bool:
    """Return whether the file has our tables; refuse those of another format."""
    ours = "SELECT name FROM sqlite_master WHERE name = 'eventonce_tables'"
    if connection.execute(ours).fetchone() is None:
        return False
    (found,) = connection.execute("SELECT format FROM eventonce_tables").fetchone()
    if found != FORMAT:
        raise StoreMismatch(
            f"{path}: the tables in this file have format {found}, and this release works with "
            f"format {FORMAT}. Install the release that made them here too, or give another path"
        )
    return True


def _statements(script: str) -> Iterator[str]:
    """Yield the statements of a script: the driver's `executescript` would end the transaction."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def _write_ahead(connection: sqlite3.Connection, path: Path) -> None:
    """Switch to WAL mode, in which readers and one writer work at the same time."""
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise ConfigError(
            f"{path}: SQLite cannot keep a write-ahead log here (journal mode {mode}). Give a path "
            f"on a local disk, not on a network file system."
        )


class State(NamedTuple):
    """The state of a file."""

    tables: bool
    """Whether our tables exist."""
    write_ahead: bool


class SQLiteSchema:
    """The schema of a store's file, which need not exist; nothing is held open."""

    def __init__(self, location: Location) -> None:
        self._location = location
        self._path = location.path

    @classmethod
    def from_uri(cls, uri: str) -> SQLiteSchema:
        """Return the schema of the store with this URI."""
        return cls(read(uri))

    def create(self, *, dry_run: bool = False) -> list[str]:
        """Create the file, or our tables in it; return the steps that were done, or would be."""
        found = self._found()
        if found is None:
            step = f"create {self._path}, with tables of format {FORMAT} and a write-ahead log"
        elif not found.tables:
            step = f"create tables of format {FORMAT} in {self._path}, and a write-ahead log"
        else:
            return self.migrate(dry_run=dry_run)
        return self._take([step], dry_run=dry_run)

    def migrate(self, *, dry_run: bool = False) -> list[str]:
        """Let the file keep a write-ahead log; return the step that was done, or would be. No
        release made an older format."""
        found = self._found()
        if found is None or not found.tables:
            fault = "does not exist" if found is None else "has no tables of eventonce"
            raise StoreMismatch(f"{self._path} {fault}. {self._create}")
        steps = [] if found.write_ahead else [f"let {self._path} keep a write-ahead log"]
        return self._take(steps, dry_run=dry_run)

    def check(self) -> list[Finding]:
        """Check the file, its tables, its log and its permissions, and look for damage."""
        if not may(self._path, os.F_OK):
            fix = unwritable(self._path) or f"{self._create}; opening it does so too"
            return [Finding(f"{self._path} does not exist", fix, missing=True)]
        findings = [Finding(f"{self._path} exists")]
        why = unwritable(self._path)
        if why:
            # Opening it could leave a log and an index that nobody may write.
            return [*findings, Finding(MAY_WRITE, why)]
        try:
            for finding in self._findings():
                findings.append(finding)  # noqa: PERF402  findings before an error count too
        except StoreMismatch as error:
            findings.append(Finding("it can be read", str(error)))
        return findings

    def close(self) -> None:
        """Do nothing: nothing is held open."""

    def _findings(self) -> Iterator[Finding]:
        with self._opened() as file:
            found = self._state(file)
            if not found.tables:
                yield Finding("its tables do not exist", self._create, missing=True)
                return
            yield Finding(f"its tables have format {FORMAT}")
            new_enough = sqlite3.sqlite_version_info >= OLDEST
            version = f"this Python has SQLite {sqlite3.sqlite_version}"
            yield judged(new_enough, version, UPGRADE)
            migrate = self._location.command("migrate")
            yield judged(found.write_ahead, "it keeps a write-ahead log", migrate)
            yield Finding(MAY_WRITE)
            yield Finding("others may not read it", self._readable_by_others())
            yield Finding("all processes that use it share its log", self._apart())
            # The first fault suffices: the remedy is the same for more.
            (said,) = file.execute("PRAGMA quick_check(1)").fetchone()
            fix = "" if said == "ok" else damaged(self._path, " ".join(said.split()))
            yield Finding("SQLite finds no damage in it", fix)
            if not fix:
                yield Finding("each key has a record of its own", self._unpaired(file))

    @property
    def _create(self) -> str:
        return f"Create it: {self._location.command('create')}"

    def _found(self) -> State | None:
        if not may(self._path, os.F_OK):
            return None
        with self._opened() as file:
            return self._state(file)

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        with (
            explained(self._location, opening=True),
            closing(open_for_reading(self._location)) as connection,
        ):
            yield connection

    def _state(self, connection: sqlite3.Connection) -> State:
        tables = _has_tables(connection, self._path)
        (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
        return State(tables, mode == "wal")

    def _take(self, steps: list[str], *, dry_run: bool) -> list[str]:
        """Take these steps, by opening the file."""
        if steps and (why := unwritable(self._path)):
            raise ConfigError(f"{self._path}: {why}")
        if steps and not dry_run:
            with explained(self._location, opening=True):
                open_for_writing(self._location, sqlite3.Connection).close()
        return [f"would {step}" if dry_run else step for step in steps]

    def _unpaired(self, connection: sqlite3.Connection) -> str:
        """Return the remedy if keys or records are missing, after a `.recover` or a deletion by
        hand: a new record could get the id of a missing one, and answer for a wrong key."""
        keys, records, pairs = connection.execute(PAIRED).fetchone()
        if keys == records == pairs:
            return ""
        return (
            f"{keys:,} keys and {records:,} records are {pairs:,} pairs. Stop all that use the "
            f"file, keep a copy, and delete the rest, whose events are then new: sqlite3 "
            f'{self._path} "{UNPAIRED}"'
        )

    def _readable_by_others(self) -> str:
        """Return the remedy if everybody on this machine may read the dead letters."""
        if not open_to_all(self._path):
            return ""
        return f"everybody on this machine may: chmod o-rwx {' '.join(self._location.names)}"

    def _apart(self) -> str:
        """Return the remedy if a process uses a log that was removed: it does not see the writes of
        others, nor they its own. Found on Linux, for processes of this user."""
        path = os.path.realpath(self._path)
        removed = {f"{path}{end} (deleted)" for end in ("", "-wal", "-shm")}
        apart = set()
        for process in Path("/proc").glob("[0-9]*"):
            # A process or a file may disappear meanwhile.
            with suppress(OSError):
                for name in os.listdir(process / "fd"):  # noqa: PTH208  the names suffice
                    with suppress(OSError):
                        if os.readlink(process / "fd" / name) in removed:  # noqa: PTH115  a Path would lose the mark
                            apart.add(process.name)
        if not apart:
            return ""
        return (
            f"the file, its -wal or its -shm was removed while it was open in process "
            f"{', '.join(sorted(apart))}, which may run events again that others have run. Stop "
            f"all that use the file, and start them again"
        )
