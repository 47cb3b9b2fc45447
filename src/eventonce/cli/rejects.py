"""What a filter does not pass on: kept in a file with the reason, or said on stderr."""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Iterable
from typing import BinaryIO, Final

import click
import msgspec

from eventonce.cli.table import printable

_CLEAR: Final = "\r\x1b[K"
"""Empties the line that a progress bar stands on."""


class Rejects:
    """Takes what is refused, and keeps or says all of it: nobody else does."""

    def __init__(self, file: BinaryIO | None, *, as_json: bool, clear: bool) -> None:
        """`clear` is whether a progress bar stands on the line that is written to."""
        self._file = file
        self._as_json = as_json
        self._before = _CLEAR if clear and file is None else ""

    def add(self, place: str, status: str, reason: str, event: bytes) -> None:
        """Keep this one."""
        text = event.decode(errors="backslashreplace")
        if self._file is not None or self._as_json:
            entry = {"place": place, "status": status, "reason": reason, "event": text}
            self._write(self._before.encode() + msgspec.json.encode(entry) + b"\n")
        else:
            self._say(f"{place}: {status}: {reason}\n  {text}\n")

    def add_long(self, place: str, pieces: Iterable[bytes], limit: int) -> None:
        """Keep one of any size as it comes; how long it is is known at its end."""
        text = getincrementaldecoder("utf-8")(errors="backslashreplace").decode
        if self._file is None and not self._as_json:
            self._say(f"{place}: invalid: too large: the limit is {limit} bytes\n  ")
            for piece in pieces:
                click.echo(printable(text(piece)), err=True, nl=False)
            click.echo(err=True)
            return
        entry = msgspec.json.encode({"place": place, "status": "invalid", "event": ""})
        self._write(self._before.encode() + entry[:-2])
        size = 0
        try:
            for piece in pieces:
                size += len(piece)
                self._write(msgspec.json.encode(text(piece))[1:-1])
        finally:
            # Also of one that breaks off: the next entry is a line of its own.
            reason = msgspec.json.encode(f"too large: {size} bytes, and the limit is {limit}")
            end = msgspec.json.encode(text(b"", final=True))[1:]
            self._write(end + b',"reason":' + reason + b"}\n")

    def _say(self, text: str) -> None:
        click.echo(f"{self._before}{printable(text)}", err=True, nl=False)

    def _write(self, data: bytes) -> None:
        if self._file is None:
            click.echo(data, err=True, nl=False)
        else:
            self._file.write(data)
            self._file.flush()
