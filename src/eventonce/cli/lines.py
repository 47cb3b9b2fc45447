"""Lines out of files and pipes: many at once from a file, and from a pipe as soon as they come."""

from __future__ import annotations

import select
from collections.abc import Iterator, Sequence
from typing import IO, Any, Final, NamedTuple

import click

CHUNK: Final = 1_000_000
"""Bytes of lines given together: about a thousand events, enough to make a transaction cheap, few
enough that a crash repeats little."""


class Chunk(NamedTuple):
    """Some lines without their newlines, and where the first of them stands."""

    file: str
    first: int
    lines: list[bytes]


def chunks(files: Sequence[str], longest: int) -> Iterator[Chunk]:
    """The lines of all files, or of stdin; of too long a line one byte more than `longest`."""
    for name in files or ["-"]:
        with click.open_file(name, "rb") as stream:
            yield from _chunks(stream, "stdin" if name == "-" else name, longest)


def _chunks(stream: IO[bytes], name: str, longest: int) -> Iterator[Chunk]:
    number, rest, skipping = 1, b"", False
    while data := _available(stream):
        if skipping:
            # The end of a line that was given as far as it may be long.
            _, newline, data = data.partition(b"\n")
            skipping = not newline
        lines = data.split(b"\n")
        lines[0] = rest + lines[0]
        rest = lines.pop()
        if len(rest) > longest:
            lines.append(rest[: longest + 1])
            rest, skipping = b"", True
        if lines:
            yield Chunk(name, number, lines)
            number += len(lines)
    if rest:
        yield Chunk(name, number, [rest])


def _available(stream: Any) -> bytes:
    """What can be had now, up to a chunk; waits only for the first of it."""
    # Without buffering (`python -u`) the stream is the file itself, whose `read` does not wait.
    read = getattr(stream, "read1", stream.read)
    data: bytes = read(CHUNK)
    while 0 < len(data) < CHUNK and _is_ready(stream):
        more = read(CHUNK - len(data))
        if not more:
            break
        data += more
    return data


def _is_ready(stream: IO[bytes]) -> bool:
    try:
        return bool(select.select([stream], [], [], 0)[0])
    except (OSError, ValueError):
        # Not something the system can wait for: then what was read is what there is.
        return False
