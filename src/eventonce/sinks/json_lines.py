"""The JSON Lines file as a sink: each event is one line, on the disk before the event is done."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Final

from eventonce.core.masking import masked
from eventonce.errors import ConfigError
from eventonce.types import Job

try:
    import fcntl
except ModuleNotFoundError:  # Windows
    fcntl = None  # type: ignore[assignment]

FILE_MODE: Final = 0o640
"""The mode of a new file: other users may not read events."""


class JSONLines:
    """Appends each event to a file as a line.

    At least once: after a crash between the write and the settlement, the line is written again;
    `eventonce filter` drops the copy. Threads and processes may append to one file on a local disk.
    The file is opened for each line, so it may be moved away at any time.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        text = str(path).removeprefix("file:")
        self._path = path_of(text)
        self._turn = threading.Lock()
        if not text or (text.startswith("//") and not text.startswith("///")):
            raise ConfigError(
                f"JSONLines: {_masked(text)!r} is not a file's path; write file:events.jsonl, or "
                f"file:/folder/events.jsonl"
            )
        if self._path.exists() and not self._path.is_file():
            # A write to a pipe or a device does not prove that the line is kept.
            raise ConfigError(
                f"JSONLines: {_masked(text)!r} is a folder, a pipe or a device, not a file"
            )
        if not self._path.parent.is_dir():
            raise ConfigError(f"JSONLines: there is no folder {_masked(self._path.parent)!r}")

    def __call__(self, job: Job) -> None:
        """Append the event's line and wait for the disk."""
        line = line_of(job.event.raw)
        new = not self._path.exists()
        descriptor = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT, FILE_MODE)
        try:
            with self._turn:
                if fcntl is not None:
                    # The thread lock does not stop other processes; this lock does.
                    fcntl.flock(descriptor, fcntl.LOCK_EX)
                _append(descriptor, line)
                if fcntl is not None:
                    fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if new:
            sync_folder(self._path.parent)


def path_of(to: str) -> Path:
    """Return the path of a file, given as a path or as a `file:` URI."""
    text = to.removeprefix("file:")
    return Path(text.removeprefix("//") if text.startswith("///") else text)


def line_of(event: bytes) -> bytes:
    """Return the JSON of an event as one line of a file."""
    return event.replace(b"\n", b" ").replace(b"\r", b" ") + b"\n"


def _masked(path: str | Path) -> str:
    return masked(f"file:{path}").removeprefix("file:")


def _append(descriptor: int, line: bytes) -> None:
    """Write the whole line or none of it; a line that a crash cut off gets a line end first."""
    size = os.fstat(descriptor).st_size
    if size and _last_byte(descriptor, size) != b"\n":
        line = b"\n" + line
    rest = memoryview(line)
    try:
        while rest:
            rest = rest[os.write(descriptor, rest) :]
    except OSError:
        if os.fstat(descriptor).st_size == size + len(line) - len(rest):
            # A full disk took a part of the line, and nobody wrote after it without the lock.
            os.ftruncate(descriptor, size)
        raise


def _last_byte(descriptor: int, size: int) -> bytes:
    os.lseek(descriptor, size - 1, os.SEEK_SET)
    return os.read(descriptor, 1)


def sync_folder(folder: Path) -> None:
    """Flush the folder to the disk, so that the name of a new file survives a crash."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
