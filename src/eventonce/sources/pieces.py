"""The bytes of a stream in pieces, as they come; what gzip compressed is unpacked."""

from __future__ import annotations

import select
import zlib
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import IO, Any, Final

from eventonce.errors import EventonceError

CHUNK: Final = 1_000_000
"""Bytes given together: about a thousand events, enough to make a transaction cheap, few enough
that a crash repeats little."""

_GZIP: Final = b"\x1f\x8b"
_GZIP_ALONE: Final = 31
"""The form that zlib is told to expect: gzip, with the longest window there is."""


class Unreadable(EventonceError):
    """The stream cannot be read to its end."""


def unpacked(stream: IO[bytes]) -> Iterator[bytes]:
    """The pieces, none of them empty or longer than a chunk; Unreadable where they break off.

    Waits only for the next piece, and not until it is a whole chunk.
    """
    try:
        pieces = _pieces(stream)
        head = next(pieces, b"")
        if head == _GZIP[:1]:
            head += next(pieces, b"")
        whole = chain([head] if head else [], pieces)
        yield from _unzipped(whole) if head.startswith(_GZIP) else whole
    except (OSError, EOFError, zlib.error) as error:
        raise Unreadable(str(error)) from error


def _unzipped(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """What gzip compressed, and no more of it at once than a chunk."""
    unpack = zlib.decompressobj(_GZIP_ALONE)
    for piece in pieces:
        data = piece
        while data:
            if unpack.eof:
                # Files may be put behind each other, with zeros between them.
                data = data.lstrip(b"\0")
                if not data:
                    break
                unpack = zlib.decompressobj(_GZIP_ALONE)
            given = unpack.decompress(data, CHUNK)
            data = unpack.unused_data if unpack.eof else unpack.unconsumed_tail
            if given:
                yield given
    while given := unpack.decompress(b"", CHUNK):
        yield given
    if not unpack.eof:
        raise EOFError("the compressed data ends too soon")


def _pieces(stream: IO[bytes]) -> Iterator[bytes]:
    while data := _available(stream):
        yield data


def _available(stream: Any) -> bytes:
    """What can be had now, up to a chunk; waits only for the first of it."""
    # Without buffering (`python -u`) the stream is the file itself, whose `read` does not wait.
    read = getattr(stream, "read1", stream.read)
    # A pipe that does not block would say that there is nothing, as if that were its end.
    _is_ready(stream, within=None)
    data: bytes = read(CHUNK) or b""
    while 0 < len(data) < CHUNK and _is_ready(stream):
        more = read(CHUNK - len(data))
        if not more:
            break
        data += more
    return data


def _is_ready(stream: IO[bytes], within: float | None = 0) -> bool:
    try:
        return bool(select.select([stream], [], [], within)[0])
    except (OSError, ValueError):
        # Not something the system can wait for: then what was read is what there is.
        return False
