"""The protocol between a history and its database; `sqlite` and `postgres` implement it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol


class Driver(Protocol):
    """The differences between the two databases. `?` stands for a value in all queries."""

    number: str
    """The type of an auto-increment column that never uses a number twice."""
    row: str
    """The type of an auto-increment column that may reuse numbers of deleted rows: it is faster."""
    octets: str
    """The type of a column of bytes."""

    first: Sequence[str]
    """The statements to run before those that create the tables."""

    def begin(self) -> None:
        """Begin the transaction that creates the tables: one process at a time."""
        ...

    def has(self, name: str) -> bool:
        """Whether there is a table or an index of this name."""
        ...

    def may(self, name: str, *rights: str) -> bool:
        """Whether there is a table of this name, and this user has all these rights to it."""
        ...

    fixed: bool
    """Whether this connection cannot see later writes."""
    missing: str
    """Why this connection may miss earlier writes; empty if it sees all."""

    def refused(self, error: Exception, /) -> str:
        """Return why this connection may not write, as a text to follow the error; empty for any
        other error. A new connection may have more rights than this one."""
        ...

    def removed(self) -> bool:
        """Whether the open database is no longer the one at its address."""
        ...

    def run(self, query: str, values: Sequence[Any] = ()) -> int:
        """Execute a query, and return the number of rows that it changed."""
        ...

    def insert(self, table: str, columns: Sequence[str], values: Sequence[Any]) -> None:
        """Insert rows; `values` has the values of the first row, then of the second, and so on.
        After a failure the transaction must be rolled back."""
        ...

    def run_many(self, query: str, rows: Sequence[Sequence[Any]]) -> None:
        """Execute a query for each of these rows."""
        ...

    def rows(self, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        ...

    def commit(self) -> None:
        """Commit the transaction."""
        ...

    def empty_log(self) -> None:
        """Remove deleted data from the write-ahead log, unless another connection prevents it."""
        ...

    def scrub(self) -> str:
        """Erase deleted data from the files, and return why that failed; empty if it did not."""
        ...

    def rollback(self) -> None:
        """Roll the transaction back; a broken connection is no error."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


def places(many: int) -> str:
    """Return this many placeholders, for `IN` and `VALUES`."""
    return ", ".join("?" * many)


def rows_of(values: Sequence[Any], columns: int) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a flat list of values."""
    return zip(*[iter(values)] * columns, strict=True)
