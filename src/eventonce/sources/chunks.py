"""The events of a stream of bytes, many at once, and from a pipe as soon as they come.

JSON Lines, and what else people capture: an array, a document over many lines, documents one after
the other without a newline. `pieces` reads the bytes, `documents` cuts them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import IO, Final, NamedTuple

import msgspec

from eventonce.envelope import jsontext, parts
from eventonce.errors import EnvelopeError
from eventonce.sources.brackets import Brackets
from eventonce.sources.documents import Documents
from eventonce.sources.pieces import unpacked

_FOLLOWING: Final = b"\n,{["
_MANY: Final = re.compile(rb'\s*+(?:\{\s*+"(Records|Messages)"\s*+:\s*+)?+(?=\[)')
"""How a document of many events begins, up to the array they stand in."""
_FAULT: Final = re.compile(r"\(byte (\d+)\)")


class Chunk(NamedTuple):
    """Some events, and where they stand: the first of them at a number, between two texts."""

    before: str
    first: int
    after: str
    events: list[bytes]

    @property
    def by_line(self) -> bool:
        """Whether each of them is a line of the stream."""
        return not self.after

    def place(self, at: int) -> str:
        """Where this one stands, as it is written behind the file's name: `:12`, or `[11]`."""
        return f"{self.before}{self.first + at}{self.after}"

    def apart(self) -> Iterator[Chunk]:
        """The same events, each batch among them as the events in it."""
        done = 0
        for at, event in enumerate(self.events):
            found = inside(event)
            if found:
                yield self._replace(first=self.first + done, events=self.events[done:at])
                yield Chunk(f"{self.place(at)}[", 0, "]", found)
                done = at + 1
        yield self._replace(first=self.first + done, events=self.events[done:])


def inside(event: bytes) -> list[bytes]:
    """The events in this one if it is a list or a batch of them; none if it is an event itself."""
    found = parts(event)
    return found if found != [event] else []


class Long:
    """An event that is longer than may be: piece by piece, for it may be of any size."""

    def __init__(
        self, place: str, first: bytes, more: Iterator[bytes], end: Callable[[bytes], int]
    ) -> None:
        self.place = place
        self.left = b""
        """What stands behind it, once it was read to its end."""
        self._pieces = self._read(first, more, end)

    def __iter__(self) -> Iterator[bytes]:
        """What was not given yet: nothing of it is kept."""
        return self._pieces

    def _read(
        self, first: bytes, more: Iterator[bytes], end: Callable[[bytes], int]
    ) -> Iterator[bytes]:
        yield first
        for data in more:
            at = end(data)
            if at >= 0:
                self.left = data[at:]
                yield data[:at]
                return
            yield data


def chunks(stream: IO[bytes], longest: int) -> Iterator[Chunk | Long]:
    """The events of a stream in their order, and each one that is too long by itself.

    What is not read of that one is passed over when the next is asked for.
    """
    pieces = unpacked(stream)
    head = next(pieces, b"")
    ended = not head
    while (are_lines := _are_lines(head, longest, ended=ended)) is None:
        more = next(pieces, b"")
        head, ended = head + more, not more
    if are_lines:
        yield from _lines(_again(head, pieces), longest)
    else:
        head = head.removeprefix(jsontext.BYTE_ORDER_MARK)
        yield from _documents(_again(head, pieces), longest)


def _are_lines(head: bytes, longest: int, *, ended: bool) -> bool | None:
    """Whether a stream that begins like this is JSON Lines; None where more must be seen."""
    if head and head != jsontext.BYTE_ORDER_MARK and jsontext.BYTE_ORDER_MARK.startswith(head):
        return ended or None
    text = head.removeprefix(jsontext.BYTE_ORDER_MARK).lstrip()
    if not text and not ended and len(head) <= longest + len(jsontext.BYTE_ORDER_MARK):
        return None
    if not text.startswith(b"{"):
        return not text.startswith(b"[")
    line, newline, more = text.partition(b"\n")
    if (newline or ended) and _is_json(line):
        return True
    # A document over many lines, several on one, or lines of which the first is broken.
    end = Brackets().end(text)
    behind = text[end:].lstrip(b" \t\r")[:1]
    if end >= 0 and (behind or ended):
        return not (_is_json(text[:end]) and behind in _FOLLOWING)
    if not _may_go_on(text):
        return True
    return not more.strip() if ended or len(text) > longest else None


def _is_json(data: bytes) -> bool:
    """Whether this is one JSON value of those that we accept."""
    try:
        jsontext.check(data)
    except EnvelopeError:
        return False
    return True


def _may_go_on(text: bytes) -> bool:
    """Whether this may be the beginning of JSON: a pipe shall not wait for what cannot come."""
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError) as error:
        fault = _FAULT.search(str(error))
        return fault is None or int(fault[1]) >= len(text)
    return True


def _lines(pieces: Iterator[bytes], longest: int) -> Iterator[Chunk | Long]:
    number, rest = 1, b""
    while data := next(pieces, b""):
        lines = data.split(b"\n")
        lines[0] = rest + lines[0]
        rest = lines.pop()
        if lines:
            yield Chunk(":", number, "", lines)
            number += len(lines)
        if len(rest) > longest:
            long = Long(f":{number}", rest, pieces, lambda data: data.find(b"\n"))
            yield from _opened(long, rest, longest)
            _exhaust(long)
            number, rest = number + 1, b""
            pieces = _again(long.left[1:], pieces)
    if rest:
        yield Chunk(":", number, "", [rest])


def _documents(
    pieces: Iterator[bytes], longest: int, documents: Documents | None = None, within: str = ""
) -> Iterator[Chunk | Long]:
    number, documents = 0, documents or Documents()
    while data := next(pieces, b""):
        found = documents.feed(data)
        if found:
            yield Chunk(f"{within}[", number, "]", found)
            number += len(found)
        if documents.follows is not None and len(documents.rest) > longest:
            head = documents.rest
            long = Long(f"{within}[{number}]", head, pieces, documents.follows.end)
            documents.forget()
            yield from _opened(long, head, longest)
            _exhaust(long)
            number += 1
            pieces = _again(long.left, pieces)
    if documents.rest:
        yield Chunk(f"{within}[", number, "]", [documents.rest])


def _opened(long: Long, head: bytes, longest: int) -> Iterator[Chunk | Long]:
    """The events of a document that is too long for one event and holds many; else itself.

    It is read as a stream: the limit is each event's.
    """
    many = _MANY.match(head)
    if many is None or not _is_batch(many[1], head):
        yield long
        return
    pieces = iter(long)
    next(pieces)
    elements = Documents(one_list=True)
    yield from _documents(_again(head[many.end() :], pieces), longest, elements, long.place)


def _is_batch(name: bytes | None, head: bytes) -> bool:
    """Whether `envelope` would take it apart too, as far as its beginning shows."""
    match name:
        case b"Records":
            return b'"s3"' not in head
        case b"Messages":
            return b'"ReceiptHandle"' in head
    return True


def _exhaust(pieces: Iterable[bytes]) -> None:
    for _ in pieces:
        pass


def _again(data: bytes, pieces: Iterator[bytes]) -> Iterator[bytes]:
    return chain([data], pieces) if data else pieces
