"""The events of a capture: of files, and of the files in folders."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Final

from eventonce.errors import ConfigError
from eventonce.sources.chunks import Chunk, Long, chunks
from eventonce.sources.pieces import Unreadable

ENDINGS: Final = (".json", ".jsonl", ".ndjson", ".gz")
"""What the names of a folder's files end with that are read, unless they have no ending, as what
Firehose leaves: a README.txt beside them is no event."""


LONGEST: Final = 16 << 20
"""Bytes of one event that are held in memory: many times the limit of a consumer, whose dead letter
keeps an event whole. One that is longer still stays in its file, and that is said."""


def files(paths: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """The files named, and those in the folders named, by name; and what is passed over there.

    Hidden ones are not even that.
    """
    found: list[Path] = []
    others: list[Path] = []
    for path in paths:
        if not path.is_dir():
            found.append(path)
            continue
        for one in sorted(path.rglob("*")):
            hidden = any(part.startswith(".") for part in one.relative_to(path).parts)
            if one.is_file() and not hidden:
                read = one.name.lower().endswith(ENDINGS) or not one.suffix
                (found if read else others).append(one)
    return found, others


class Capture:
    """Gives the events of some files one after the other, each as its bytes."""

    def __init__(self, paths: Sequence[Path], *, longest: int = LONGEST) -> None:
        self._files, others = files(paths)
        self.passed_over = _not_read(others) if others else ""
        """Which files of the folders are not read, and why."""
        if others and not self._files:
            raise ConfigError(self.passed_over)
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
        """One event's bytes after the other, each whole.

        A file that cannot be read to its end does not stop the others, nor does an event that is
        too long to hold: that is said after them.
        """
        broken: list[str] = []
        for path in self._files:
            try:
                with path.open("rb") as stream:
                    self._open = stream
                    for chunk in chunks(stream, self._longest):
                        if isinstance(chunk, Long):
                            broken.append(f"{path}{chunk.place} {self._too_long}")
                        else:
                            yield from _events(chunk)
                    self._before += stream.tell()
            except (OSError, Unreadable) as error:
                broken.append(f"{path} cannot be read to its end: {error}")
            finally:
                self._open = None
        if broken:
            raise ConfigError("; ".join(broken))

    @property
    def _too_long(self) -> str:
        return f"was not read: an event of more than {self._longest} bytes"


def _events(chunk: Chunk) -> Iterator[bytes]:
    for some in chunk.apart():
        for event in some.events:
            if event and not event.isspace():
                yield event.rstrip(b"\r\n")


def _not_read(others: Sequence[Path]) -> str:
    more = f" and {len(others) - 1} more" if len(others) > 1 else ""
    return (
        f"not read: {others[0]}{more}; of a folder only {', '.join(ENDINGS)} and names without an "
        f"ending are, unless a file is named itself"
    )
