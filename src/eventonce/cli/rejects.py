"""What a filter does not pass on: all of it in a file with the reason, or some on stderr."""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Iterable
from typing import BinaryIO, Final

import click
import msgspec

from eventonce.cli.table import printable

_CLEAR: Final = "\r\x1b[K"
"""Empties the line that a progress bar stands on."""


SHOWN: Final = 20
"""Rejects that stderr shows; the others are counted there, and `--rejects` keeps all."""

LONGEST: Final = 500
"""Characters that stderr shows of one."""


class Rejects:
    """Takes what is refused: all of it, whole, into a file, or the first of it onto stderr."""

    def __init__(self, file: BinaryIO | None, *, as_json: bool, clear: bool) -> None:
        """`clear` is whether a progress bar stands on the line that is written to."""
        self._file = file
        self._as_json = as_json
        self._before = _CLEAR if clear else ""
        self._shown = 0

    def add(self, place: str, status: str, reason: str, event: bytes) -> None:
        """Keep this one."""
        if self._file is None:
            self._show(place, status, reason, event[: 4 * LONGEST], len(event))
        else:
            text = event.decode(errors="backslashreplace")
            entry = {"place": place, "status": status, "reason": reason, "event": text}
            self._write(self._file, msgspec.json.encode(entry) + b"\n")

    def add_long(self, place: str, pieces: Iterable[bytes], limit: int) -> None:
        """Keep one of any size as it comes; how long it is is known at its end."""
        if self._file is None:
            begin, size = b"", 0
            for piece in pieces:
                begin += piece[: 4 * LONGEST - len(begin)]
                size += len(piece)
            self._show(place, "invalid", _too_large(size, limit), begin, size)
            return
        text = getincrementaldecoder("utf-8")(errors="backslashreplace").decode
        entry = msgspec.json.encode({"place": place, "status": "invalid", "event": ""})
        self._write(self._file, entry[:-2])
        size = 0
        try:
            for piece in pieces:
                size += len(piece)
                self._write(self._file, msgspec.json.encode(text(piece))[1:-1])
        finally:
            # Also of one that breaks off: the next entry is a line of its own.
            reason = msgspec.json.encode(_too_large(size, limit))
            end = msgspec.json.encode(text(b"", final=True))[1:]
            self._write(self._file, end + b',"reason":' + reason + b"}\n")

    def close(self) -> None:
        """Say how many were not shown."""
        left = self._shown - SHOWN
        if left <= 0:
            return
        if self._as_json:
            entry = {"not_shown": left, "hint": "--rejects FILE keeps all of them, whole"}
            click.echo(msgspec.json.encode(entry), err=True)
        else:
            click.echo(f"and {left} more: --rejects FILE keeps all, whole", err=True)

    def _show(self, place: str, status: str, reason: str, begin: bytes, size: int) -> None:
        self._shown += 1
        if self._shown > SHOWN:
            return
        text = begin.decode(errors="backslashreplace")
        if size > len(begin) or len(text) > LONGEST:
            text = f"{text[:LONGEST]}… ({size} bytes)"
        if self._as_json:
            entry = {"place": place, "status": status, "reason": reason, "event": text}
            said = msgspec.json.encode(entry).decode()
        else:
            said = printable(f"{place}: {status}: {reason}\n  {text}")
        click.echo(f"{self._before}{said}", err=True)

    def _write(self, file: BinaryIO, data: bytes) -> None:
        file.write(data)
        file.flush()


def _too_large(size: int, limit: int) -> str:
    return f"too large: {size} bytes, and the limit is {limit}"
