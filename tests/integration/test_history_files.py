"""The file of a history: removed, replaced, without permissions, and read while it is written."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from eventonce import log
from eventonce.errors import ConfigError, StoreUnavailable
from eventonce.history import History, Search, sqlite
from eventonce.runtime import background
from eventonce.stores.sqlite import errors
from tests.helpers import call
from tests.integration.histories import consumer


def test_a_removed_history_file_is_created_again_and_the_removal_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    uri = f"sqlite:///{tmp_path}/history.db"
    with History(uri) as history:
        made = consumer(history, handler=lambda _: None)
        made.process([call(1)])
        history.flush()
        for one in tmp_path.glob("history.db*"):
            one.unlink()
        made.process([call(2)])
        history.flush()
        with History(uri, look=True) as reader:
            assert [one.id for one in reader.find(Search())] == ["id-2"]
    assert caplog.text.count("the file was removed or replaced") == 1


@pytest.mark.parametrize(
    "instead", ["nothing", "a file", "a folder", "no database", "another version"]
)
def test_decisions_wait_while_the_folder_of_the_history_is_missing_or_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, instead: str
) -> None:
    monkeypatch.setattr(background, "WRITE_INTERVAL", 3600)
    monkeypatch.setattr(log, "SECOND_LINE", 3600)
    folder, away = tmp_path / "kept", tmp_path / "away"
    folder.mkdir()
    path = folder / "history.db"
    with History(f"sqlite:///{path}") as history:
        made = consumer(history, handler=lambda _: None)
        made.process([call(1)])
        history.flush()
        folder.rename(away)
        if instead == "a file":
            folder.touch()
        elif instead == "a folder":
            path.mkdir(parents=True)
        elif instead != "nothing":
            folder.mkdir()
            with closing(sqlite3.connect(path)) as other:
                other.execute("CREATE TABLE eventonce_history (x)")
        if instead == "no database":
            path.write_text("not a database, and long enough to be seen as none" * 200)
        for number in (2, 3):
            made.process([call(number)])
            history.flush()
        assert history.dropped == 0
        assert sum("events are not written yet" in line for line in caplog.messages) == 1
        if folder.exists():
            folder.rename(tmp_path / "wrong")
        away.rename(folder)
        history.flush()
        assert [one.id for one in history.find(Search())] == ["id-1", "id-2", "id-3"]


@pytest.fixture
def read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A history of one decision, in a file that its reader may not write, even as root."""
    path = tmp_path / "history.db"
    with History(f"sqlite:///{path}") as history:
        consumer(history).process([call(1)])
    monkeypatch.setattr(sqlite, "may", lambda path, how: how != os.W_OK and errors.may(path, how))
    return path


def test_a_reader_without_write_permission_creates_no_file(read_only: Path) -> None:
    with History(f"sqlite:///{read_only}", look=True) as reader:
        assert len(reader.find(Search())) == 1
        assert list(read_only.parent.iterdir()) == [read_only]


@pytest.mark.parametrize(
    "writing", [True, False], ids=["while the writer is open", "after the writer has closed"]
)
def test_a_reader_without_write_permission_sees_decisions_that_are_written_later(
    read_only: Path, *, writing: bool
) -> None:
    uri = f"sqlite:///{read_only}"
    os.utime(read_only, (1, 1))
    with History(uri, look=True) as reader:
        assert len(reader.find(Search())) == 1
        with History(uri) as history:
            consumer(history).process([call(2)])
            history.flush()
            if writing:
                assert len(reader.find(Search())) == 2
        assert len(reader.find(Search())) == 2


def test_a_leftover_write_ahead_log_that_is_not_read_is_reported(
    read_only: Path, caplog: pytest.LogCaptureFixture
) -> None:
    read_only.with_name("history.db-wal").write_bytes(b"left")
    with History(f"sqlite:///{read_only}", look=True) as reader:
        assert len(reader.find(Search())) == 1
    assert "the file is read without its log, so the newest decisions are missing" in caplog.text
    assert not read_only.with_name("history.db-shm").exists()


