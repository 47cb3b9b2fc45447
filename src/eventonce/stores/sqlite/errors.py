"""Errors of the driver as errors of eventonce: what is wrong, where, and what to do."""

from __future__ import annotations

import os
import sqlite3
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from eventonce.errors import (
    ConfigError,
    EventonceError,
    StoreError,
    StoreMismatch,
    StoreUnavailable,
)
from eventonce.stores.sqlite.uri import Location

SECOND_LOOK: Final = 0.02
"""Seconds before a file without permission is checked again."""

FORBIDDEN: Final = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM)
"""The codes of a file that may not be opened or written."""


@contextmanager
def explained(location: Location, *, opening: bool = False) -> Iterator[None]:
    """Raise errors of the driver as ours."""
    try:
        yield
    except sqlite3.Error as error:
        raise explain(error, location, opening=opening) from error


def explain(error: sqlite3.Error, location: Location, *, opening: bool = False) -> EventonceError:
    """Return our error for the driver's."""
    path = location.path
    match code_of(error):
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED | sqlite3.SQLITE_PROTOCOL:
            return StoreUnavailable(
                f"{path}: locked by another process for longer than {location.options.wait:g} s. "
                f"Try again; if it stays locked, look for a transaction that is held open (such as "
                f"by `fuser {path}`)."
            )
        case sqlite3.SQLITE_FULL:
            return StoreUnavailable(
                f"{path}: the disk is full. Nothing of this call was written; free some space and "
                f"try again. `eventonce sweep` frees space inside the file for new records."
            )
        case sqlite3.SQLITE_CORRUPT:
            return StoreMismatch(damaged(path, str(error)))
        case sqlite3.SQLITE_NOTADB:
            return StoreMismatch(
                f"{path}: this is not an SQLite database, or its first page is damaged. Give the "
                f"path of an eventonce file, or a new path to create one."
            )
        case code if code in FORBIDDEN:
            # At the start it is a wrong path; later the error may pass.
            kind = ConfigError if opening else StoreUnavailable
            return kind(f"{path}: {not_writable(path)} ({error})")
        case sqlite3.SQLITE_IOERR | sqlite3.SQLITE_NOMEM:
            name = getattr(error, "sqlite_errorname", type(error).__name__)
            return StoreUnavailable(
                f"{path}: the operating system failed ({name}: {error}). Nothing of this call "
                f"counts; check the disk and its quota, and try again."
            )
        case _:
            return StoreError(f"{path}: {error}")


def code_of(error: sqlite3.Error) -> int | None:
    """Return the primary code of SQLite's error: the low byte; the others are details."""
    code = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def damaged(path: Path, said: str) -> str:
    """Return the advice for a damaged file, with the words of SQLite."""
    return (
        f"{path}: the file is damaged ({said}). Stop all that use it, keep a copy, and restore a "
        f"backup or what `sqlite3 {path} .recover` can read; then run `eventonce store check`, "
        f"which finds keys without a record."
    )


def beside(path: Path) -> tuple[Path, Path]:
    """Return the write-ahead log of this file, and the log's index."""
    _, log, index = Location(path).names
    return Path(log), Path(index)


def may(path: Path, how: int) -> bool:
    """Return whether the effective user may access the file or the folder so (`os.R_OK`, …)."""
    if os.access in os.supports_effective_ids:
        return os.access(path, how, effective_ids=True)
    return os.access(path, how)


def refused(path: Path) -> Path | None:
    """Return the first of the file, its log and the log's index that this user may not read and
    write; None if there is none."""
    for one in (path, *beside(path)):
        if _is_refused(one):
            # The last process that closes the file deletes the other two, and the first that opens
            # it makes them: a file without access may only have been absent for a moment.
            time.sleep(SECOND_LOOK)
            if _is_refused(one):
                return one
    return None


def _is_refused(path: Path) -> bool:
    return may(path, os.F_OK) and not may(path, os.R_OK | os.W_OK) and may(path, os.F_OK)


def read_only() -> sqlite3.OperationalError:
    """Return the error of SQLite for a write to a file that may only be read."""
    error = sqlite3.OperationalError("attempt to write a readonly database")
    error.sqlite_errorcode = sqlite3.SQLITE_READONLY
    return error


def unwritable(path: Path) -> str:
    """Return why this user cannot write to the file, which need not exist; empty if no reason is
    visible without a write."""
    fine = may(path.parent, os.W_OK | os.X_OK) and refused(path) is None
    return "" if fine else not_writable(path)


def not_writable(path: Path) -> str:
    """Return why this file cannot be opened or written, as far as its permissions show."""
    folder = path.parent
    # Not `exists`, which raises if a name is too long or a directory above may not be entered.
    there = may(path, os.F_OK)
    if not may(folder, os.F_OK):
        return f"the directory {folder} does not exist; create it, or give another path"
    if not folder.is_dir():
        return f"{folder} is not a directory; give another path"
    if there and path.is_dir():
        return "this is a directory; give the path of a file in it"
    if hasattr(os, "statvfs") and os.statvfs(folder).f_flag & os.ST_RDONLY:
        return f"the file system of {folder} is mounted read-only; mount it for writing"
    if not may(folder, os.W_OK | os.X_OK):
        return (
            f"no permission to write in the directory {folder}, where SQLite keeps its log; "
            f"{_remedy(folder, 'u+rwx')}"
        )
    one = refused(path)
    if one == path:
        return f"no permission to read and write this file; {_remedy(one, 'u+rw')}"
    if one is not None:
        return (
            f"no permission to read and write {one}, which belongs to the file; "
            f"{_remedy(one, 'u+rw')}, and do not remove it, because it may hold records"
        )
    return "the file cannot be opened for writing; check its permissions and the file system's"


def open_to_all(path: Path) -> bool:
    """Return whether everybody on this machine may read or write this file."""
    reachable = all(folder.stat().st_mode & stat.S_IXOTH for folder in path.parents)
    return os.name == "posix" and reachable and path.stat().st_mode & 0o006 != 0


def _remedy(one: Path, mode: str) -> str:
    """Return how this user gets the permission."""
    try:
        status = one.stat()
    except OSError:
        return "check its permissions"
    if not hasattr(os, "geteuid") or status.st_uid == os.geteuid():
        return f"chmod {mode} {one}"
    return (
        f"it belongs to user {status.st_uid}, with mode {stat.S_IMODE(status.st_mode):03o}, and "
        f"this is user {os.geteuid()}: run as that user, or give this one the permission"
    )
