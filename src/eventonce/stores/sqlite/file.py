"""The file: how it is opened, which formats are taken up, and what is said when it cannot be."""

from __future__ import annotations

import os
import random
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Literal, TypeVar

import msgspec

from eventonce.errors import (
    ConfigError,
    EventonceError,
    StoreError,
    StoreMismatch,
    StoreUnavailable,
)
from eventonce.stores.sqlite.guarded_connection import Lent

T = TypeVar("T")
C = TypeVar("C", bound=sqlite3.Connection)

FORMAT: Final = 1
"""What this release writes; rises only when an older release could no longer work on the file."""

MIGRATIONS: Mapping[int, str] = {}
"""From each older format, the statements that lead to the next one. Format 1 is the first."""

SCHEMA: Final = Path(__file__).with_name("schema.sql").read_text(encoding="utf-8")

CACHE_KIB: Final = 16_384
"""Pages kept by the connection that does the work: the few at the end of the tree where keys sort
by time, and no more memory than this where they do not."""

CHECKPOINT_PAGES: Final = 4_000
"""Written aside before they are brought home: four times SQLite's own, for a page at the end of the
tree is written in many batches and brought home once. The -wal file grows to some 16 MiB."""

POLL: Final = 0.002
"""Seconds, at most, between two looks at a lock. SQLite's own waits grow to a tenth of a second,
and a process that looks so rarely came away empty-handed after five, among eight busy ones."""

Synchronous = Literal["normal", "full"]


class Place(msgspec.Struct, frozen=True):
    """Where the file is, and how it is to be opened."""

    path: Path
    wait: float
    """Seconds to wait for another's lock."""
    synchronous: Synchronous = "normal"

    @property
    def names(self) -> tuple[str, str, str]:
        """The file, its write-ahead log, and the index of the log that all processes share."""
        return str(self.path), f"{self.path}-wal", f"{self.path}-shm"

    def open_for_reading(self) -> sqlite3.Connection:
        """A connection to the file that is there."""
        return self._connect("rw", self.wait, sqlite3.Connection)

    def open_for_writing(self) -> sqlite3.Connection:
        """A connection for transactions begun by `begin`. Makes the file if it is not there."""
        return self._patiently(lambda: self._take_up(sqlite3.Connection))

    def open_to_lend(self) -> Lent:
        """The same, for a caller's statements."""
        connection = self._patiently(lambda: self._take_up(Lent))
        connection.guard()
        return connection

    def begin(self, connection: sqlite3.Connection) -> None:
        """Begin a transaction that no other writer is in from its first moment on: what is read in
        it still holds when it is written."""
        # The driver's own, for one that is lent runs nothing outside of a transaction.
        execute = sqlite3.Connection.execute
        self._patiently(lambda: execute(connection, "BEGIN IMMEDIATE"))

    def _patiently(self, attempt: Callable[[], T]) -> T:
        deadline = time.monotonic() + self.wait
        while True:
            try:
                return attempt()
            except sqlite3.OperationalError as error:
                if _code(error) != sqlite3.SQLITE_BUSY or time.monotonic() >= deadline:
                    raise
            time.sleep(random.uniform(0, POLL))

    def _take_up(self, kind: type[C]) -> C:
        _make_private(self.path)
        connection = self._connect("rwc", 0, kind)
        try:
            _admit(connection, self.path)
            if not os.access(self.path, os.W_OK):
                # SQLite has opened it for reading, and would say so at the first write only.
                connection.execute("UPDATE eventonce_tables SET format = format")
            connection.execute(f"PRAGMA synchronous = {self.synchronous}")
            connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
            connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
            # Some builds overwrite what is deleted with zeros; our keys are hashes, no secrets.
            connection.execute("PRAGMA secure_delete = OFF")
        except BaseException:
            sqlite3.Connection.close(connection)
            raise
        return connection

    def _connect(self, mode: str, wait: float, kind: type[C]) -> C:
        return sqlite3.connect(
            f"{self.path.as_uri()}?mode={mode}",
            uri=True,
            timeout=wait,
            isolation_level=None,
            check_same_thread=False,
            factory=kind,
        )


def _make_private(path: Path) -> None:
    """Make the file, if it is not there, for its owner alone: letters hold whole events. SQLite
    gives its log and the log's index the same permissions."""
    with suppress(OSError):  # it is there, or SQLite says why it cannot be made
        if sys.platform == "linux":
            # Without opening it: closing it again would end the locks of our other connections.
            os.mknod(path, 0o600)
        else:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))


def _admit(connection: sqlite3.Connection, path: Path) -> None:
    """Take up the file: one with our tables, old ones to bring up to date, or none to make them."""
    # One view of what is asked, for another process may be making the file at this moment.
    connection.execute("BEGIN")
    script = script_from(format_of(connection, path), path)
    connection.execute("COMMIT")
    # Before anything is written, for it cannot be switched on within a transaction.
    _write_ahead(connection, path)
    if not script:
        return
    connection.execute("BEGIN IMMEDIATE")
    script = script_from(format_of(connection, path), path)
    for statement in _statements(script):
        connection.execute(statement)
    connection.execute("UPDATE eventonce_tables SET format = ?", (FORMAT,))
    connection.execute("COMMIT")


