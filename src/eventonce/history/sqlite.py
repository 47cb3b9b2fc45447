"""A history in a SQLite file of its own."""

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
"""The size of the page cache in KiB: writes go to all parts of the indexes."""

MOST_VALUES: Final = 999
"""The most values of one statement in older versions of SQLite."""


class SQLiteDriver:
    """A file that all processes of a machine may write to."""

    number = "INTEGER PRIMARY KEY AUTOINCREMENT"
    """The type of an auto-increment column that never uses a number twice."""
    row = "INTEGER PRIMARY KEY"
    """The type of an auto-increment column that may reuse numbers of deleted rows: it is faster."""
    octets = "BLOB"
    """The type of a column of bytes."""
    first: Sequence[str] = ()
    """The statements to run before those that create the tables."""

    def __init__(self, location: Location, *, look: bool = False) -> None:
        self._location = location
        self._path = str(location.path)
        self.fixed = False
        """Whether this connection cannot see later writes."""
        self.missing = ""
        """Why this connection may miss earlier writes; empty if it sees all."""
        if not look:
            # The file holds ids of conversations: only its owner may read it.
            make_private(location.path)
            if refused(location.path) is not None:
                # SQLite would open it read-only, and leave a log that nobody may write.
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
            # A crash of the machine may lose the last seconds of a history, but never the file.
            self._database.execute(f"PRAGMA synchronous = {location.options.synchronous}")
            self._database.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
            self._database.execute("PRAGMA wal_autocheckpoint = 10000")
            # Deleted rows are overwritten, because they name conversations.
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
        """Open a connection for reading. SQLite lets a reader, too, create the log and its index,
        with the permissions of the file. A reader without write permission would leave a log that
        nobody may write: so it reads the file alone, without its log."""
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
            # With an empty or missing log, the file has all decisions.
            if log.stat().st_size:
                self.missing = (
                    "the file is read without its log, so the newest decisions are missing; "
                    f"{not_writable(path)}"
                )
        return self._connected("mode=ro&immutable=1")

    def begin(self) -> None:
        """Begin the transaction that creates the tables: one process at a time."""
        self.run("BEGIN IMMEDIATE")

    def has(self, name: str) -> bool:
        """Whether there is a table or an index of this name."""
        return bool(self.rows("SELECT 1 FROM sqlite_master WHERE name = ?", (name,)))

    def refused(self, error: Exception, /) -> str:
        """Return why this connection may not write, as a text to follow the error; empty for any
        other error. A new connection may have more rights than this one."""
        return f"; {not_writable(self._location.path)}" if _forbids(error) else ""

    def removed(self) -> bool:
        """Whether the open database is no longer the one at its address."""
        try:
            return identity(self._path) != self._file
        except OSError as error:
            # A folder above the file is no folder any more, or may not be entered.
            raise StoreUnavailable(f"history {self._location.uri}: {error}") from error

    def run(self, query: str, values: Sequence[Any] = ()) -> int:
        """Execute a query, and return the number of rows that it changed."""
        return self._database.execute(query, values).rowcount

    def insert(self, table: str, columns: Sequence[str], values: Sequence[Any]) -> None:
        """Insert rows; `values` has the values of the first row, then of the second, and so on.
        After a failure the transaction must be rolled back."""
        # One statement for many rows is faster than one for each row. OR ROLLBACK, because SQLite
        # copies each page that it changes if it must be able to undo the statement alone.
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
        """Execute a query for each of these rows."""
        self._database.executemany(query, rows)

    def rows(self, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        return self._database.execute(query, values).fetchall()

    def commit(self) -> None:
        """Commit the transaction."""
        self._database.commit()

    def empty_log(self) -> None:
        """Remove deleted data from the write-ahead log, unless another connection prevents it."""
        empty_log(self._database)

    def scrub(self) -> str:
        """Erase deleted data from the files, and return why that failed; empty if it did not."""
        return scrub(self._database)

    def rollback(self) -> None:
        """Roll the transaction back; a broken connection is no error."""
        with suppress(sqlite3.Error):
            self._database.rollback()

    def close(self) -> None:
        """Close the connection."""
        self._database.close()


def location_of(uri: str) -> Location:
    """Return the file of `sqlite:///PATH`. It need not exist, but its folder must."""
    location = read(uri)
    folder = location.path.parent
    # pathlib would raise if a folder above may not be entered.
    if not os.path.isdir(folder):  # noqa: PTH112
        raise ConfigError(f"history {uri!r}: there is no folder {str(folder)!r}; create it")
    if os.path.isdir(location.path):  # noqa: PTH112
        raise ConfigError(f"history {uri!r}: the path is a folder; name a file")
    return location


def _forbids(error: Exception) -> bool:
    """Whether this error says that the file may not be opened or written."""
    return isinstance(error, sqlite3.Error) and code_of(error) in FORBIDDEN
