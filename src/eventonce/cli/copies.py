"""`filter --copies`: each copy with its original and its cause, as JSON Lines.

The originals lie in a temporary database, so that memory does not grow with the input. Its file has
no name: it is gone with the process, however that ends.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import BinaryIO, Final

import msgspec

from eventonce.cli.event_filter import Decided
from eventonce.cli.output import write_whole
from eventonce.errors import EventonceError
from eventonce.study.arrivals import arrival
from eventonce.study.copies import EARLY, NAME_FIELDS, Row, cause, gap_between, nearest, row_of
from eventonce.types import effect_id

_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"

_TABLES: Final = """
    PRAGMA journal_mode = OFF;
    PRAGMA synchronous = OFF;
    CREATE TABLE originals (key BLOB PRIMARY KEY, place TEXT, event BLOB);
    CREATE TABLE lines (
        effect TEXT, late INTEGER, message INTEGER, id INTEGER, content INTEGER, line BLOB
    );
    CREATE INDEX early ON lines (effect) WHERE NOT late;
    CREATE INDEX late_by_message ON lines (effect, message) WHERE late;
    CREATE INDEX late_by_id ON lines (effect, id) WHERE late;
    CREATE INDEX late_by_content ON lines (effect, content) WHERE late;
"""


class CopiesFile:
    """The writer of copies; it knows only the lines of this run."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._lines = sqlite3.connect("", isolation_level=None)
        self._lines.executescript(_TABLES)
        self._number = 0

    def add(
        self, decided: Sequence[Decided], lines: Sequence[bytes], place: Callable[[int], str]
    ) -> None:
        """Write the copies among the lines of a batch, in the order of the lines."""
        try:
            self._add(decided, lines, place)
        except (OSError, sqlite3.Error) as error:
            raise EventonceError(
                f"{self._out.name}, or the temporary file of the originals, cannot be written: "
                f"{error}. Make room, or name another folder in TMPDIR, and start again"
            ) from error

    def _add(
        self, decided: Sequence[Decided], lines: Sequence[bytes], place: Callable[[int], str]
    ) -> None:
        self._lines.execute("BEGIN")
        for at, claim, status in sorted(decided, key=lambda one: one[0]):
            self._number += 1
            event = lines[at].removeprefix(_BYTE_ORDER_MARK)
            effect = effect_id(claim)
            row = row_of(arrival(event), self._number)
            assert row is not None, "the filter has read it"
            late = False
            if status == "done":
                values = (claim.key, place(at), event)
                self._lines.execute("REPLACE INTO originals VALUES (?, ?, ?)", values)
            else:
                earlier = self._earlier(effect, row)
                late = len(earlier) >= EARLY
                self._write(claim.key, earlier, status, place(at), event, row)
            named = (effect, late, row.message, row.id, row.content, msgspec.msgpack.encode(row))
            self._lines.execute("INSERT INTO lines VALUES (?, ?, ?, ?, ?, ?)", named)
        self._lines.execute("COMMIT")

    def close(self) -> None:
        """Delete the temporary file of this run."""
        self._lines.close()

    def _earlier(self, effect: str, row: Row) -> list[Row]:
        """Return the earlier lines of this effect that this line may be a copy of."""
        found = self._lines.execute(
            f"SELECT line FROM lines WHERE effect = ? AND NOT late ORDER BY rowid LIMIT {EARLY}",  # noqa: S608  ours
            (effect,),
        ).fetchall()
        for name in NAME_FIELDS if len(found) == EARLY else ():
            found += self._lines.execute(
                f"SELECT line FROM lines WHERE late AND effect = ? AND {name} = ? LIMIT 1",  # noqa: S608
                (effect, getattr(row, name)),
            )
        return [Row(*msgspec.msgpack.decode(line)) for (line,) in found]

    def _write(
        self, key: bytes, earlier: list[Row], status: str, place: str, event: bytes, row: Row
    ) -> None:
        found = self._lines.execute("SELECT place, event FROM originals WHERE key = ?", (key,))
        original = found.fetchone()
        if status == "unchanged" and not earlier and original is not None:
            told = row_of(arrival(original[1]), 0)
            earlier = [] if told is None else [told]
        document = {
            "status": status,
            "cause": cause(nearest(row, earlier), row) if earlier else None,
            "gap": gap_between(earlier[0], row) if earlier else None,
            "key": key.hex(),
            "copy": {"place": place, "event": msgspec.Raw(event)},
            "original": original and {"place": original[0], "event": msgspec.Raw(original[1])},
        }
        write_whole(self._out, msgspec.json.encode(document) + b"\n")
