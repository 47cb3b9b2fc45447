"""Streams cut into events, for pieces, documents and events of any size."""

from __future__ import annotations

import gzip
import io
import os
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, cast

import pytest
from backports import zstd
from hypothesis import example, given
from hypothesis import strategies as st

from eventonce.sources.compression import PIECE_BYTES, Unreadable, packer, written
from eventonce.sources.json_stream import Chunk, Long, chunks, unpacked

STREAMS = {
    "lines": b'{"a":1}\n\n{"b":"[{\\"\\\\"}\r\n{"c":\n{"d":4}',
    "an array": b' [{"a":[1]},{"b":"}]\\\\"},\n"x, y",7,{"c":{}}]\n',
    "documents": b'{"a":"\\"{"}{"b":[{}]}\n{\n  "c": 3\n}\n',
    "an array behind a byte order mark": b'\xef\xbb\xbf[{"a":1},{"b":2}]',
    "an array that is broken off": b'[{"a":1}, {"b":[2',
}


class Dribble(io.RawIOBase):
    """A stream that returns one of these pieces for each read."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces

    def read(self, _size: int = -1) -> bytes:
        return self._pieces.pop(0) if self._pieces else b""


def stream(*pieces: bytes) -> IO[bytes]:
    return cast("IO[bytes]", Dribble([piece for piece in pieces if piece]))


def found(source: IO[bytes], longest: int = 1_000) -> list[tuple[str, bytes]]:
    """Every event with its place, without the blank lines."""
    events: list[tuple[str, bytes]] = []
    for chunk in chunks(source, longest):
        if isinstance(chunk, Long):
            events.append((chunk.place, b"".join(chunk)))
        else:
            events += [(chunk.place(at), one) for at, one in enumerate(chunk.events)]
    return [(place, event) for place, event in events if event.strip()]


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("name", STREAMS)
@given(cuts=st.lists(st.integers(0, 60), max_size=8))
@example(cuts=list(range(61)))
def test_the_pieces_of_a_stream_do_not_change_its_events(
    name: str, packed: bool, cuts: list[int]
) -> None:
    content = STREAMS[name]
    data = gzip.compress(content) if packed else content
    places = [0, *sorted(cuts), len(data)]
    pieces = [data[one:two] for one, two in pairwise(places)]
    assert found(stream(*pieces)) == found(io.BytesIO(content))


def without_white_space(events: list[tuple[str, bytes]]) -> bytes:
    """The text of all events without white space: very short documents are read as lines."""
    return b"".join(part for _, event in events for part in event.split())


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("longest", [1, 5, 10])
def test_an_event_that_is_too_long_is_given_whole_and_does_not_affect_the_other_events(
    name: str, longest: int
) -> None:
    content = STREAMS[name]
    pieces = [content[at : at + 1] for at in range(len(content))]
    assert without_white_space(found(stream(*pieces), longest)) == without_white_space(
        found(io.BytesIO(content))
    )


def test_each_event_is_named_by_its_line_or_its_number() -> None:
    assert [place for place, _ in found(io.BytesIO(STREAMS["lines"]))] == [":1", ":3", ":4", ":5"]
    assert [place for place, _ in found(io.BytesIO(b"[{},{}]"))] == ["[0]", "[1]"]


RECORDS = [f'{{"call":{number}}}'.encode() for number in range(60)]
LISTED = b"[" + b", ".join(RECORDS) + b"]"
MANY = {
    "an array on a line": (b'{"a":1}\n' + LISTED + b'\n{"b":2}\n', ":2"),
    "a batch on a line": (b'{"a":1}\n{"Records":' + LISTED + b'}\n{"b":2}\n', ":2"),
    "a batch that says more": (
        b'{"a":1}\n{"Records":' + LISTED + b',"more":{"x":[{}]}}\n{"b":2}\n',
        ":2",
    ),
    "a batch over many lines": (
        b'{\n"a":1\n}\n{\n "Records" : ' + LISTED.replace(b",", b",\n") + b'\n}\n{"b":2}\n',
        "[1]",
    ),
}


@pytest.mark.parametrize("name", MANY)
@pytest.mark.parametrize("size", [40, 64, 10_000])
def test_a_document_may_be_longer_than_the_limit_if_its_events_are_not(
    name: str, size: int
) -> None:
    content, place = MANY[name]
    pieces = [content[at : at + size] for at in range(0, len(content), size)]
    events: list[tuple[str, bytes]] = []
    for chunk in chunks(stream(*pieces), 30):
        assert isinstance(chunk, Chunk)
        for some in chunk.apart():
            events += [(some.place(at), one) for at, one in enumerate(some.events) if one.strip()]
    assert [one for _, one in events[1:-1]] == RECORDS
    assert [where for where, _ in events[1:-1]] == [f"{place}[{at}]" for at in range(60)]


def test_an_event_that_is_too_long_in_a_document_does_not_affect_the_other_events() -> None:
    content = b'[{"a":"' + b"x" * 100 + b'"}, {"b":1}, {"c":2}]'
    line = b'{"first":1}\n' + content + b"\n"
    pieces = [line[at : at + 25] for at in range(0, len(line), 25)]
    assert found(stream(*pieces), 30) == [
        (":1", b'{"first":1}'),
        (":2[0]", b'{"a":"' + b"x" * 100 + b'"}'),
        (":2[1]", b'{"b":1}'),
        (":2[2]", b'{"c":2}'),
    ]


@pytest.mark.parametrize("begin", [b'{"Records":[{"s3":{}},', b'{"Messages":[{"text":1},'])
def test_a_list_within_an_event_does_not_split_the_event(begin: bytes) -> None:
    line = begin + b",".join(RECORDS) + b"]}"
    pieces = [b'{"a":1}\n', *(line[at : at + 40] for at in range(0, len(line), 40))]
    assert found(stream(*pieces), 30) == [(":1", b'{"a":1}'), (":2", line)]


def test_the_events_of_a_batch_are_named_within_its_line() -> None:
    batch = b'{"Records":[{"a":1},{"b":2}]}'
    chunk = Chunk(":", 7, "", [b"{}", batch, b'[{"c":3}]', b"[]", b"no event"])
    found = [(one.place(at), it) for one in chunk.apart() for at, it in enumerate(one.events)]
    assert found == [
        (":7", b"{}"),
        (":8[0]", b'{"a":1}'),
        (":8[1]", b'{"b":2}'),
        (":9[0]", b'{"c":3}'),
        (":10", b"[]"),
        (":11", b"no event"),
    ]


def test_a_non_blocking_pipe_is_read_to_its_end() -> None:
    read, write = os.pipe()
    os.set_blocking(read, False)

    def later() -> None:
        with os.fdopen(write, "wb") as pipe:
            pipe.write(b'{"a":1}\n')

    with os.fdopen(read, "rb", buffering=0) as pipe:
        writer = threading.Timer(0.2, later)
        writer.start()
        assert found(cast("IO[bytes]", pipe)) == [(":1", b'{"a":1}')]
        writer.join()


def test_a_long_event_that_is_not_read_is_skipped() -> None:
    pieces = stream(b'{"a":1}\n' + b"x" * 50, b"x" * 50, b'x\n{"b":2}\n')
    given_ = [one for one in chunks(pieces, 10) if isinstance(one, Chunk)]
    assert [event for chunk in given_ for event in chunk.events] == [b'{"a":1}', b'{"b":2}']


@pytest.mark.parametrize(
    "begin", [b'{"broken"\n', b"{\n", b'{"a": "x\n', b"no event\n", b'{"a":1}}\n']
)
def test_a_broken_first_line_does_not_delay_the_next_line_of_a_pipe(begin: bytes) -> None:
    """The line after it is read before the pipe ends."""

    def endless() -> Iterator[bytes]:
        yield begin + b'{"a":2}\n'
        raise AssertionError("waited for more")

    class Pipe(io.RawIOBase):
        pieces = endless()

        def read(self, _size: int = -1) -> bytes:
            return next(self.pieces)

    first: Any = next(iter(chunks(cast("IO[bytes]", Pipe()), 1_000)))
    assert first.events == [begin.rstrip(b"\n"), b'{"a":2}']


def test_a_truncated_document_of_several_lines_is_one_event() -> None:
    assert found(io.BytesIO(b'{\n  "a": 1,\n  "b": [\n')) == [("[0]", b'{\n  "a": 1,\n  "b": [\n')]


PACKED = pytest.mark.parametrize("pack", [gzip.compress, zstd.compress], ids=["gzip", "zstd"])
Pack = Callable[[bytes], bytes]


@PACKED
def test_concatenated_compressed_files_are_read(pack: Pack) -> None:
    data = pack(b'{"a":1}\n') + b"\0" * 512 + pack(b'{"b":2}\n')
    assert [event for _, event in found(io.BytesIO(data))] == [b'{"a":1}', b'{"b":2}']


@PACKED
def test_data_that_was_compressed_twice_is_unpacked_twice(pack: Pack) -> None:
    """Firehose compresses records that CloudWatch Logs has already compressed one by one."""
    data = pack(gzip.compress(b'{"a":1}\n') + gzip.compress(b'{"b":2}\n'))
    assert [event for _, event in found(io.BytesIO(data))] == [b'{"a":1}', b'{"b":2}']


@PACKED
def test_large_data_is_unpacked_in_pieces_of_limited_size(pack: Pack) -> None:
    data = pack(b"x" * 20_000_000)
    sizes = [len(piece) for piece in unpacked(io.BytesIO(data))]
    assert (sum(sizes), max(sizes)) == (20_000_000, PIECE_BYTES)


@PACKED
def test_a_compressed_pipe_may_come_byte_by_byte(pack: Pack) -> None:
    data = pack(b'{"a":1}\n')
    pieces = stream(*(data[at : at + 1] for at in range(len(data))))
    assert found(pieces) == [(":1", b'{"a":1}')]


@pytest.mark.parametrize("ending", ["", ".gz", ".zst"])
def test_appended_events_are_read_after_the_earlier_events(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"capture.jsonl{ending}"
    with written(path) as file:
        file.write(b'{"a":1}\n')
    with path.open("ab") as file:
        file.write(packer(path)(b'{"b":2}\n'))
    with path.open("rb") as file:
        assert [event for _, event in found(file)] == [b'{"a":1}', b'{"b":2}']


@pytest.mark.parametrize(
    "broken",
    [
        gzip.compress(b'{"a":1}\n' * 1_000)[:-20],
        gzip.compress(b'{"a":1}\n') + b"no gzip",
        b"\x1f\x8bno gzip either",
        zstd.compress(b'{"a":1}\n' * 1_000)[:-2],
        zstd.compress(b'{"a":1}\n') + b"no zstd",
    ],
    ids=["cut off", "followed by something else", "none at all", "zstd", "zstd and more"],
)
def test_data_that_cannot_be_unpacked_to_its_end_is_unreadable(broken: bytes) -> None:
    with pytest.raises(Unreadable):
        found(io.BytesIO(broken))
