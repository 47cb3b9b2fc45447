"""A history in a file of its own, by SQLite."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from eventonce.errors import ConfigError, StoreUnavailable
from eventonce.history.driver import rows_of
from eventonce.stores.sqlite.admin import make_private
from eventonce.stores.sqlite.connections import identity
from eventonce.stores.sqlite.errors import FORBIDDEN, beside, code_of, may, not_writable, refused
from eventonce.stores.sqlite.scrubbing import empty_log, scrub
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
        self._location = location
        self._path = str(location.path)
        self.fixed = False
        self.missing = ""
        if not look:
            # It holds ids of conversations: it is for its owner alone.
            make_private(location.path)
            if refused(location.path) is not None:
                # SQLite would open it to read alone, and leave a log that nobody may write.
                raise StoreUnavailable(f"history {location.uri}: {not_writable(location.path)}")
        elif not may(location.path, os.R_OK):
            raise ConfigError(f"history {location.uri}: no permission to read it")
        self._file = identity(self._path)
        try:
            if look:
                self._database = self._looking()
            else:
                self._database = self._connected("mode=rwc")
                self._database.execute("PRAGMA journal_mode = WAL")
            # A crash of the machine may cost the last seconds of a history, and never the file.
            self._database.execute(f"PRAGMA synchronous = {location.options.synchronous}")
            self._database.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
            self._database.execute("PRAGMA wal_autocheckpoint = 10000")
            # What is dropped is overwritten: it names conversations.
            self._database.execute("PRAGMA secure_delete = ON")
        except sqlite3.OperationalError as error:
            raise StoreUnavailable(
                f"history {location.uri}: {error}{self.refused(error)}"
            ) from error
        except sqlite3.DatabaseError as error:
            raise ConfigError(f"history {location.uri}: {error}") from error

    def _connected(self, how: str) -> sqlite3.Connection:
        return sqlite3.connect(
            f"{self._location.path.as_uri()}?{how}",
            uri=True,
            timeout=self._location.options.wait,
            check_same_thread=False,
        )

    def _looking(self) -> sqlite3.Connection:
        """A connection of a reader. SQLite lets a reader, too, make the log and its index, with the
        permissions of the file. A reader who may not write the file would leave a log that nobody
        may write, and so reads the file as it is, without its log."""
        path = self._location.path
        log, index = beside(path)
        if may(path, os.W_OK) or (log.exists() and index.exists()):
            database = self._connected("mode=rw")
            try:
                database.execute("SELECT 1 FROM sqlite_master")
            except sqlite3.OperationalError as error:
                database.close()
                if not _forbids(error):
                    raise
            else:
                return database
        self.fixed = True
        with suppress(FileNotFoundError):
            # Where it is empty or not there, all is in the file.
            if log.stat().st_size:
                self.missing = (
                    "it is read without its log, and its newest decisions are missing; "
                    f"{not_writable(path)}"
                )
        return self._connected("mode=ro&immutable=1")

    def begin(self) -> None:
        self.run("BEGIN IMMEDIATE")

    def has(self, name: str) -> bool:
        return bool(self.rows("SELECT 1 FROM sqlite_master WHERE name = ?", (name,)))

    def may(self, name: str, *_rights: str) -> bool:
        """The rights are those of the file."""
        return self.has(name)

    def refused(self, error: Exception, /) -> str:
        return f"; {not_writable(self._location.path)}" if _forbids(error) else ""

    def removed(self) -> bool:
        try:
            return identity(self._path) != self._file
        except OSError as error:
            # A folder above it is none any more, or may not be entered.
            raise StoreUnavailable(f"history {self._location.uri}: {error}") from error

    def run(self, query: str, values: Sequence[Any] = ()) -> int:
        return self._database.execute(query, values).rowcount

    def insert(self, table: str, columns: Sequence[str], values: Sequence[Any]) -> None:
        # A statement for many rows costs less than one for each; with ROLLBACK, because to undo
        # the statement alone SQLite would first copy each page that it changes.
        row = f"({', '.join('?' * len(columns))})"
        into = f"INSERT OR ROLLBACK INTO {table} ({', '.join(columns)}) VALUES "  # noqa: S608  ours
        many = MOST_VALUES // len(columns)
        size = many * len(columns)
        whole = len(values) - len(values) % size
        query = into + ", ".join([row] * many)
        for start in range(0, whole, size):
            self._database.execute(query, values[start : start + size])
        self._database.executemany(into + row, rows_of(values[whole:], len(columns)))

    def run_many(self, query: str, rows: Sequence[Sequence[Any]]) -> None:
        self._database.executemany(query, rows)

    def rows(self, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        return self._database.execute(query, values).fetchall()

    def commit(self) -> None:
        self._database.commit()

    def empty_log(self) -> None:
        empty_log(self._database)

    def scrub(self) -> str:
        return scrub(self._database)

    def rollback(self) -> None:
        with suppress(sqlite3.Error):
            self._database.rollback()

    def close(self) -> None:
        self._database.close()


def location_of(uri: str) -> Location:
    """The file of `sqlite:///PATH`, which need not be there; its folder must."""
    location = read(uri)
    folder = location.path.parent
    # Not by pathlib, which raises where a folder above may not be entered.
    if not os.path.isdir(folder):  # noqa: PTH112
        raise ConfigError(f"history {uri!r}: there is no folder {str(folder)!r}")
    if os.path.isdir(location.path):  # noqa: PTH112
        raise ConfigError(f"history {uri!r}: it is a folder, and no file")
    return location


def _forbids(error: Exception) -> bool:
    """Whether this says that the file may not be opened or written."""
    return isinstance(error, sqlite3.Error) and code_of(error) in FORBIDDEN
