"""Scrubbing: no byte of what was deleted stays in a file.

`secure_delete` writes zeros over a row where it stands. But a page that SQLite had to divide keeps
copies of the rows that left it, and zeros never reach those: only `VACUUM` leaves them behind.
"""

from __future__ import annotations

import sqlite3
from typing import Final

_OTHERS: Final = (
    "SELECT count(*) FROM sqlite_master WHERE type = 'table' "
    "AND name NOT LIKE 'eventonce!_%' ESCAPE '!' AND name NOT LIKE 'sqlite!_%' ESCAPE '!'"
)


def empty_log(connection: sqlite3.Connection) -> bool:
    """Bring the log home, or it would hold what was deleted until somebody does; answers whether
    nobody was in the way."""
    (busy, *_) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    return not busy


def scrub(connection: sqlite3.Connection) -> str:
    """Write the file anew, and bring its log home, while nobody else writes; answers why that could
    not be done, and nothing where it was."""
    try:
        (others,) = connection.execute(_OTHERS).fetchone()
        if not others:
            connection.execute("VACUUM")
        emptied = empty_log(connection)
    except sqlite3.OperationalError as error:
        return str(error)
    if not emptied:
        return "somebody reads it, or writes to it, for long"
    # It may change the row ids of their tables.
    return "it has tables of others, and needs a VACUUM when that suits them" if others else ""
