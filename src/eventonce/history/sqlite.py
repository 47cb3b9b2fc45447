"""A history in a file of its own, by SQLite."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from contextlib import suppress
from itertools import chain
from typing import Any, Final

from eventonce.errors import ConfigError, StoreUnavailable
from eventonce.stores.sqlite.admin import make_private
from eventonce.stores.sqlite.connections import identity
from eventonce.stores.sqlite.errors import beside, not_writable, refused
from eventonce.stores.sqlite.scrubbing import scrub
from eventonce.stores.sqlite.uri import Location, read

CACHE_KIB: Final = 32_768
"""Of the file, in memory: its indexes are written to anywhere."""

MOST_VALUES: Final = 999
"""Of one statement, in older versions of SQLite."""


class SQLiteDriver:
    """A file that all processes of a machine may write to."""

    number = "INTEGER PRIMARY KEY AUTOINCREMENT"
    row = "INTEGER PRIMARY KEY"
    octets = "BLOB"
    first: Sequence[str] = ()

    def __init__(self, location: Location, *, look: bool = False) -> None:
        self._path = str(location.path)
        self._location = location
        if not look:
            # It holds ids of conversations: it is for its owner alone.
            make_private(location.path)
            if refused(location.path) is not None:
                raise StoreUnavailable(f"history {location.uri}: {not_writable(location.path)}")
        elif not os.access(self._path, os.R_OK):
            raise ConfigError(f"history {location.uri}: it cannot be read")
        self._file = identity(self._path)
        self._look = look
        self._connect()

    def _connect(self) -> None:
        location, look = self._location, self._look
        self._still = _still(location) if look else None
        """What a file that nobody writes looks like; None where it may be written."""
        mode = "ro&immutable=1" if self._still is not None else "rw" if look else "rwc"
        try:
            self._database = sqlite3.connect(
                f"{location.path.as_uri()}?mode={mode}",
                uri=True,
                timeout=location.options.wait,
                check_same_thread=False,
            )
            # A crash of the machine may cost the last seconds of a history, and never the file.
            if not look:
                self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute(f"PRAGMA synchronous = {location.options.synchronous}")
            self._database.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
            self._database.execute("PRAGMA wal_autocheckpoint = 10000")
            # What is dropped is overwritten: it names conversations.
            self._database.execute("PRAGMA secure_delete = ON")
        except sqlite3.OperationalError as error:
            raise StoreUnavailable(f"history {location.uri}: {error}") from error
        except sqlite3.DatabaseError as error:
            raise ConfigError(f"history {location.uri}: {error}") from error

    def begin(self) -> None:
        self.run("BEGIN IMMEDIATE")

    def has(self, name: str) -> bool:
        return bool(self.rows("SELECT 1 FROM sqlite_master WHERE name = ?", (name,)))

    def removed(self) -> bool:
        return identity(self._path) != self._file

    def run(self, query: str, values: Sequence[Any] = ()) -> int:
        return self._database.execute(query, values).rowcount

    def insert(self, table: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        # A statement for many rows costs less than one for each; with ROLLBACK, because to undo
        # the statement alone SQLite would first copy each page that it changes.
        row = f"({', '.join('?' * len(columns))})"
        into = f"INSERT OR ROLLBACK INTO {table} ({', '.join(columns)}) VALUES "  # noqa: S608  ours
        size = MOST_VALUES // len(columns)
        whole = len(rows) - len(rows) % size
        query = into + ", ".join([row] * size)
        for start in range(0, whole, size):
            self._database.execute(query, [*chain.from_iterable(rows[start : start + size])])
        self._database.executemany(into + row, rows[whole:])

    def run_many(self, query: str, rows: Sequence[Sequence[Any]]) -> None:
        self._database.executemany(query, rows)

    def rows(self, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        if self._still is not None and self._still != _still(self._location):
            # Somebody writes it now, or has: SQLite would not look.
            self._database.close()
            self._connect()
        return self._database.execute(query, values).fetchall()

    def commit(self) -> None:
        self._database.commit()

    def scrub(self) -> str:
        return scrub(self._database)

    def rollback(self) -> None:
        with suppress(sqlite3.Error):
            self._database.rollback()

    def close(self) -> None:
        self._database.close()


def _still(location: Location) -> tuple[int, int] | None:
    """The time and the size of a file that this user may only read and that nobody has open; None
    for any other. To read such a file SQLite would make a log and an index with its permissions,
    and leave them: once the file may be written again, they could not be."""
    path = location.path
    log, index = beside(path)
    if os.access(path, os.W_OK) or (os.access(log, os.F_OK) and os.access(index, os.F_OK)):
        return None
    with suppress(FileNotFoundError):
        if log.stat().st_size:
            raise StoreUnavailable(
                f"history {location.uri}: its log {log} was left by a process that was killed, and "
                f"this user may not bring it into the file; look as a user who may write it"
            )
    with suppress(FileNotFoundError):
        status = path.stat()
        return status.st_mtime_ns, status.st_size
    return None


def location_of(uri: str) -> Location:
    """The file of `sqlite:///PATH`, which need not be there; its folder must."""
    location = read(uri)
    folder = location.path.parent
    if not folder.is_dir():
        raise ConfigError(f"history {uri!r}: there is no folder {str(folder)!r}")
    return location