def test_a_history_that_cannot_be_written_logs_the_file_without_permission(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path, index = tmp_path / "history.db", tmp_path / "history.db-shm"
    History(f"sqlite:///{path}").close()
    index.touch()
    may = errors.may
    monkeypatch.setattr(
        errors, "may", lambda path, how: (path != index or how == os.F_OK) and may(path, how)
    )
    History(f"sqlite:///{path}").close()
    assert f"no permission to read and write {index}" in caplog.text


def test_a_history_opened_for_reading_changes_nothing_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE mine (x)")
    before = path.read_bytes()
    with (
        History(f"sqlite:///{path}", look=True) as history,
        pytest.raises(ConfigError, match="there is no history"),
    ):
        history.find(Search())
    assert path.read_bytes() == before
    for look in (True, False):
        with pytest.raises(ConfigError, match="the path is a folder; name a file"):
            History(f"sqlite:///{tmp_path}", look=look)


def test_only_the_owner_may_read_and_write_the_history_file(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    History(f"sqlite:///{path}").close()
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_file_that_is_not_a_database_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    path.write_text("not a database, and long enough to be seen as none" * 20)
    with pytest.raises(ConfigError, match="not a database"):
        History(f"sqlite:///{path}")


NOBODY = 65534


@contextmanager
def without_rights() -> Iterator[None]:
    """Run the block as an ordinary user, because root may write to any folder."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that other users may read but not write, with a history of one decision."""
    # Otherwise the background thread could write while the process has other rights.
    monkeypatch.setattr(background, "WRITE_INTERVAL", 3600.0)
    with TemporaryDirectory() as name:
        path = Path(name)
        path.chmod(0o755)
        with History(f"sqlite:///{path}/history.db") as history:
            consumer(history, handler=lambda _: None).process([call(1)])
        (path / "history.db").chmod(0o444)
        path.chmod(0o555)
        yield path
        path.chmod(0o755)


def test_a_history_in_a_read_only_folder_is_read(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with without_rights(), History(f"sqlite:///{folder}/history.db", look=True) as history:
        assert [one.id for one in history.find(Search())] == ["id-1"]
        assert history.consumers() == ["crm"]
        assert caplog.text == "", "it has all that there is"
        with pytest.raises(StoreUnavailable, match="no permission to write in the directory"):
            history.forget("c")
    assert [it.name for it in folder.iterdir()] == ["history.db"]


def test_decisions_in_a_log_that_cannot_be_read_are_reported_as_missing(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A writer is active, and the reader may read only the database file."""
    folder.chmod(0o755)
    (folder / "history.db").chmod(0o644)
    with History(f"sqlite:///{folder}/history.db") as writing:
        consumer(writing, handler=lambda _: None).process([call(2)])
        writing.flush()
        for name in ("history.db-wal", "history.db-shm"):
            (folder / name).chmod(0)
        folder.chmod(0o555)
        with without_rights(), History(f"sqlite:///{folder}/history.db", look=True) as history:
            for _ in range(2):
                assert [one.id for one in history.find(Search())] == ["id-1"]
        (line,) = [it.getMessage() for it in caplog.records]
        said = f"the newest decisions are missing; no permission to write in the directory {folder}"
        assert said in line
        assert ("give this one the permission" if os.geteuid() == 0 else "chmod u+rwx") in line
        folder.chmod(0o755)


def test_a_reader_of_a_read_only_file_sees_decisions_that_are_written_later(folder: Path) -> None:
    """A dashboard keeps its history open for days."""
    uri = f"sqlite:///{folder}/history.db"
    with History(uri, look=True) as history:
        with without_rights():
            assert len(history.find(Search())) == 1
        folder.chmod(0o755)
        (folder / "history.db").chmod(0o644)
        with History(uri) as writing:
            consumer(writing, handler=lambda _: None).process([call(2)])
        folder.chmod(0o555)
        with without_rights():
            assert len(history.find(Search())) == 2


@pytest.mark.parametrize("there", [True, False])
def test_a_worker_begins_although_its_history_may_not_be_written(
    folder: Path, caplog: pytest.LogCaptureFixture, there: bool
) -> None:
    uri = f"sqlite:///{folder}/{'history' if there else 'other'}.db"
    with without_rights():
        history = History(uri)
        assert consumer(history, handler=lambda _: None).process([call(2)])[0].status == "done"
        history.flush()
        history._tidy_if_due()
        (line,) = [it.getMessage() for it in caplog.records]
        assert line.startswith("history: decisions wait in memory for the database: ")
        assert f"no permission to write in the directory {folder}" in line
    # The permission is given while the worker runs.
    folder.chmod(0o777)
    if there:
        (folder / "history.db").chmod(0o666)
    with without_rights():
        history.flush()
        assert [one.id for one in history.find(Search())][-1] == "id-2"
        history.close()
    assert history.dropped == 0


def test_a_file_without_write_permission_is_named_in_the_log(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder.chmod(0o777)
    with without_rights(), History(f"sqlite:///{folder}/history.db") as history:
        consumer(history, handler=lambda _: None).process([call(2)])
        history.flush()
        assert history.dropped == 0
    assert history.dropped == 1
    assert "no permission to read and write this file; " in caplog.text


def test_a_right_to_write_that_is_given_later_is_used(folder: Path) -> None:
    folder.chmod(0o777)
    with without_rights():
        history = History(f"sqlite:///{folder}/history.db")
        consumer(history, handler=lambda _: None).process([call(2)])
        history.flush()
        assert [it.name for it in folder.iterdir()] == ["history.db"], (
            "no log that nobody may write"
        )
    (folder / "history.db").chmod(0o666)
    with without_rights():
        history.flush()
        assert len(history.find(Search())) == 2
        history.close()
    assert history.dropped == 0
