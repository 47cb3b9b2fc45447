"""The events of a capture: JSON Lines, a JSON array, or one document a file; gzip too."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Final, cast

from eventonce.envelope import MAX_BYTES, jsontext, parts
from eventonce.errors import ConfigError, EnvelopeError

_GZIP: Final = b"\x1f\x8b"


def files(paths: Sequence[Path]) -> list[Path]:
    """The files named, and those in the folders named, by name; hidden ones are passed over."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(path.rglob("*"))
            found += [
                one
                for one in inside
                if one.is_file()
                and not any(part.startswith(".") for part in one.relative_to(path).parts)
            ]
        else:
            found.append(path)
    return found


class Capture:
    """Gives the events of some files one after the other, each as its bytes."""

    def __init__(self, paths: Sequence[Path], *, longest: int = MAX_BYTES) -> None:
        self._files = files(paths)
        self._longest = longest
        self._before = 0
        self._open: IO[bytes] | None = None
        try:
            self.size = sum(path.stat().st_size for path in self._files)
        except OSError as error:
            raise ConfigError(f"the capture cannot be read: {error}") from error

    @property
    def position(self) -> int:
        """Bytes of the files that have been read."""
        stream = self._open
        return self._before + (0 if stream is None or stream.closed else stream.tell())

    def __iter__(self) -> Iterator[bytes]:
        """One event's bytes after the other; of too long a line one byte more than may be.

        A file that cannot be read to its end does not stop the others: that is said after them.
        """
        broken: list[str] = []
        for path in self._files:
            try:
                with path.open("rb") as stream:
                    self._open = stream
                    yield from self._events(_unpacked(stream))
                    self._before += stream.tell()
            except (OSError, EOFError, zlib.error) as error:
                broken.append(f"{path} cannot be read to its end: {error}")
            finally:
                self._open = None
        if broken:
            raise ConfigError("; ".join(broken))

    def _events(self, stream: IO[bytes]) -> Iterator[bytes]:
        first = b""
        while not first.strip():
            first = stream.readline(self._longest + 1)
            if not first:
                return
        if first.lstrip().startswith(b"["):
            yield from _listed(first + stream.read())
        elif _is_json(first):
            yield from self._lines(first, stream)
        else:
            # One document over many lines, or lines of which the first is broken.
            rest = stream.read(max(0, self._longest - len(first)))
            if _is_json(first + rest) and not stream.peek(1):  # type: ignore[attr-defined]
                yield from _listed(first + rest)
            else:
                both = cast("IO[bytes]", io.BufferedReader(_Joined(rest, stream)))
                yield from self._lines(first, both)

    def _lines(self, line: bytes, stream: IO[bytes]) -> Iterator[bytes]:
        while line:
            whole = line.endswith(b"\n")
            if line.strip():
                yield line.rstrip(b"\r\n")
            while not whole and len(line) > self._longest:
                # The end of a line that was given as far as it may be long.
                more = stream.readline(self._longest + 1)
                whole = more.endswith(b"\n") or not more
            line = stream.readline(self._longest + 1)


class _Joined(io.RawIOBase):
    """Some bytes, and then a stream."""

    def __init__(self, first: bytes, then: IO[bytes]) -> None:
        self._first = io.BytesIO(first)
        self._then = then

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._first.read(len(buffer)) or self._then.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


def _unpacked(stream: IO[bytes]) -> IO[bytes]:
    packed = stream.peek(2)[:2] == _GZIP  # type: ignore[attr-defined]
    return cast("IO[bytes]", gzip.GzipFile(fileobj=stream)) if packed else stream


def _listed(document: bytes) -> list[bytes]:
    """The events of one document: an array's elements, a batch's records, or itself."""
    return [part if isinstance(part, bytes) else bytes(part) for part in parts(document)]


def _is_json(data: bytes) -> bool:
    try:
        jsontext.check(data.removeprefix(jsontext.BYTE_ORDER_MARK))
    except EnvelopeError:
        return False
    return True
