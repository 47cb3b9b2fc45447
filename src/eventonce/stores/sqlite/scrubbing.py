"""Scrubbing: no deleted byte stays in a file.

`secure_delete` overwrites a deleted row with zeros. But a page that SQLite had to split keeps
copies of the rows that were moved, and these are not overwritten: only `VACUUM` removes them.
"""

from __future__ import annotations

import sqlite3
from typing import Final

_OTHERS: Final = (
    "SELECT count(*) FROM sqlite_master WHERE type = 'table' "
    "AND name NOT LIKE 'eventonce!_%' ESCAPE '!' AND name NOT LIKE 'sqlite!_%' ESCAPE '!'"
)


def empty_log(connection: sqlite3.Connection) -> bool:
    """Checkpoint and truncate the log, which would otherwise keep deleted rows; return whether no
    other process prevented it."""
    (busy, *_) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    return not busy


def scrub(connection: sqlite3.Connection) -> str:
    """Write the file anew, and empty its log, while nobody else writes; return why it was not
    possible, or an empty text."""
    try:
        (others,) = connection.execute(_OTHERS).fetchone()
        if not others:
            connection.execute("VACUUM")
        emptied = empty_log(connection)
    except sqlite3.OperationalError as error:
        return str(error)
    if not emptied:
        return "another process reads it, or writes to it, for long"
    # A VACUUM may change the row ids of another application's tables.
    return "it has tables of others, and needs a VACUUM when they allow it" if others else ""
