"""The SQL table as a sink: a row for each event, in the transaction that completes the event."""

from __future__ import annotations

import re
from typing import Any, Final

from eventonce.core.masking import masked
from eventonce.errors import ConfigError, Reject
from eventonce.types import Job

_TABLE_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_$]{0,62}(?:\.[A-Za-z_][A-Za-z0-9_$]{0,62})?")

MISSING_CODES: Final = frozenset(("42P01", "42703", "3F000", "42P10"))
"""PostgreSQL's codes for no such table, column or schema, and for no unique `effect_id`."""

_UNFIT: Final = re.compile("no such table|has no column|ON CONFLICT clause does not match")
"""SQLite's messages for the same errors; SQLite has no codes for them."""

TABLE_COLUMNS: Final = "effect_id text PRIMARY KEY, key text, type text, event jsonb"


class Table:
    """Inserts each event into a table of the store's own database.

    Exactly once: the row and the completion commit together or not at all. This holds for ever, not
    only while the rule remembers, because `effect_id` is unique in the table.
    The sink needs a PostgreSQL or SQLite store, and a table that you create.
    """

    def __init__(self, name: str) -> None:
        self._name = name.removeprefix("table:")
        if not _TABLE_NAME.fullmatch(self._name):
            raise ConfigError(
                f"Table: {masked(name)!r} is not the name of a table; a name has letters, digits "
                f"and _, with or without a schema, such as events or crm.events"
            )
        quoted = ".".join(f'"{part}"' for part in self._name.split("."))
        self._insert = (
            f"INSERT INTO {quoted} (effect_id, key, type, event) "  # noqa: S608  checked above
            f"VALUES (?, ?, ?, ?) ON CONFLICT (effect_id) DO NOTHING"
        )

    def __call__(self, job: Job) -> None:
        """Insert the event; the runner commits."""
        event = job.event
        connection = job.connection
        # A connection of psycopg has this attribute; one of SQLite does not.
        embedded = not hasattr(connection, "pgconn")
        insert = self._insert if embedded else self._insert.replace("?", "%s")
        row = (job.effect_id, job.key.hex(), event.type, event.raw.decode())
        try:
            connection.execute(insert, row)
        except Exception as error:
            raise _explained(error, self._name) from error


def _explained(error: Exception, name: str) -> Exception:
    code: Any = getattr(error, "sqlstate", None)
    said = str(error).partition("\n")[0]
    if code in MISSING_CODES or _UNFIT.search(said):
        return ConfigError(
            f"table {name}: {said}. eventonce does not create it: create a table with "
            f"({TABLE_COLUMNS}); names are case-sensitive"
        )
    if str(code)[:2] in ("22", "23") or type(error).__name__ in ("DataError", "IntegrityError"):
        return Reject(f"table {name} refuses this event: {said}")
    return error
