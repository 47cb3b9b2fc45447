"""The recorder: lines on the disk, and beside them how far the capture has come.

A commit is whole or not there. The lines are on the disk before the checkpoint says so, and the
checkpoint is before anything is deleted at the source; lines that no checkpoint knows of are cut
off by the next start, and come again.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from glob import escape
from pathlib import Path
from shlex import quote
from typing import Any, Final, NoReturn

import msgspec

from eventonce.clock import wall_clock
from eventonce.errors import ConfigError, EventonceError
from eventonce.sinks.json_lines import sync_folder
from eventonce.sources.compression import packer

try:
    import fcntl
except ModuleNotFoundError:  # Windows
    fcntl = None  # type: ignore[assignment]

MODE: Final = 0o600
"""A capture holds what customers said: it is for its owner alone."""

ENDINGS: Final = (".jsonl", ".ndjson", ".json")
PACKED: Final = (".gz", ".zst")

ROTATE_BYTES: Final = 256 << 20
ROTATE_AGE: Final = 24 * 3_600_000  # milliseconds


class Rotation(msgspec.Struct, frozen=True):
    """When a file is finished, and the next begun."""

    bytes: int = ROTATE_BYTES
    age: int = ROTATE_AGE


class Checkpoint(msgspec.Struct, omit_defaults=True):
    """How far a capture has come."""

    source: str
    """The source that is captured, and how its values are replaced: another capture must not be
    mixed in."""
    bytes: int = 0
    """Of the current file; what stands behind them was not committed."""
    began: int = 0
    """When the current file was begun, in milliseconds."""
    lines: int = 0
    """Of all files."""
    position: Any = None
    """Where the source goes on."""


class Recorder:
    """Appends lines to a file. A finished file has the time it was begun in its name, so that a
    folder, or `calls*.jsonl.gz`, has all files in their order."""

    def __init__(self, path: Path, source: str, rotation: Rotation | None = None) -> None:
        self.path = path
        self.files = 0
        """Files that were written to."""
        self.written = 0
        """Bytes that were written."""
        self._rotation = rotation or Rotation()
        self._stem, self._ending = named(path)
        self._pack = packer(path)
        self._beside = path.with_name(f".{path.name}.checkpoint")
        self._file: int | None = None
        if not path.parent.is_dir():
            raise ConfigError(f"there is no folder {path.parent}: create it first")
        self.resumed = self._beside.exists()
        self._at = self._resume(source) if self.resumed else Checkpoint(source)
        if path.exists():
            # Before a file of ours is made, its checkpoint says when it was begun.
            if not self._at.began:
                raise ConfigError(
                    f"{path} exists, and no capture of ours can go on with it: name another file, "
                    f"or move this one away"
                )
            self._open(new=False)

    @property
    def position(self) -> Any:
        """Where the source goes on; None at the beginning."""
        return self._at.position

    @property
    def pattern(self) -> str:
        """The shell pattern of all files of this capture, in their order."""
        if any(self.path.parent.glob(f"{escape(self._stem)}-*Z{self._ending}")):
            return f"{quote(str(self.path.with_name(self._stem)))}*{self._ending}"
        return quote(str(self.path))

    @property
    def lines(self) -> int:
        """Lines in all files of this capture."""
        return self._at.lines

    def commit(self, lines: Sequence[bytes], position: Any) -> None:
        """Put the lines on the disk, and where the source goes on: all of it or nothing."""
        try:
            if self._is_full():
                self._rotate()
            if lines:
                self._append(self._pack(b"".join(line + b"\n" for line in lines)))
            self._at.lines += len(lines)
            self._at.position = position
            self._save()
        except OSError as error:
            self._complain(error)

    def close(self) -> None:
        """Close the file; a capture without a single line leaves none."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _resume(self, source: str) -> Checkpoint:
        try:
            found = msgspec.json.decode(self._beside.read_bytes(), type=Checkpoint)
        except (OSError, msgspec.MsgspecError) as error:
            raise ConfigError(
                f"{self._beside} cannot be read: {error}; name another file"
            ) from error
        if found.source != source:
            raise ConfigError(
                f"{self.path} was begun as a capture of {found.source}, not of {source}: name "
                f"another file"
            )
        # The file was finished, or moved away: the next one begins.
        size = self.path.stat().st_size if self.path.exists() else None
        if size is None:
            found.bytes = 0
        elif size < found.bytes:
            raise ConfigError(
                f"{self.path} has {size} bytes, and {found.bytes} were written: it was changed. "
                f"Name another file"
            )
        return found

    def _open(self, *, new: bool) -> None:
        others = ConfigError(f"another process writes {self.path}: name another file")
        if new:
            # Somebody else's since we looked: its lines must not be cut off.
            if self.path.exists():
                raise others
            # A crash must not leave a file that no checkpoint knows of.
            self._at.bytes, self._at.began = 0, wall_clock()
            self._save()
        try:
            exclusive = os.O_EXCL if new else 0
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | exclusive, MODE)
            if fcntl is not None:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (FileExistsError, BlockingIOError):
            self.close()
            raise others from None
        os.ftruncate(self._file, self._at.bytes)
        self.files += 1
        if new:
            sync_folder(self.path.parent)

    def _append(self, data: bytes) -> None:
        if self._file is None:
            self._open(new=not self._at.bytes or not self.path.exists())
        assert self._file is not None
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._file, rest) :]
        os.fsync(self._file)
        self._at.bytes += len(data)
        self.written += len(data)

    def _save(self) -> None:
        fresh = self._beside.with_name(f"{self._beside.name}.new")
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, MODE)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(msgspec.json.encode(self._at))
            stream.flush()
            os.fsync(descriptor)
        fresh.replace(self._beside)
        sync_folder(self.path.parent)

    def _is_full(self) -> bool:
        if not self._at.bytes:
            return False
        old = wall_clock() - self._at.began >= self._rotation.age
        return old or self._at.bytes >= self._rotation.bytes

    def _rotate(self) -> None:
        """Give the file its last name: a checkpoint without a file means that the next begins."""
        self.close()
        self.path.rename(self._finished())
        sync_folder(self.path.parent)
        self._at.bytes = self._at.began = 0

    def _finished(self) -> Path:
        began = self._at.began
        while True:
            at = datetime.fromtimestamp(began / 1000, UTC).strftime("%Y%m%dT%H%M%S")
            name = self.path.with_name(f"{self._stem}-{at}{began % 1000:03}Z{self._ending}")
            if not name.exists():
                return name
            began += 1

    def _complain(self, error: OSError) -> NoReturn:
        if self._file is not None:
            # A full disk took a part: a reader shall not stumble over it.
            os.ftruncate(self._file, self._at.bytes)
        raise EventonceError(
            f"{self.path} cannot be written: {error.strerror or error}. The events that are not in "
            f"it stay where they are; the same command goes on from there"
        ) from error


def named(path: Path) -> tuple[str, str]:
    """The name of a capture without its ending, and the ending; ConfigError for another name."""
    name, packed = path.name, ""
    if name.endswith(PACKED):
        name, packed = path.stem, path.suffix
    stem, dot, last = name.rpartition(".")
    if not stem or dot + last not in ENDINGS:
        raise ConfigError(
            f"{path}: the name of a capture ends with .jsonl, .jsonl.gz or .jsonl.zst"
        )
    return stem, dot + last + packed
