"""The files of exports: private, bounded together, with complete lines, deleted when removed."""

from __future__ import annotations

import errno
import os
import stat
import sys
import threading
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import pytest

from eventonce.dashboard import export_files
from eventonce.dashboard.export_files import ExportFailed, ExportFile, ExportRoom
from tests.helpers import until

LINES = b'{"call":1}\n{"call":2}\n'


class Small:
    """A file on a disk with room for a number of bytes, which writes a few bytes at a time."""

    def __init__(self, room: int) -> None:
        self._file = TemporaryFile(buffering=0)  # noqa: SIM115  as that of an export
        self.room = room

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, some: memoryview) -> int:
        if self._file.tell() >= self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self._file.write(some[: min(3, self.room - self._file.tell())])


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """The files that exports opened, in a folder of the test's own."""
    found: list[Any] = []

    def open_one(**more: Any) -> Any:
        found.append(TemporaryFile(dir=tmp_path, **more))  # noqa: SIM115  as above
        return found[-1]

    monkeypatch.setattr(export_files, "TemporaryFile", open_one)
    return found


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has neither modes nor such files")
def test_the_file_is_readable_by_its_owner_only_and_has_no_name(
    opened: list[Any], tmp_path: Path
) -> None:
    file = ExportFile(ExportRoom())
    file.write(LINES)
    status = os.fstat(opened[0].fileno())
    assert (stat.S_IMODE(status.st_mode), status.st_nlink) == (0o600, 0)
    assert not list(tmp_path.iterdir()), "so a process that is killed leaves nothing"
    file.remove()


def test_a_removed_file_is_closed_and_takes_no_more_lines(opened: list[Any]) -> None:
    file = ExportFile(ExportRoom())
    file.write(LINES)
    assert (file.there, file.read(0, 100)) == (True, LINES)
    file.remove()
    assert (file.there, file.removed, opened[0].closed) == (False, True, True)
    with pytest.raises(ExportFailed, match="deleted"):
        file.write(LINES)
    with pytest.raises(ExportFailed, match="deleted"), file.held():
        pass
    file.remove()
    assert len(opened) == 1


def test_an_export_without_lines_creates_no_file(opened: list[Any]) -> None:
    file = ExportFile(ExportRoom())
    file.write(b"")
    assert not file.there
    file.remove()
    assert not opened


def test_a_reader_of_a_removed_file_reads_the_file_to_its_end(opened: list[Any]) -> None:
    file = ExportFile(ExportRoom())
    file.write(LINES)
    with file.held():
        with file.held():
            file.remove()
        assert file.read(11, 100) == LINES[11:]
    assert opened[0].closed


def test_all_files_share_one_limit_and_a_removed_file_returns_its_bytes(
    monkeypatch: pytest.MonkeyPatch, opened: list[Any]
) -> None:
    monkeypatch.setattr(export_files, "EXPORT_BYTES", 2 * len(LINES))
    room = ExportRoom()
    first, second, third = (ExportFile(room) for _ in range(3))
    first.write(LINES)
    second.write(LINES)
    with pytest.raises(ExportFailed, match="download waiting files"):
        second.write(LINES)
    assert second.read(0, 100) == LINES, "what it has stays"
    first.remove()
    third.write(LINES)
    with pytest.raises(ExportFailed, match="download waiting files"):
        third.write(b"\n")
    second.remove()
    third.remove()


def test_a_full_disk_is_reported_and_leaves_complete_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Small(len(LINES) + 5)
    monkeypatch.setattr(export_files, "TemporaryFile", lambda **_: disk)
    monkeypatch.setattr(export_files, "EXPORT_BYTES", 3 * len(LINES))
    file = ExportFile(ExportRoom())
    file.write(LINES)
    for _ in range(3):
        with pytest.raises(ExportFailed, match="cannot be written: No space left on device"):
            file.write(LINES)
    assert os.fstat(disk.fileno()).st_size == len(LINES), "a full disk is not kept full"
    disk.room = 1_000
    file.write(LINES)
    assert (file.size, file.read(0, 100)) == (2 * len(LINES), LINES * 2)
    file.remove()


def test_an_export_for_which_no_file_can_be_created_is_refused_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(**_: Any) -> None:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    monkeypatch.setattr(export_files, "TemporaryFile", refused)
    file = ExportFile(ExportRoom())
    with pytest.raises(ExportFailed, match="No usable temporary directory found"):
        file.write(LINES)
    assert not file.there
    file.remove()


def test_a_file_that_is_not_downloaded_is_removed_after_a_while(
    monkeypatch: pytest.MonkeyPatch, opened: list[Any]
) -> None:
    monkeypatch.setattr(export_files, "EXPORT_KEPT", 0.01)
    file = ExportFile(ExportRoom())
    file.write(LINES)
    file.expire()
    assert opened[0].closed


def test_the_thread_that_waits_for_the_expiry_of_a_file_ends_when_the_file_is_removed() -> None:
    file = ExportFile(ExportRoom())
    waiting = threading.Thread(target=file.expire, daemon=True)
    waiting.start()
    assert not file.removed
    file.remove()
    until(lambda: not waiting.is_alive())
