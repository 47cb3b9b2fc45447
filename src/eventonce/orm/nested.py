"""A DB-API connection inside a handler's transaction: its commits are those of a savepoint.

A mapper commits, rolls back and closes the connections it is given, and a handler's connection
refuses all three, for its transaction ends with the completion. Here each of them acts on what was
written since the last one, and the transaction itself is left alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NoReturn

from eventonce.errors import StoreError

BEGIN: Final = "SAVEPOINT eventonce_nested"
KEEP: Final = "RELEASE SAVEPOINT eventonce_nested"
UNDO: Final = "ROLLBACK TO SAVEPOINT eventonce_nested"


class NestedConnection:
    """A connection for a mapper, whose transactions are savepoints of the handler's."""

    def __init__(self, outer: Any, cursor: Callable[..., Any]) -> None:
        self._outer = outer
        self._cursor = cursor
        outer.execute(BEGIN)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._outer, name)

    def cursor(self, *args: Any, **options: Any) -> Any:
        return self._cursor(*args, **options)

    def commit(self) -> None:
        """Keep what was written since; it is committed together with the completion."""
        self._outer.execute(KEEP)
        self._outer.execute(BEGIN)

    def rollback(self) -> None:
        """Undo what was written since the last commit."""
        self._outer.execute(UNDO)

    def close(self) -> None:
        """Undo what was not committed, and leave the handler's transaction open."""
        self._outer.execute(UNDO)
        self._outer.execute(KEEP)

    def add_notice_handler(self, _: object) -> None:
        """Not added: it would stay on a connection that others are lent later."""

    @property
    def autocommit(self) -> bool:
        return False

    @autocommit.setter
    def autocommit(self, on: bool) -> None:
        if on:
            refuse("autocommit")


class AsyncNestedConnection:
    """The same over `job.async_connection()`; `begin` comes before all else."""

    autocommit = False

    def __init__(self, outer: Any, cursor: Callable[..., Any]) -> None:
        self._outer = outer
        self._cursor = cursor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._outer, name)

    def cursor(self, *args: Any, **options: Any) -> Any:
        return self._cursor(*args, **options)

    async def begin(self) -> None:
        await self._outer.execute(BEGIN)

    async def commit(self) -> None:
        """Keep what was written since; it is committed together with the completion."""
        await self._outer.execute(KEEP)
        await self._outer.execute(BEGIN)

    async def rollback(self) -> None:
        """Undo what was written since the last commit."""
        await self._outer.execute(UNDO)

    async def close(self) -> None:
        """Undo what was not committed, and leave the handler's transaction open."""
        await self._outer.execute(UNDO)
        await self._outer.execute(KEEP)

    def add_notice_handler(self, _: object) -> None:
        """Not added: it would stay on a connection that others are lent later."""

    async def set_autocommit(self, on: bool) -> None:  # noqa: FBT001  as psycopg has it
        if on:
            refuse("autocommit")


def refuse(what: str) -> NoReturn:
    """Say what to do instead."""
    raise StoreError(
        f"{what} is refused inside a handler's transaction: all that the handler writes commits "
        f"together with the completion. For what has to be committed apart use a connection of "
        f"your own."
    )
