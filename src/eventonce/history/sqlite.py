"""A history in a file of its own, by SQLite."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from eventonce.errors import ConfigError, StoreUnavailable
from eventonce.stores.sqlite.connections import identity

CACHE_KIB: Final = 32_768
"""Of the file, in memory: its indexes are written to anywhere."""
WAIT: Final = 10.0
"""Seconds to wait for another process that writes."""


class SQLiteDriver:
    """A file that all processes of a machine may write to."""

    number = "INTEGER PRIMARY KEY AUTOINCREMENT"
    octets = "BLOB"

    def __init__(self, path: str, *, look: bool = False) -> None:
        # It holds ids of conversations: it is for its owner alone.
        try:
            os.close(os.open(path, os.O_RDONLY if look else os.O_CREAT | os.O_RDWR, 0o600))
        except OSError as error:
            raise ConfigError(f"history sqlite:///{path}: {error.strerror}") from error
        self._path = path
        self._file = identity(path)
        try:
            self._database = sqlite3.connect(path, timeout=WAIT, check_same_thread=False)
            # A crash of the machine may cost the last seconds of a history, and never the file.
            if not look:
                self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute("PRAGMA synchronous = NORMAL")
            self._database.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
            self._database.execute("PRAGMA wal_autocheckpoint = 10000")
        except sqlite3.OperationalError as error:
            raise StoreUnavailable(f"history sqlite:///{path}: {error}") from error
        except sqlite3.DatabaseError as error:
            raise ConfigError(f"history sqlite:///{path}: {error}") from error

    def prepare(self) -> bool:
        return True

    def made(self) -> bool:
        query = "SELECT 1 FROM sqlite_master WHERE name = 'eventonce_history_reason'"
        return bool(self.rows(query))

    def removed(self) -> bool:
        return identity(self._path) != self._file

    def run(self, query: str, values: Sequence[Any] = ()) -> int:
        return self._database.execute(query, values).rowcount

    def run_many(self, query: str, rows: Sequence[Sequence[Any]]) -> None:
        self._database.executemany(query, rows)

    def rows(self, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        return self._database.execute(query, values).fetchall()

    def commit(self) -> None:
        self._database.commit()

    def rollback(self) -> None:
        with suppress(sqlite3.Error):
            self._database.rollback()

    def close(self) -> None:
        self._database.close()


def path_of(uri: str) -> str:
    """The path of `sqlite:///PATH`."""
    path = uri.removeprefix("sqlite:///")
    if not path or path == uri:
        raise ConfigError(f"history {uri!r}: expected sqlite:///PATH, such as sqlite:///history.db")
    folder = Path(path).parent
    if not folder.is_dir():
        raise ConfigError(f"history {uri!r}: there is no folder {str(folder)!r}")
    return path
