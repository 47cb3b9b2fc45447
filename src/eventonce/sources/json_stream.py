"""JSON events of a stream of bytes, many at once, and from a pipe as soon as they arrive.

The stream is JSON Lines, an array, a document over many lines, or documents without a newline
between them; plain or compressed. Input that is not JSON is yielded too, each piece with its place:
nothing is lost.
"""

from __future__ import annotations

import re
import select
from collections.abc import Callable, Iterator
from itertools import chain
from typing import IO, Any, Final, NamedTuple

import msgspec

from eventonce.envelope import elements, jsontext
from eventonce.envelope.captured import OWN_LINE
from eventonce.sources.compression import PIECE_BYTES, Unreadable, decompressed

_ARRAY_OF_EVENTS: Final = re.compile(rb'\s*+(?:\{\s*+"(Records|Messages|events)"\s*+:\s*+)?(?=\[)')
"""The beginning of a document of many events, up to the array of the events."""
_BETWEEN: Final = re.compile(rb"[\s,]*+")
_FOLLOWING: Final = b"\n,{["
_ERROR_PLACE: Final = re.compile(r"\(byte (\d+)\)")

_NESTED: Final = (
    re.compile(rb'[^"{}\[\]]*+(?:"(?:[^"\\]++|\\.)*+"[^"{}\[\]]*+)*', re.DOTALL),
    re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL),
)
"""The bytes of an object or array that say nothing about its end: outside a string, and inside a
string that a piece cuts off. No string is in a possessive group: before Python 3.11.5, such a group
kept the bytes of a last try that failed, and so took the beginning of a string that is cut off."""

_STRAY: Final = (
    re.compile(rb'[^"{\[\],\n]*+(?:"(?:[^"\\\n]++|\\[^\n])*+"[^"{\[\],\n]*+)*'),
    re.compile(rb'(?:[^"\\\n]++|\\[^\n])*+'),
)
"""The same bytes of any other value, which ends with its line."""


class Chunk(NamedTuple):
    """Some events, and the place of each: the text `before`, the number of the event from `first`
    on, and the text `after`."""

    before: str
    first: int
    after: str
    events: list[bytes]

    @property
    def by_line(self) -> bool:
        """Whether each event is a line of the stream."""
        return not self.after

    def place(self, at: int) -> str:
        """Return the place of this event, to follow the file's name: `:12`, or `[11]`."""
        return f"{self.before}{self.first + at}{self.after}"

    def apart(self) -> Iterator[Chunk]:
        """Yield the same events, with each batch split into its events."""
        done = 0
        for at, event in enumerate(self.events):
            found = inside(event)
            if found:
                yield self._replace(first=self.first + done, events=self.events[done:at])
                yield Chunk(f"{self.place(at)}[", 0, "]", found)
                done = at + 1
        yield self._replace(first=self.first + done, events=self.events[done:])


class Long:
    """An event that is longer than the limit, read piece by piece: it may have any size."""

    def __init__(
        self, place: str, first: bytes, more: Iterator[bytes], end: Callable[[bytes], int]
    ) -> None:
        self.place = place
        self.left = b""
        """The bytes after the event, once it was read to its end."""
        self._pieces = self._read(first, more, end)

    def __iter__(self) -> Iterator[bytes]:
        """Return the pieces that were not read yet; no piece is kept."""
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


def inside(event: bytes) -> list[bytes]:
    """Return the events of a list or a batch; none if it is itself an event."""
    # A line of a capture or a dead letter is one event; its beginning shows that without parsing.
    if event.startswith(OWN_LINE):
        return []
    found = elements(event)
    if found == [event]:
        return []
    try:
        return [it if isinstance(it, bytes) else msgspec.json.encode(it) for it in found]
    except UnicodeEncodeError:
        # Bytes of a record that are not text: the batch stays as it is, and is refused.
        return []


