"""`filter --copies`: each copy with its original and its cause, as JSON Lines.

The originals lie in a temporary database, so that memory does not grow with the input.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from tempfile import TemporaryDirectory
from typing import BinaryIO, Final

import msgspec

from eventonce.cli.event_filter import Decided
from eventonce.cli.output import write_whole
from eventonce.errors import EventonceError
from eventonce.study.arrivals import arrival
from eventonce.study.copies import Row, cause, gap_between, nearest, row_of
from eventonce.types import effect_id

_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"

_TABLES: Final = """
    PRAGMA journal_mode = OFF;
    PRAGMA synchronous = OFF;
    CREATE TABLE originals (key BLOB PRIMARY KEY, place TEXT, event BLOB);
    CREATE TABLE lines (effect TEXT, line BLOB);
    CREATE INDEX effects ON lines (effect);
"""


class CopiesFile:
    """Writes the copies; knows the lines of this run, and of no run before it."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._folder = TemporaryDirectory(prefix="eventonce-copies-")
        self._lines = sqlite3.connect(f"{self._folder.name}/lines.db", isolation_level=None)
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
                f"{self._out.name}, or {self._folder.name} with the originals, cannot be written: "
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
            if status == "done":
                values = (claim.key, place(at), event)
                self._lines.execute("REPLACE INTO originals VALUES (?, ?, ?)", values)
            else:
                self._write(claim.key, effect, status, place(at), event, row)
            packed = msgspec.msgpack.encode(row)
            self._lines.execute("INSERT INTO lines VALUES (?, ?)", (effect, packed))
        self._lines.execute("COMMIT")

    def close(self) -> None:
        """Remove what was kept for the time of the run."""
        self._lines.close()
        self._folder.cleanup()

    def _write(
        self, key: bytes, effect: str, status: str, place: str, event: bytes, row: Row
    ) -> None:
        found = self._lines.execute("SELECT place, event FROM originals WHERE key = ?", (key,))
        original = found.fetchone()
        same = self._lines.execute(
            "SELECT line FROM lines WHERE effect = ? ORDER BY rowid", (effect,)
        )
        earlier = [Row(*msgspec.msgpack.decode(line)) for (line,) in same]
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
