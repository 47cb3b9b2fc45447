"""A study that is ended by a signal leaves no process behind, and no folder for long."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from eventonce.study.index import INLINE
from eventonce.study.scratch import Scratch
from tests.helpers import call, until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def folders(temporary: Path) -> list[Path]:
    return list(temporary.glob("eventonce-study-*"))


@contextmanager
def studying(temporary: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A diagnosis that has begun and waits for the rest of its capture."""
    capture = temporary / "capture"
    os.mkfifo(capture)
    command = [sys.executable, "-m", "eventonce", "diagnose", str(capture)]
    environment = {**os.environ, "TMPDIR": str(temporary)}
    with subprocess.Popen(command, env=environment) as study, capture.open("wb") as pipe:
        pipe.write((call(1) + b"\n") * (INLINE + 10_000))
        pipe.flush()
        until(lambda: len(helpers(study.pid)) >= 2)
        try:
            yield study
        finally:
            study.kill()


def helpers(process: int) -> list[int]:
    return [*map(int, Path(f"/proc/{process}/task/{process}/children").read_text().split())]


def test_a_killed_study_leaves_no_process_and_the_next_one_removes_its_folder(
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


def test_a_study_that_is_told_to_end_removes_its_folder(tmp_path: Path) -> None:
    with studying(tmp_path) as study:
        study.terminate()
        assert study.wait(60) == 128 + signal.SIGTERM
    assert not folders(tmp_path)


def test_a_long_query_draws_nothing_where_the_report_goes() -> None:
    """DuckDB draws a bar for whoever types Python, which is who has no script."""
    program = """
from eventonce.study.scratch import Scratch
with Scratch() as scratch:
    scratch.run("CREATE TABLE told AS SELECT current_setting('enable_progress_bar')")
    print(*next(scratch.rows("FROM told")))
"""
    told = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
    assert told.stdout == b"False\n"