def chunks(stream: IO[bytes], longest: int) -> Iterator[Chunk | Long]:
    """Yield the events of a stream in order; an event of more than `longest` bytes is a `Long`.

    Pieces of a `Long` that the caller did not read are skipped before the next event.
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
        yield from _documents(_again(head, pieces), longest, _Documents())


def unpacked(stream: IO[bytes]) -> Iterator[bytes]:
    """Yield the decompressed bytes in pieces, none of them empty or longer than `PIECE_BYTES`;
    Unreadable if they break off.

    Waits only for the next bytes, not until a piece is full.
    """
    try:
        yield from decompressed(iter(lambda: _available(stream), b""))
    except OSError as error:
        raise Unreadable(str(error)) from error


def _available(stream: Any) -> bytes:
    """Return the bytes that are available, up to a piece; waits only for the first byte."""
    # Without buffering (`python -u`) the stream is the file itself, whose `read` does not wait.
    read = getattr(stream, "read1", stream.read)
    # A non-blocking pipe without data would look as if it had ended.
    _is_ready(stream, within=None)
    data: bytes = read(PIECE_BYTES) or b""
    while 0 < len(data) < PIECE_BYTES and _is_ready(stream):
        more = read(PIECE_BYTES - len(data))
        if not more:
            break
        data += more
    return data


def _is_ready(stream: IO[bytes], within: float | None = 0) -> bool:
    try:
        return bool(select.select([stream], [], [], within)[0])
    except (OSError, ValueError):
        # The system cannot wait for this stream: the bytes that were read are all there are now.
        return False


def _are_lines(head: bytes, longest: int, *, ended: bool) -> bool | None:
    """Whether a stream that begins like this is JSON Lines; None if more bytes are needed."""
    if head and head != jsontext.BYTE_ORDER_MARK and jsontext.BYTE_ORDER_MARK.startswith(head):
        return ended or None
    text = head.removeprefix(jsontext.BYTE_ORDER_MARK).lstrip()
    if not text and not ended and len(head) <= longest + len(jsontext.BYTE_ORDER_MARK):
        return None
    if not text.startswith(b"{"):
        return not text.startswith(b"[")
    line, newline, more = text.partition(b"\n")
    if (newline or ended) and jsontext.is_json(line):
        return True
    # A document over many lines, several documents on one line, or a first line that is broken.
    end = _Value(text).end(text)
    behind = text[end:].lstrip(b" \t\r")[:1]
    if end >= 0 and (behind or ended):
        return not (jsontext.is_json(text[:end]) and behind in _FOLLOWING)
    if not _may_go_on(text):
        return True
    return not more.strip() if ended or len(text) > longest else None


def _may_go_on(text: bytes) -> bool:
    """Whether this may be the beginning of JSON: otherwise, waiting for more bytes is in vain."""
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError) as error:
        place = _ERROR_PLACE.search(str(error))
        return place is None or int(place[1]) >= len(text)
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
            number, rest = number + 1, b""
            pieces = _again(long.left[1:], pieces)
    if rest:
        yield Chunk(":", number, "", [rest])


def _documents(
    pieces: Iterator[bytes], longest: int, documents: _Documents, within: str = ""
) -> Iterator[Chunk | Long]:
    number = 0
    while data := next(pieces, b""):
        found = documents.feed(data)
        if found:
            yield Chunk(f"{within}[", number, "]", found)
            number += len(found)
        if documents.value is not None and len(documents.rest) > longest:
            head = documents.rest
            long = Long(f"{within}[{number}]", head, pieces, documents.value.end)
            documents.forget()
            yield from _opened(long, head, longest)
            number += 1
            pieces = _again(long.left, pieces)
    if documents.rest:
        yield Chunk(f"{within}[", number, "]", [documents.rest])


def _opened(long: Long, head: bytes, longest: int) -> Iterator[Chunk | Long]:
    """Yield the events of a document that is longer than the limit and holds many events; otherwise
    the `Long` itself.

    The document is read as a stream, to its end: the limit applies to each event.
    """
    many = _ARRAY_OF_EVENTS.match(head)
    if many is None or not _is_batch(many[1], head):
        yield long
    else:
        pieces = iter(long)
        next(pieces)
        elements = _Documents(one_list=True)
        yield from _documents(_again(head[many.end() :], pieces), longest, elements, long.place)
    for _ in long:
        pass


def _is_batch(name: bytes | None, head: bytes) -> bool:
    """Whether `envelope` would split it too, by its beginning."""
    match name:
        case b"Records":
            return b'"s3"' not in head
        case b"Messages":
            return b'"ReceiptHandle"' in head
        case b"events":
            return b'"ingestionTime"' in head
    return True


def _again(data: bytes, pieces: Iterator[bytes]) -> Iterator[bytes]:
    return chain([data], pieces) if data else pieces


class _Documents:
    """JSON documents, cut out of pieces of bytes; of an array, its elements."""

    def __init__(self, *, one_list: bool = False) -> None:
        """`one_list` is for the elements of one array: the bytes after the array are skipped."""
        self.rest = b""
        """The document that has begun and not ended."""
        self.value: _Value | None = None
        """The search for the end of `rest`."""
        self._listed = False
        self._one_list = one_list
        self._ended = False

    def feed(self, data: bytes) -> list[bytes]:
        """Return the documents that end in this piece."""
        found: list[bytes] = []
        at = 0
        if self.value is not None:
            at = self.value.end(data)
            if at < 0:
                self.rest += data
                return found
            found.append(self.rest + data[:at])
            self.forget()
        while not self._ended and (at := _skip(_BETWEEN, data, at)) < len(data):
            first = data[at : at + 1]
            if first == (b"]" if self._listed else b"["):
                self._ended = self._one_list and self._listed
                self._listed = not self._listed
                at += 1
                continue
            value = _Value(first)
            end = at + 1 if first == b"]" else value.end(data, at)
            if end < 0:
                self.rest, self.value = data[at:], value
                break
            found.append(data[at:end])
            at = end
        return found

    def forget(self) -> None:
        """Reset, as after the end of a document."""
        self.rest, self.value = b"", None


class _Value:
    """The search for the end of one value by its brackets and quotes: the value may come in pieces,
    and need not be valid.

    An object or an array ends after its closing bracket. Any other value is stray: it ends before a
    comma, a bracket or a newline.
    """

    __slots__ = ("_depth", "_escaped", "_quoted", "_skipped")

    def __init__(self, beginning: bytes) -> None:
        self._skipped = _NESTED if beginning.startswith((b"{", b"[")) else _STRAY
        self._depth = 0
        self._quoted = False
        self._escaped = False

    def end(self, data: bytes, start: int = 0) -> int:
        """Return the place of the end; -1 if the value continues in the next piece."""
        at, size = start, len(data)
        if self._escaped and at < size:
            at, self._escaped = at + 1, False
        while (at := _skip(self._skipped[self._quoted], data, at)) < size:
            byte = data[at : at + 1]
            at += 1
            if byte == b'"':
                self._quoted = not self._quoted
            elif byte == b"\\":
                self._escaped = at == size
            elif self._skipped is _STRAY:
                return at - 1
            else:
                self._depth += 1 if byte in b"{[" else -1
                if self._depth <= 0:
                    return at
        return -1


def _skip(what: re.Pattern[bytes], data: bytes, at: int) -> int:
    found = what.match(data, at)
    return found.end() if found else at
