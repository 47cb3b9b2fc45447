"""A DB-API connection inside a handler's transaction: its commits are those of a savepoint.

A mapper commits, rolls back and closes its connections. A handler's connection refuses all three,
because its transaction ends with the completion. Here each of them acts on the writes since the
last one, and leaves the transaction open.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from eventonce.errors import refused_in_transaction

BEGIN: Final = "SAVEPOINT eventonce_nested"
KEEP: Final = "RELEASE SAVEPOINT eventonce_nested"
UNDO: Final = "ROLLBACK TO SAVEPOINT eventonce_nested"


class NestedConnection:
    """A connection for a mapper, whose transactions are savepoints of the handler's transaction;
    `begin` must be called first. Each method returns the result of `run`: over
    `job.async_connection()`, an awaitable."""

    def __init__(self, outer: Any, cursor: Callable[..., Any], run: Callable[..., Any]) -> None:
        self._outer = outer
        self._run = run
        self.cursor = cursor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._outer, name)

    def begin(self) -> Any:
        return self._run(BEGIN)

    def commit(self) -> Any:
        """Keep the writes since the last commit or rollback; they commit with the completion."""
        return self._run(KEEP, BEGIN)

    def rollback(self) -> Any:
        """Undo the writes since the last commit."""
        return self._run(UNDO)

    def close(self) -> Any:
        """Undo writes that were not committed, and leave the handler's transaction open."""
        return self._run(UNDO, KEEP)

    def add_notice_handler(self, _: object) -> None:
        """Do nothing: the handler would stay on a connection that other jobs use later."""

    @property
    def autocommit(self) -> bool:
        return False

    @autocommit.setter
    def autocommit(self, on: bool) -> None:
        if on:
            raise refused_in_transaction("autocommit")

    async def set_autocommit(self, on: bool) -> None:  # noqa: FBT001  as psycopg has it
        self.autocommit = on
