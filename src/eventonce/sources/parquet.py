"""Events in Parquet files, through DuckDB: each row is an event, or has an event in a column.

A column `event` (or another of `EVENT_COLUMNS`) has the event as JSON text or as a struct; the
columns `arrived`, `channel`, `receives` and `id` are about its delivery. Without a column of
`EVENT_COLUMNS`, the row itself is the event.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from glob import escape
from pathlib import Path
from typing import Any, Final

import msgspec

from eventonce.envelope.captured import Arrived, line_of
from eventonce.errors import module_of
from eventonce.sources.compression import Unreadable

MAGIC: Final = b"PAR1"
EVENT_COLUMNS: Final = ("event", "message", "body", "raw", "value", "payload")
"""The names of a column that holds whole events; the first of these names that the file has."""
DELIVERY_COLUMNS: Final = ("id", "arrived", "channel", "receives")
"""The columns about the delivery."""
ENVELOPE: Final = ("detail", "detail-type", "detail_type", "topicName", "eventBody", "specversion")
"""The columns of a row that is itself an event; one suffices."""
ROWS_READ: Final = 1_000
MEMORY_LIMIT: Final = "256MB"
INTERRUPTED: Final = "Query interrupted"
"""The error of DuckDB for a query in which a signal came."""


def duckdb() -> Any:
    """Return the module; ConfigError if it is not installed."""
    return module_of("study", "duckdb", "captures and Parquet need")


def rows(path: Path) -> Iterator[list[bytes]]:
    """Yield the events of a file, some at a time; Unreadable if it is broken or has no events."""
    module = duckdb()
    with module.connect(config={"memory_limit": MEMORY_LIMIT, "threads": 1}) as database:
        try:
            # DuckDB reads the name as a pattern.
            source, pattern = "read_parquet(?)", [escape(str(path))]
            described = database.execute(f"DESCRIBE FROM {source}", pattern).fetchall()
            columns = {name: str(kind) for name, kind, *_ in described}
            chosen, packed = _chosen(columns)
            found = database.execute(f"SELECT {chosen} FROM {source} AS line", pattern)  # noqa: S608  quoted
            while some := found.fetchmany(ROWS_READ):
                yield [_line(*row, packed=packed) for row in some]
        except module.Error as error:
            raise Unreadable(str(error).partition("\n")[0]) from error
        except RuntimeError as error:
            # DuckDB replaces the exception of a signal handler.
            if str(error) == INTERRUPTED:
                raise KeyboardInterrupt from None
            raise


def _chosen(columns: Mapping[str, str]) -> tuple[str, bool]:
    """Return the SQL of five values, the event as text and the `DELIVERY_COLUMNS`; and whether the
    event is made from columns."""
    held = next((name for name in EVENT_COLUMNS if name in columns), None)
    if held is not None:
        beside = [_column(name, columns.get(name, "")) for name in DELIVERY_COLUMNS]
        text = _text(held, columns[held])
        return ", ".join([text, *beside]), text.startswith("to_json")
    if not columns.keys() & set(ENVELOPE):
        raise Unreadable(
            f"no column holds events: there are {', '.join(columns)}; name the column with the "
            f"JSON of the event {EVENT_COLUMNS[0]}"
        )
    # A detail in a text column is JSON too.
    fields = [
        f"{_quoted(name)} := {_quoted(name)}::JSON"
        if name in ("detail", "eventBody") and kind == "VARCHAR"
        else f"{_quoted(_dashed(name))} := {_quoted(name)}"
        for name, kind in columns.items()
        if name not in DELIVERY_COLUMNS[1:]
    ]
    beside = ["NULL", *(_column(name, columns.get(name, "")) for name in DELIVERY_COLUMNS[1:])]
    return ", ".join([f"to_json(struct_pack({', '.join(fields)}))::VARCHAR", *beside]), True


def _dashed(name: str) -> str:
    """Return the name of an EventBridge field, for a column that has underscores instead."""
    return {"detail_type": "detail-type", "replay_name": "replay-name"}.get(name, name)


def _text(name: str, kind: str) -> str:
    if kind in ("VARCHAR", "JSON"):
        return f"{_quoted(name)}::VARCHAR"
    return f"decode({_quoted(name)})" if kind == "BLOB" else f"to_json({_quoted(name)})::VARCHAR"


def _column(name: str, kind: str) -> str:
    if not kind:
        return "NULL"
    if name == "arrived" and kind.startswith("TIMESTAMP"):
        return f"epoch_ms({_quoted(name)})"
    as_number = "BIGINT" if name in ("arrived", "receives") else "VARCHAR"
    return f"TRY_CAST({_quoted(name)} AS {as_number})"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _line(
    event: str | None,
    id: str | None,
    arrived: int | None,
    channel: str | None,
    receives: int | None,
    *,
    packed: bool,
) -> bytes:
    """Return the event; as a line of our own capture if the row has data about its delivery."""
    text = (event or "").encode("utf-8", "surrogatepass")
    if packed:
        text = _without_nulls(text)
    arrival = Arrived(text, channel or "", id or "", arrived, receives or 0)
    return text if arrival == Arrived(text, "") else line_of(arrival)


def _without_nulls(text: bytes) -> bytes:
    """Return the JSON without null fields: a struct has all fields, also those of other events."""
    if b"null" not in text:
        return text
    try:
        return msgspec.json.encode(_present(msgspec.json.decode(text)))
    except (ValueError, RecursionError):
        return text


def _present(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _present(it) for name, it in value.items() if it is not None}
    return [_present(it) for it in value] if isinstance(value, list) else value
