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
    """A connection for a mapper, whose transactions are savepoints of the handler's; `begin` comes
    before all else. Each of its methods answers what `run` does: over `job.async_connection()`,
    something to await."""

    def __init__(self, outer: Any, cursor: Callable[..., Any], run: Callable[..., Any]) -> None:
        self._outer = outer
        self._run = run
        self.cursor = cursor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._outer, name)

    def begin(self) -> Any:
        return self._run(BEGIN)

    def commit(self) -> Any:
        """Keep what was written since; it is committed together with the completion."""
        return self._run(KEEP, BEGIN)

    def rollback(self) -> Any:
        """Undo what was written since the last commit."""
        return self._run(UNDO)

    def close(self) -> Any:
        """Undo what was not committed, and leave the handler's transaction open."""
        return self._run(UNDO, KEEP)

    def add_notice_handler(self, _: object) -> None:
        """Not added: it would stay on a connection that others are lent later."""

    @property
    def autocommit(self) -> bool:
        return False

    @autocommit.setter
    def autocommit(self, on: bool) -> None:
        if on:
            refuse("autocommit")

    async def set_autocommit(self, on: bool) -> None:  # noqa: FBT001  as psycopg has it
        self.autocommit = on


def refuse(what: str) -> NoReturn:
    """Say what to do instead."""
    raise StoreError(
        f"{what} is refused inside a handler's transaction: all that the handler writes commits "
        f"together with the completion. For what has to be committed apart use a connection of "
        f"your own."
    )
