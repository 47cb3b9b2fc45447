"""The table of letters, over a connection that is given."""
# ruff: noqa: S608  what is put into a statement is the names of the columns, which stand here

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Final

import msgspec

from eventonce.types import Letter

_NAMES: Final = "id, consumer, status, reason, rule, key, event, at, attempt"
"""The fields of a letter, in their order; a later release's come after them."""

_MARKS: Final = ", ".join("?" * len(_NAMES.split(", ")))

FIRST: Final = (-(2**63), "")
"""Before every letter."""


def put(connection: sqlite3.Connection, letters: Sequence[Letter]) -> None:
    """Keep these letters; one that is there already is left as it is."""
    connection.executemany(
        f"INSERT INTO eventonce_letters ({_NAMES}) VALUES ({_MARKS}) ON CONFLICT (id) DO NOTHING",
        [msgspec.structs.astuple(letter) for letter in letters],
    )


def page(
    connection: sqlite3.Connection, consumer: str | None, after: tuple[int, str], limit: int
) -> list[Letter]:
    """So many letters after the one of this instant and id, oldest first."""
    rows = connection.execute(
        f"SELECT {_NAMES} FROM eventonce_letters WHERE (at, id) > (?1, ?2)"
        " AND (?3 IS NULL OR consumer = ?3) ORDER BY at, id LIMIT ?4",
        (*after, consumer, limit),
    )
    return [Letter(*row) for row in rows]


def one(connection: sqlite3.Connection, id: str) -> Letter | None:
    """The letter of this id."""
    row = connection.execute(
        f"SELECT {_NAMES} FROM eventonce_letters WHERE id = ?", (id,)
    ).fetchone()
    return None if row is None else Letter(*row)


def drop(connection: sqlite3.Connection, ids: Sequence[str]) -> int:
    """Drop these letters; answers how many there were."""
    return connection.executemany(
        "DELETE FROM eventonce_letters WHERE id = ?", [(each,) for each in ids]
    ).rowcount
