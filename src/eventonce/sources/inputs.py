"""Inputs: the files, folders and S3 prefixes that captures are read from, in any format.

`Capture` in `files` yields the events of several inputs; `filter` reads each input by itself.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any, BinaryIO, Final, NoReturn

from eventonce.aws import s3
from eventonce.errors import ConfigError
from eventonce.sources import log_export, parquet
from eventonce.sources.json_stream import Chunk, Long, chunks

Place = Path | str
"""A file or a folder, `s3://bucket/prefix`, or `-`."""
STDIN: Final = Path("-")

ENDINGS: Final = (".json", ".jsonl", ".ndjson", ".gz", ".zst", ".parquet")
"""The endings of the files that are read from a folder, beside names without an ending, which
Firehose writes. A README.txt, for example, is not read."""
EXPORT_PROBE: Final = "aws-logs-write-test"
"""The file that CloudWatch Logs writes to test its permission to export."""


class NoInput(ConfigError):
    """There is nothing to read yet."""


class Input:
    """One file or object, which can be read more than once."""

    def __init__(
        self, name: str, size: int, opened: Callable[[], AbstractContextManager[IO[bytes]]]
    ) -> None:
        self.name = name
        self.size = size
        self._opened = opened
        self._stream: IO[bytes] | None = None

    @property
    def position(self) -> int:
        """The number of bytes that have been read since the input was opened."""
        stream = self._stream
        try:
            return 0 if stream is None or stream.closed else stream.tell()
        except OSError:
            # A pipe has no position and no known length.
            return 0

    def chunks(self, longest: int) -> Iterator[Chunk | Long]:
        """Yield the events, some at a time; OSError or Unreadable if the input breaks off."""
        with self._opened() as stream:
            self._stream = stream
            peek: Any = getattr(stream, "peek", None)
            if peek is not None and self.size and peek(4)[:4] == parquet.MAGIC:
                yield from _rows(stream, self.name)
            else:
                yield from log_export.opened(chunks(stream, longest), longest)


def _rows(stream: IO[bytes], name: str) -> Iterator[Chunk]:
    """Yield the rows of a Parquet file. Its index is at its end, so a stream is copied to disk."""
    path = Path(name)
    if path.is_file():
        yield from _numbered(path)
        stream.seek(0, 2)
        return
    with tempfile.NamedTemporaryFile(prefix="eventonce-", suffix=".parquet") as copy:
        _copies.add(Path(copy.name))
        try:
            shutil.copyfileobj(stream, copy, 1 << 20)
            copy.flush()
            yield from _numbered(Path(copy.name))
        finally:
            _copies.discard(Path(copy.name))


_copies: Final[set[Path]] = set()


def remove_copies() -> None:
    """Remove the temporary copies of this process, which ends at once."""
    for copy in _copies:
        copy.unlink(missing_ok=True)


def _numbered(path: Path) -> Iterator[Chunk]:
    number = 0
    for events in parquet.rows(path):
        yield Chunk("[", number, "]", events)
        number += len(events)


def inputs(places: Sequence[Place]) -> tuple[list[Input], str]:
    """Return the inputs at these places, by name; and a sentence about files of folders and
    prefixes that are not read. Hidden files are left out of both."""
    if isinstance(places, str | Path):
        given = type(places).__name__
        raise ConfigError(f'expected a list of captures, such as ["calls.jsonl"], not {given}')
    found: list[Input] = []
    others: list[str] = []
    for one in places:
        if isinstance(one, str) and "://" in one:
            _objects(one, found, others)
            continue
        place = Path(one)
        if place == STDIN:
            found.append(Input("stdin", 0, lambda: nullcontext(standard_input())))
        elif place.is_dir():
            for path in sorted(_walked(place)):
                name = path.relative_to(place).as_posix()
                file = partial(_file, path) if path.is_file() else None
                _add(name, file, str(path), found, others)
        else:
            found.append(_file(place))
    passed_over = _not_read(others) if others else ""
    if others and not found:
        raise ConfigError(passed_over)
    return found, passed_over


def standard_input() -> BinaryIO:
    """Return the stream of standard input; ConfigError if the caller closed it."""
    if sys.stdin is None:
        raise ConfigError("standard input is closed: there is nothing to read")
    return sys.stdin.buffer


def _walked(folder: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder, onerror=_unreadable):
        yield from (Path(parent, name) for name in names)
        yield from (path for name in folders if (path := Path(parent, name)).is_symlink())


def _unreadable(error: OSError) -> NoReturn:
    raise ConfigError(f"the capture cannot be read: {error}") from error


def _objects(uri: str, found: list[Input], others: list[str]) -> None:
    bucket_name, prefix, access = s3.parse(uri)
    bucket = s3.Bucket(bucket_name, access)
    before = len(found) + len(others)
    for key, size in bucket.objects(prefix):
        name = f"s3://{bucket_name}/{key}"
        one = partial(Input, name, size, partial(bucket.open, key))
        if key == prefix:
            found.append(one())
        elif not key.endswith("/"):
            _add(key.removeprefix(prefix), one, name, found, others)
    if len(found) + len(others) == before:
        raise NoInput(f"s3://{bucket_name}/{prefix}: there is no object with this prefix")


def _add(
    name: str, one: Callable[[], Input] | None, shown: str, found: list[Input], others: list[str]
) -> None:
    """Add this file to `found`, or to `others` if it is not read."""
    path = PurePosixPath(name)
    if any(part.startswith(".") for part in path.parts) or path.name == EXPORT_PROBE:
        return
    if one is not None and (path.name.lower().endswith(ENDINGS) or not path.suffix):
        found.append(one())
    else:
        others.append(shown)


def _file(path: Path) -> Input:
    try:
        size = path.stat().st_size
    except OSError as error:
        _unreadable(error)
    return Input(str(path), size, lambda: path.open("rb"))


def _not_read(others: Sequence[str]) -> str:
    more = f" and {len(others) - 1} more" if len(others) > 1 else ""
    return (
        f"not read: {others[0]}{more}; of a folder only {', '.join(ENDINGS)} and names without an "
        f"ending are read, and no folder behind a link, unless it is named itself"
    )
