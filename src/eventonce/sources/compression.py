"""Compressed files: this module alone reads and writes gzip and zstd.

The first bytes of a file say how it is read; the ending of its name says how it is written.
"""

from __future__ import annotations

import gzip
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import IO, Any, Final, cast

from eventonce.errors import EventonceError, module_of

PIECE_BYTES: Final = 2_000_000
"""The most bytes of one piece: about two thousand events, enough to make a transaction cheap, few
enough that a crash repeats little."""


_GZIP: Final = b"\x1f\x8b"
_ZSTD: Final = b"\x28\xb5\x2f\xfd"
_GZIP_ONLY: Final = 31
"""The `wbits` of zlib for gzip with the largest window."""
_LAYERS: Final = 2
"""The most layers of compression: Firehose compresses data that CloudWatch Logs compressed."""


class Unreadable(EventonceError):
    """The stream cannot be read to its end."""


def written(path: Path) -> IO[bytes]:
    """Open the file for writing; `.gz` and `.zst` are compressed."""
    if path.suffix == ".gz":
        return cast("IO[bytes]", gzip.open(path, "wb"))
    if path.suffix == ".zst":
        return cast("IO[bytes]", _zstd().open(path, "wb"))
    return path.open("wb")


def packer(path: Path) -> Callable[[bytes], bytes]:
    """Return a function that compresses bytes for appending to the file. Each result is a stream of
    its own, which every reader continues with, so that a crash damages only the last one."""
    if path.suffix == ".gz":
        return gzip.compress
    if path.suffix == ".zst":
        return cast("Callable[[bytes], bytes]", _zstd().compress)
    return bytes


def decompressed(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the bytes, decompressed if they are compressed, in pieces of at most `PIECE_BYTES`;
    Unreadable if the data is cut off."""
    for _ in range(_LAYERS):
        head = next(pieces, b"")
        while head and any(len(head) < len(it) and it.startswith(head) for it in (_GZIP, _ZSTD)):
            more = next(pieces, b"")
            if not more:
                break
            head += more
        pieces = chain([head], pieces) if head else pieces
        if head.startswith(_GZIP):
            pieces = _unpacked(pieces, _Gzip, zlib.error)
        elif head.startswith(_ZSTD):
            zstd = _zstd()
            pieces = _unpacked(pieces, zstd.ZstdDecompressor, zstd.ZstdError)
        else:
            break
    return pieces


def _unpacked(
    pieces: Iterable[bytes], new: Callable[[], Any], broken: type[Exception]
) -> Iterator[bytes]:
    unpack = new()
    for piece in pieces:
        data = piece
        while True:
            if unpack.eof:
                # Compressed files may be concatenated, with zeros between them.
                data = data.lstrip(b"\0")
                if not data:
                    break
                unpack = new()
            try:
                given = unpack.decompress(data, PIECE_BYTES)
            except broken as error:
                raise Unreadable(str(error)) from error
            data = unpack.unused_data
            if given:
                yield given
            if not data and (unpack.eof or unpack.needs_input):
                break
    if not unpack.eof:
        raise Unreadable("the compressed data ends too soon")


class _Gzip:
    """zlib's decompressor with the interface of zstd's: it keeps input that it has not used yet."""

    def __init__(self) -> None:
        self._unpack = zlib.decompressobj(_GZIP_ONLY)
        self._full = False

    @property
    def eof(self) -> bool:
        return self._unpack.eof

    @property
    def unused_data(self) -> bytes:
        return self._unpack.unused_data

    @property
    def needs_input(self) -> bool:
        return not self._unpack.unconsumed_tail and not self._full

    def decompress(self, data: bytes, most: int) -> bytes:
        given = self._unpack.decompress(self._unpack.unconsumed_tail + data, most)
        self._full = len(given) == most
        return given


def _zstd() -> Any:
    name = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
    return module_of("study", name, "zstd needs")
