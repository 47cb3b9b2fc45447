"""What a history asks of its database; `sqlite` and `postgres` have one each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol


class Driver(Protocol):
    """A database: what differs between the two. `?` stands for a value in all queries."""

    number: str
    """The type of a column that counts by itself, and never has a number twice."""
    row: str
    """The same where the numbers of rows that were deleted may come again: it costs less."""
    octets: str
    """The type of bytes."""

    first: Sequence[str]
    """The statements before those that make the tables."""

    def begin(self) -> None:
        """Begin to make the tables: one process at a time, and nobody sees half of them."""
        ...

    def has(self, name: str) -> bool:
        """Whether there is a table or an index of this name."""
        ...

    def may(self, name: str, *rights: str) -> bool:
        """Whether there is a table of this name, and this user has all these rights to it."""
        ...

    fixed: bool
    """Whether this connection sees nothing that is written later."""
    missing: str
    """Why it may miss what was written already; empty where it has all."""

    def refused(self, error: Exception, /) -> str:
        """Why this connection may not write, to be said after the error; empty where the error is
        another. A new connection may be allowed what this one is not."""
        ...

    def removed(self) -> bool:
        """Whether the database that is open is no longer the one at its address."""
        ...

    def run(self, query: str, values: Sequence[Any] = ()) -> int:
        """Execute a query; answers how many rows it changed."""
        ...

    def insert(self, table: str, columns: Sequence[str], values: Sequence[Any]) -> None:
        """Insert the rows that have these values, row after row. Where it fails, the transaction
        must be undone."""
        ...

    def run_many(self, query: str, rows: Sequence[Sequence[Any]]) -> None:
        """Execute a query for each of these rows."""
        ...

    def rows(self, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """The rows of a query."""
        ...

    def commit(self) -> None:
        """End the transaction."""
        ...

    def empty_log(self) -> None:
        """Take what was deleted out of the log beside the file, unless somebody is in the way."""
        ...

    def scrub(self) -> str:
        """Let go of what was deleted, as far as the database can be told to; answers why not."""
        ...

    def rollback(self) -> None:
        """Undo the transaction, whatever has become of the connection."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


def places(many: int) -> str:
    """So many places for values, for `IN` and `VALUES`."""
    return ", ".join("?" * many)


def rows_of(values: Sequence[Any], columns: int) -> Iterator[tuple[Any, ...]]:
    """The rows that have these values, row after row."""
    return zip(*[iter(values)] * columns, strict=True)
