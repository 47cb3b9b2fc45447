"""The recorder: lines on the disk, and a checkpoint of the capture beside them.

A commit is complete or absent. The lines are on the disk before the checkpoint is written, and the
checkpoint before anything is deleted at the source; lines after the last checkpoint are cut off at
the next start, and come again.
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
"""Only the owner may read a capture: it contains what customers said."""

CAPTURE_ENDINGS: Final = (".jsonl", ".ndjson", ".json")
PACKED_ENDINGS: Final = (".gz", ".zst")

ROTATE_BYTES: Final = 256 << 20
ROTATE_AGE: Final = 24 * 3_600_000  # milliseconds


class Rotation(msgspec.Struct, frozen=True):
    """The limits at which a file is finished and the next one begins."""

    bytes: int = ROTATE_BYTES
    age: int = ROTATE_AGE


class Checkpoint(msgspec.Struct, omit_defaults=True):
    """The progress of a capture."""

    source: str
    """The source that is captured, and how its values are replaced: another capture must not be
    added to it."""
    bytes: int = 0
    """The bytes of the current file; bytes after them were not committed."""
    began: int = 0
    """The start of the current file, in milliseconds."""
    lines: int = 0
    """The lines of all files."""
    position: Any = None
    """The position where the source continues."""


class Recorder:
    """Appends lines to a file. A finished file has the time of its start in its name, so that a
    folder, or `calls*.jsonl.gz`, lists all files in order."""

    def __init__(self, path: Path, source: str, rotation: Rotation | None = None) -> None:
        self.path = path
        self.files = 0
        """The number of files that were written to."""
        self.written = 0
        """The number of bytes that were written."""
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
            # The checkpoint of our own file has its start before the file exists.
            if not self._at.began:
                raise ConfigError(
                    f"{path} exists, and is not a capture that can be continued: name another file "
                    f"or move this one away"
                )
            self._open(new=False)

    @property
    def position(self) -> Any:
        """The position where the source continues; None at the beginning."""
        return self._at.position

    @property
    def pattern(self) -> str:
        """The shell pattern of all files of this capture, in order."""
        if any(self.path.parent.glob(f"{escape(self._stem)}-*Z{self._ending}")):
            return f"{quote(str(self.path.with_name(self._stem)))}*{self._ending}"
        return quote(str(self.path))

    @property
    def lines(self) -> int:
        """The number of lines in all files of this capture."""
        return self._at.lines

    def commit(self, lines: Sequence[bytes], position: Any) -> None:
        """Put the lines and the position on the disk: all of it or nothing."""
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
        """Close the file; a capture without lines leaves no file."""
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
        # If the file was finished or moved away, the next one begins.
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
            # Another process made it meanwhile: its lines must not be cut off.
            if self.path.exists():
                raise others
            # The checkpoint first: a crash must not leave a file without one.
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
        """Give the file its final name: after a checkpoint without a file, the next one begins."""
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
            # A full disk took only a part: remove it, so that the file stays readable.
            os.ftruncate(self._file, self._at.bytes)
        raise EventonceError(
            f"{self.path} cannot be written: {error.strerror or error}. The events that are not in "
            f"it stay at the source; the same command continues from there"
        ) from error


def named(path: Path) -> tuple[str, str]:
    """Return the name of a capture without its ending, and the ending; ConfigError if unknown."""
    name, packed = path.name, ""
    if name.endswith(PACKED_ENDINGS):
        name, packed = path.stem, path.suffix
    stem, dot, last = name.rpartition(".")
    if not stem or dot + last not in CAPTURE_ENDINGS:
        raise ConfigError(
            f"{path}: the name of a capture ends with .jsonl, .jsonl.gz or .jsonl.zst"
        )
    return stem, dot + last + packed
