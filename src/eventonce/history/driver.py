"""The seam between a history and its database: `sqlite` and `postgres` are the two drivers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from eventonce.history.postgres import PostgresDriver
    from eventonce.history.sqlite import SQLiteDriver

Driver: TypeAlias = "SQLiteDriver | PostgresDriver"
"""The differences between the two databases. `?` stands for a value in all queries."""


def places(many: int) -> str:
    """Return this many placeholders, for `IN` and `VALUES`."""
    return ", ".join("?" * many)


def rows_of(values: Sequence[Any], columns: int) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a flat list of values."""
    return zip(*[iter(values)] * columns, strict=True)
