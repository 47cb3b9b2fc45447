"""Django inside a handler's transaction: its models over `job.connection`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from django.db import DEFAULT_DB_ALIAS, connections, transaction
from psycopg import Connection
from psycopg.rows import tuple_row

from eventonce.errors import ConfigError, refused_in_transaction
from eventonce.types import Job


@contextmanager
def atomic(job: Job, using: str = DEFAULT_DB_ALIAS) -> Iterator[None]:
    """Like `django.db.transaction.atomic`, in the handler's transaction.

    Inside the block, and in this thread, the database `using` is the store's. The writes of the
    block are undone if it raises; otherwise they commit with the completion, or not at all.
    `transaction.atomic()` inside the block is a savepoint. `on_commit` is refused: the transaction
    may still be rolled back.
    """
    outer = job.connection
    wrapper = connections.create_connection(using)
    if wrapper.vendor != "postgresql" or not isinstance(outer, Connection):
        raise ConfigError(
            f"eventonce.orm.django: the store and Django's database {using!r} have to be the same "
            f"PostgreSQL database, through psycopg 3"
        )
    wrapper.connection = _Within(outer, wrapper.get_connection_params())
    wrapper.settings_dict = {**wrapper.settings_dict, "DISABLE_SERVER_SIDE_CURSORS": True}
    wrapper.on_commit = _on_commit
    replaced = getattr(connections._connections, using, None)  # noqa: SLF001  `connections[using]` would open one
    connections[using] = wrapper
    try:
        with transaction.atomic(using):
            before = outer.info.parameter_status("TimeZone")
            # Django reads every instant in its own time zone, not in the server's.
            _set_time_zone(outer, wrapper.timezone_name)
            yield
            _set_time_zone(outer, before)
    finally:
        if replaced is None:
            del connections[using]
        else:
            connections[using] = replaced


def _set_time_zone(outer: Connection[Any], name: str | None) -> None:
    """Set the time zone for this transaction only; it is undone with the savepoint."""
    if name and name != outer.info.parameter_status("TimeZone"):
        outer.execute("SELECT set_config('TimeZone', %s, true)", (name,))


class _Within:
    """The handler's connection with Django's cursors; commit, rollback and close are refused."""

    autocommit = False

    def __init__(self, outer: Connection[Any], parameters: dict[str, Any]) -> None:
        self._outer = outer
        self._cursor: Callable[..., Any] = parameters["cursor_factory"]
        self.adapters = parameters["context"]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._outer, name)

    def cursor(self, *args: Any, **options: Any) -> Any:
        cursor = self._cursor(self._outer, *args, row_factory=tuple_row, **options)
        # Only on the cursor: adapters of the connection would stay for the next handler.
        cursor._adapters = type(self.adapters)(self.adapters)  # noqa: SLF001
        return cursor

    def commit(self) -> NoReturn:
        raise refused_in_transaction("commit()")

    def rollback(self) -> NoReturn:
        raise refused_in_transaction("rollback()")

    def close(self) -> NoReturn:
        raise refused_in_transaction("close()")


def _on_commit(*_: object, **__: object) -> NoReturn:
    raise refused_in_transaction("on_commit()")
