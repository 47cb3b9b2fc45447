"""The driver's errors as ours: what is wrong, where, and what to do."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from eventonce.errors import (
    ConfigError,
    EventonceError,
    StoreError,
    StoreMismatch,
    StoreUnavailable,
)
from eventonce.stores.sqlite.uri import Location


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
        case sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM:
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


def not_writable(path: Path) -> str:
    """Why this file cannot be opened or written, as far as one can see from outside."""
    folder = path.parent
    # Not `exists`, which raises where a name is too long, or a directory above may not be entered.
    there = os.access(path, os.F_OK)
    if not os.access(folder, os.F_OK):
        return f"the directory {folder} does not exist; create it, or give another path"
    if not folder.is_dir():
        return f"{folder} is not a directory; give another path"
    if there and path.is_dir():
        return "this is a directory; give the path of a file in it"
    if not os.access(folder, os.W_OK | os.X_OK):
        return f"no permission to write in the directory {folder}, which SQLite must for its log"
    if there and not os.access(path, os.R_OK | os.W_OK):
        return "no permission to read and write this file"
    return "the file cannot be opened for writing; look at its permissions and the file system's"
