"""A study that is ended by a signal leaves no process behind, and no folder for long."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from eventonce.errors import EventonceError
from eventonce.sources.parquet import duckdb
from eventonce.study.index import ONE_PROCESS_LINES
from eventonce.study.scratch import Scratch
from tests.helpers import call, until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def folders(temporary: Path) -> list[Path]:
    return list(temporary.glob("eventonce-study-*"))


WAITING = """
import sys
from eventonce.cli import diagnose, main
# A pipe is refused, because it cannot be read twice; here nothing is read twice.
diagnose.check_no_pipe = lambda captures: None
main(["diagnose", sys.argv[1]])
"""


@contextmanager
def studying(temporary: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A diagnosis that has begun and waits for the rest of its capture."""
    capture = temporary / "capture"
    os.mkfifo(capture)
    command = [sys.executable, "-c", WAITING, str(capture)]
    environment = {**os.environ, "TMPDIR": str(temporary)}
    with (
        subprocess.Popen(command, env=environment) as study,
        os.fdopen(_opened(capture, study), "wb") as pipe,
    ):
        pipe.write((call(1) + b"\n") * (ONE_PROCESS_LINES + 10_000))
        pipe.flush()
        until(lambda: len(helpers(study.pid)) >= 2)
        try:
            yield study
        finally:
            study.kill()


def _opened(capture: Path, study: subprocess.Popen[bytes]) -> int:
    """The capture, opened when the study reads it. A blocking open would wait for ever for a study
    that has ended."""
    found: list[int] = []

    def is_read() -> bool:
        assert study.poll() is None
        with suppress(OSError):
            found.append(os.open(capture, os.O_WRONLY | os.O_NONBLOCK))
        return bool(found)

    until(is_read)
    os.set_blocking(found[0], True)
    return found[0]


def helpers(process: int) -> list[int]:
    return [*map(int, Path(f"/proc/{process}/task/{process}/children").read_text().split())]


def test_a_killed_study_leaves_no_process_and_the_next_study_removes_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with studying(tmp_path) as study:
        left = helpers(study.pid)
        study.kill()
    until(lambda: not any(Path(f"/proc/{process}").exists() for process in left))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    [abandoned] = folders(tmp_path)
    with Scratch(), Scratch():
        mine = folders(tmp_path)
        assert len(mine) == 2, "one in use was removed, or one that was abandoned was not"
        assert abandoned not in mine
    assert not folders(tmp_path)


def test_a_terminated_study_removes_its_folder(tmp_path: Path) -> None:
    with studying(tmp_path) as study:
        study.terminate()
        assert study.wait(60) == 128 + signal.SIGTERM
    assert not folders(tmp_path)


def test_ctrl_c_ends_a_study_at_once_and_raises_no_exception_in_it(tmp_path: Path) -> None:
    """DuckDB replaces the exception by one of its own, and a pool of processes may wait for ever
    after it."""
    program = """
import signal
from eventonce.cli.report import studying
from eventonce.study.scratch import Scratch
with studying("diagnose"), Scratch():
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        print("raised")
"""
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (128 + signal.SIGINT, "")
    assert ended.stderr == "eventonce: interrupted\n"
    assert not folders(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_study_that_is_ended_leaves_no_copy_of_a_parquet_object(
    number: signal.Signals, tmp_path: Path
) -> None:
    program = """
import io, signal, sys
from eventonce.cli.report import studying
from eventonce.sources.inputs import Input

class Object(io.BytesIO):
    def peek(self, size):
        return b"PAR1"

    def read(self, size):
        signal.raise_signal(int(sys.argv[1]))

with studying("diagnose"):
    list(Input("s3://bucket/c.parquet", 4, Object).chunks(1))
"""
    ended = subprocess.run(
        [sys.executable, "-c", program, str(int(number))],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        check=False,
    )
    assert ended.returncode == 128 + number
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_for_a_process_of_a_study_leaves_the_folder_of_the_study(
    number: signal.Signals, tmp_path: Path
) -> None:
    program = """
import os, signal, sys, tempfile
from eventonce.cli.report import studying
from eventonce.study.scratch import Scratch
with studying("diagnose"), Scratch():
    child = os.fork()
    if not child:
        signal.raise_signal(int(sys.argv[1]))
    os.waitpid(child, 0)
    print(*os.listdir(tempfile.gettempdir()))
"""
    command = [sys.executable, "-c", program, str(int(number))]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    [left] = subprocess.check_output(command, env=environment, text=True).split()
    assert left.startswith("eventonce-study-")
    assert not left.endswith("-ended")


def test_a_long_query_draws_no_progress_bar() -> None:
    """DuckDB draws a bar where Python runs no script file, as in an interactive session."""
    program = """
from eventonce.study.scratch import Scratch
with Scratch() as scratch:
    scratch.run("CREATE TABLE told AS SELECT current_setting('enable_progress_bar')")
    print(*next(scratch.rows("FROM told")))
"""
    told = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
    assert told.stdout == b"False\n"


LARGE = "SELECT list(range) AS one FROM range(3_000_000)"


@pytest.mark.parametrize("counted", [LARGE, f"CREATE TABLE told AS {LARGE}"])
def test_too_little_memory_is_not_reported_as_a_full_disk(counted: str) -> None:
    with Scratch() as scratch:
        scratch.run("SET memory_limit = '10MB'")
        with pytest.raises(EventonceError, match=r"needs more memory.*fewer files at once"):
            list(scratch.rows(counted))
        with pytest.raises(EventonceError, match="needs more memory"):
            scratch.run(counted)


def test_a_full_disk_is_not_reported_as_too_little_memory() -> None:
    with Scratch() as scratch:
        scratch.run("SET memory_limit = '20MB'; SET max_temp_directory_size = '1MB'")
        scratch.run("CREATE TABLE told AS SELECT hash(range) AS it FROM range(2_000_000)")
        with pytest.raises(EventonceError, match=r"cannot be written.*name another folder"):
            scratch.run(
                "CREATE TABLE sorted AS SELECT it, list(it) FROM told GROUP BY 1 ORDER BY 1"
            )


def test_an_error_between_two_parts_of_an_answer_is_reported_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fetchmany(_: int) -> Any:
        raise duckdb().OutOfMemoryException("no room")

    answer = SimpleNamespace(execute=lambda *_: SimpleNamespace(fetchmany=fetchmany))
    with Scratch() as scratch, monkeypatch.context() as patch:
        patch.setattr(scratch, "_database", SimpleNamespace(cursor=lambda: answer))
        with pytest.raises(EventonceError, match="no room"):
            next(scratch.rows(LARGE))
