"""The files of exports: private, limited in their total size, and deleted after the download."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from tempfile import TemporaryFile
from typing import IO, Final

from eventonce.errors import EventonceError

EXPORT_BYTES: Final = 10**9
"""The most bytes of all export files together: the worker may use the same disk."""

EXPORT_KEPT: Final = 3600.0
"""Seconds that a file waits for its download."""

FILES_TOO_LARGE: Final = (
    f"the files of exports may have {EXPORT_BYTES // 10**6} MB together: download waiting files, "
    "export fewer dead letters at once, or use the command line, which has no limit"
)
FILE_DELETED: Final = "the file of this export is deleted"


class ExportFailed(EventonceError):
    """The file of an export cannot be written."""


class ExportRoom:
    """The disk space that the exports of one dashboard share."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken = 0

    def take(self, size: int) -> None:
        """Reserve this many bytes; `ExportFailed` if fewer are left."""
        with self._lock:
            if self._taken + size > EXPORT_BYTES:
                raise ExportFailed(FILES_TOO_LARGE)
            self._taken += size

    def give_back(self, size: int) -> None:
        """Release this many bytes."""
        with self._lock:
            self._taken -= size


class ExportFile:
    """The lines of one export; thread-safe.

    If the system allows it, the file has no name: nobody else can open it, and the system deletes
    it when the process ends, also after a crash.
    """

    def __init__(self, room: ExportRoom) -> None:
        self._room = room
        self._lock = threading.Lock()
        self._file: IO[bytes] | None = None
        self._readers = 0
        self._removed = threading.Event()
        self.size = 0
        """Bytes of whole lines, without a part of a line that was written before the disk was
        full."""
        self.taken_by = ""
        """The name of the person who downloaded the whole file; empty for nobody."""

    @property
    def removed(self) -> bool:
        """Whether the file is deleted, or will be when its downloads have ended."""
        return self._removed.is_set()

    @property
    def there(self) -> bool:
        """Whether there are lines to download."""
        return self.size > 0 and not self.removed

    def write(self, lines: bytes) -> None:
        """Append these lines; if that fails, none of them (`ExportFailed`)."""
        with self._lock:
            if self.removed:
                raise ExportFailed(FILE_DELETED)
            if not lines:
                return
            self._room.take(len(lines))
            try:
                self._append(lines)
            except OSError as error:
                self._room.give_back(len(lines))
                if self._file is not None:
                    with suppress(OSError):
                        self._file.truncate(self.size)
                said = f"the file of the export cannot be written: {error.strerror or error}"
                raise ExportFailed(said) from error
            self.size += len(lines)

    def read(self, at: int, size: int) -> bytes:
        """Return up to `size` bytes from `at` on; only within `held`."""
        with self._lock:
            assert self._file is not None
            self._file.seek(at)
            return self._file.read(min(size, self.size - at))

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep the bytes until the end of the block, even if the file is removed meanwhile."""
        with self._lock:
            if self._file is None:
                raise ExportFailed(FILE_DELETED)
            self._readers += 1
        try:
            yield
        finally:
            with self._lock:
                self._readers -= 1
                self._close_unless_needed()

    def remove(self) -> None:
        """Delete the file when its downloads have ended."""
        with self._lock:
            self._removed.set()
            self._close_unless_needed()

    def expire(self) -> None:
        """Wait until the file is removed, and remove it after `EXPORT_KEPT` at the latest."""
        self._removed.wait(EXPORT_KEPT)
        self.remove()

    def _append(self, lines: bytes) -> None:
        if self._file is None:
            self._file = TemporaryFile(buffering=0)  # noqa: SIM115  it is closed when it is removed
        self._file.seek(self.size)
        rest = memoryview(lines)
        while rest:
            rest = rest[self._file.write(rest) :]

    def _close_unless_needed(self) -> None:
        if self.removed and not self._readers and self._file is not None:
            self._file.close()
            self._file = None
            self._room.give_back(self.size)
