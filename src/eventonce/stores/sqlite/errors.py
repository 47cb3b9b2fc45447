"""The driver's errors as ours: what is wrong, where, and what to do."""

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
"""Seconds before a file that seems to be refused is looked at again."""

FORBIDDEN: Final = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM)
"""The codes of a file that may not be opened or written."""


@contextmanager
def explained(location: Location, *, opening: bool = False) -> Iterator[None]:
    """The driver's errors, raised as ours."""
    try:
        yield
    except sqlite3.Error as error:
        raise explain(error, location, opening=opening) from error


def explain(error: sqlite3.Error, location: Location, *, opening: bool = False) -> EventonceError:
    """Our error for the driver's."""
    path = location.path
    match code_of(error):
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED | sqlite3.SQLITE_PROTOCOL:
            return StoreUnavailable(
                f"{path}: locked by another for longer than {location.options.wait:g} s. Try "
                f"again; if it stays so, look for a transaction that is held open (such as "
                f"`fuser {path}`)."
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
        case code if code in FORBIDDEN:
            # Before the work begins it is a wrong path; later the world has changed, perhaps back.
            kind = ConfigError if opening else StoreUnavailable
            return kind(f"{path}: {not_writable(path)} ({error})")
        case sqlite3.SQLITE_IOERR | sqlite3.SQLITE_NOMEM:
            name = getattr(error, "sqlite_errorname", type(error).__name__)
            return StoreUnavailable(
                f"{path}: the system failed SQLite ({name}: {error}). Nothing of this call "
                f"counts; look at the disk and its quota, and try again."
            )
        case _:
            return StoreError(f"{path}: {error}")


def code_of(error: sqlite3.Error) -> int | None:
    """The primary code of SQLite's error: the low byte, beside which its circumstances stand."""
    code = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def damaged(path: Path, said: str) -> str:
    """What to do with a file of which SQLite says this."""
    return (
        f"{path}: the file is damaged ({said}). Stop all that use it, keep a copy, and restore a "
        f"backup or what `sqlite3 {path} .recover` can read, in which `eventonce store check` then "
        f"looks for keys without a record."
    )


def beside(path: Path) -> tuple[Path, Path]:
    """The write-ahead log of this file, and the log's index."""
    _, log, index = Location(path).names
    return Path(log), Path(index)


def may(path: Path, how: int) -> bool:
    """Whether the user whose rights count may do this with the file or the folder."""
    if os.access in os.supports_effective_ids:
        return os.access(path, how, effective_ids=True)
    return os.access(path, how)


def refused(path: Path) -> Path | None:
    """The file, its log or the log's index, whichever this user may not read and write; None if
    all may be."""
    for one in (path, *beside(path)):
        if _is_refused(one):
            # Whoever closes the file last deletes the other two, and whoever opens it makes them:
            # what was refused once may have been gone for a moment.
            time.sleep(SECOND_LOOK)
            if _is_refused(one):
                return one
    return None


def _is_refused(path: Path) -> bool:
    return may(path, os.F_OK) and not may(path, os.R_OK | os.W_OK) and may(path, os.F_OK)


def read_only() -> sqlite3.OperationalError:
    """The error of SQLite for a write to a file that may only be read."""
    error = sqlite3.OperationalError("attempt to write a readonly database")
    error.sqlite_errorcode = sqlite3.SQLITE_READONLY
    return error


def unwritable(path: Path) -> str:
    """Why this user cannot write to the file, which need not be there, as far as one can see
    without doing it; empty if nothing speaks against it."""
    fine = may(path.parent, os.W_OK | os.X_OK) and refused(path) is None
    return "" if fine else not_writable(path)


def not_writable(path: Path) -> str:
    """Why this file cannot be opened or written, as far as one can see from outside."""
    folder = path.parent
    # Not `exists`, which raises where a name is too long, or a directory above may not be entered.
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
            f"no permission to write in the directory {folder}, which SQLite must for its log; "
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
    return "the file cannot be opened for writing; look at its permissions and the file system's"


def open_to_all(path: Path) -> bool:
    """Whether everybody on this machine may read or write this file."""
    reachable = all(folder.stat().st_mode & stat.S_IXOTH for folder in path.parents)
    return os.name == "posix" and reachable and path.stat().st_mode & 0o006 != 0


def _remedy(one: Path, mode: str) -> str:
    """How this user gets the permission."""
    try:
        status = one.stat()
    except OSError:
        return "look at its permissions"
    if not hasattr(os, "geteuid") or status.st_uid == os.geteuid():
        return f"chmod {mode} {one}"
    return (
        f"it is of user {status.st_uid}, with mode {stat.S_IMODE(status.st_mode):03o}, and this is "
        f"user {os.geteuid()}: work as that user, or give this one the permission"
    )
