"""Exports of CloudWatch Logs to S3: each line has a time and a message, which may continue over
more lines. Each message becomes a line of our own capture with its time of arrival, unless a tap
wrote it as such a line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import chain
from typing import Final

from eventonce.envelope.captured import Arrived, line_of, written_line
from eventonce.sources.json_stream import Chunk, Long

_STAMP: Final = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z) ")


def opened(found: Iterator[Chunk | Long], longest: int) -> Iterator[Chunk | Long]:
    """Yield the same events; of an export, its messages."""
    first = next(found, None)
    if first is None:
        return
    whole = chain([first], found)
    line = next(iter(first.events), b"") if isinstance(first, Chunk) else b""
    yield from _messages(whole, longest) if _STAMP.match(line) else whole


def _messages(lines: Iterable[Chunk | Long], longest: int) -> Iterator[Chunk | Long]:
    """Yield the messages of these lines, each in place of its first line; others are empty."""
    first, held = 1, list[bytes]()
    for chunk in lines:
        if isinstance(chunk, Long):
            yield _chunk(first, held)
            held = []
            yield chunk
            continue
        if not held:
            first = chunk.first
        held += chunk.events
        # The last message may continue in the next piece.
        whole = max((at for at, line in enumerate(held) if _STAMP.match(line)), default=0)
        if sum(map(len, held[whole:])) > longest:
            whole = len(held)
        yield _chunk(first, held[:whole])
        first, held = first + whole, held[whole:]
    yield _chunk(first, held)


def _chunk(first: int, lines: list[bytes]) -> Chunk:
    events = [b""] * len(lines)
    begun, arrived, texts = 0, 0, list[bytes]()
    for at, line in enumerate(lines):
        stamp = _STAMP.match(line)
        if stamp:
            if texts:
                events[begun] = _line(arrived, texts)
            begun, arrived, texts = at, _instant(stamp[1]), [line[stamp.end() :]]
        else:
            texts.append(line)
    if texts:
        events[begun] = _line(arrived, texts)
    return Chunk(":", first, "", events)


def _instant(stamp: bytes) -> int:
    try:
        return int(datetime.fromisoformat(stamp.decode()).timestamp() * 1000)
    except ValueError:
        return 0


def _line(arrived: int, texts: list[bytes]) -> bytes:
    message = b"\n".join(texts)
    return written_line(message) or line_of(Arrived(message, "", arrived=arrived))