def script_from(found: int | None, path: Path) -> str:
    """What makes tables of this format ones that we work with: nothing, if they are."""
    if found is None:
        return SCHEMA
    missing = [step for step in range(found, FORMAT) if step not in MIGRATIONS]
    if missing:
        raise StoreMismatch(
            f"{path}: the tables in this file have format {found}, this release writes format "
            f"{FORMAT}, and it knows no way from {missing[0]} to {missing[0] + 1}. Open it with a "
            f"release between the two first, or give another path."
        )
    return "\n".join(MIGRATIONS[step] for step in range(found, FORMAT))


def format_of(connection: sqlite3.Connection, path: Path) -> int | None:
    """The format of our tables, None if there are none; a newer one is refused."""
    ours = "SELECT name FROM sqlite_master WHERE name = 'eventonce_tables'"
    if connection.execute(ours).fetchone() is None:
        return None
    (found,) = connection.execute("SELECT format FROM eventonce_tables").fetchone()
    if found > FORMAT:
        raise StoreMismatch(
            f"{path}: the tables in this file have format {found}, made by a newer eventonce, and "
            f"this release reads up to format {FORMAT}. Install the newer one here too, or give "
            f"another path."
        )
    return int(found)


def _statements(script: str) -> Iterator[str]:
    """One by one, for the driver's `executescript` would end the transaction they belong in."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def _write_ahead(connection: sqlite3.Connection, path: Path) -> None:
    """Let readers and one writer work at a time, instead of readers or one writer."""
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise ConfigError(
            f"{path}: SQLite cannot keep a write-ahead log here (journal mode {mode}). Give a path "
            f"on a local disk, not on a network file system."
        )


@contextmanager
def explained(place: Place, *, opening: bool = False) -> Iterator[None]:
    """The driver's errors as ours, with what was wrong, where, and what to do."""
    try:
        yield
    except sqlite3.Error as error:
        raise explain(error, place, opening=opening) from error


def explain(error: sqlite3.Error, place: Place, *, opening: bool = False) -> EventonceError:
    """Our error for the driver's."""
    path = place.path
    match _code(error):
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED | sqlite3.SQLITE_PROTOCOL:
            return StoreUnavailable(
                f"{path}: locked by another for longer than {place.wait:g} s. Try again; if it "
                f"stays so, look for a transaction that is held open (such as `fuser {path}`)."
            )
        case sqlite3.SQLITE_FULL:
            return StoreUnavailable(
                f"{path}: the disk is full. Nothing of this call was written; make space there and "
                f"try again. `eventonce sweep` frees space inside the file for new records."
            )
        case sqlite3.SQLITE_CORRUPT:
            return StoreMismatch(damaged(path, str(error)))
        case sqlite3.SQLITE_NOTADB:
            return StoreMismatch(
                f"{path}: this is not an SQLite database, or its first page is damaged. Give the "
                f"path of an eventonce file, or of none to have one made."
            )
        case sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM:
            # Before the work begins it is a wrong path; later the world has changed, perhaps back.
            kind = ConfigError if opening else StoreUnavailable
            return kind(f"{path}: {barred(path)} ({error})")
        case sqlite3.SQLITE_IOERR | sqlite3.SQLITE_NOMEM:
            return StoreUnavailable(
                f"{path}: the system failed SQLite ({_name(error)}: {error}). Nothing of this call "
                f"counts; look at the disk and its quota, and try again."
            )
        case _:
            return StoreError(f"{path}: {error}")


def damaged(path: Path, said: str) -> str:
    """What to do with a file of which SQLite says this."""
    return (
        f"{path}: the file is damaged ({said}). Stop all that use it, keep a copy, and restore a "
        f"backup or what `sqlite3 {path} .recover` can read."
    )


def barred(path: Path) -> str:
    """Why this file cannot be opened or written, as far as one can see from outside."""
    folder = path.parent
    if not folder.exists():
        return f"the directory {folder} does not exist; make it, or give another path"
    if not folder.is_dir():
        return f"{folder} is not a directory; give another path"
    if path.is_dir():
        return "this is a directory; give the path of a file in it"
    if not os.access(folder, os.W_OK | os.X_OK):
        return f"no permission to write in the directory {folder}, which SQLite must for its log"
    if path.exists() and not os.access(path, os.R_OK | os.W_OK):
        return "no permission to read and write this file"
    return "the file cannot be opened for writing; look at its permissions and the file system's"


def _code(error: sqlite3.Error) -> int | None:
    code = getattr(error, "sqlite_errorcode", None)
    # The low byte is the kind of error, the rest its circumstances.
    return None if code is None else code & 0xFF


def _name(error: sqlite3.Error) -> str:
    return str(getattr(error, "sqlite_errorname", type(error).__name__))
