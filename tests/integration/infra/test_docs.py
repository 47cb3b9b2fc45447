"""The example at the top of docs/infrastructure.md, run as shown on an emulator."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from eventonce.cli import main
from tests.helpers import PATIENCE
from tests.servers.aws import REGION

PAGE = (Path(__file__).parents[3] / "docs" / "infrastructure.md").read_text()


def block(language: str) -> str:
    return str(re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)[0])


def test_the_example_runs_as_shown(
    endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    # The worker does not wait for long when it is to end.
    Path("eventonce.toml").write_text(block("toml").replace("[worker]\n", "[worker]\nwait = 1\n"))
    Path("event.json").write_text(block("json"))
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    *first, last = re.findall(r"^\$ eventonce (.*)$", block("console"), re.MULTILINE)
    for line in first:
        with pytest.raises(SystemExit) as stop:
            main(shlex.split(line))
        assert not stop.value.code, line
    assert last == "run"
    # One line an event, so that the log shows when the last copy was received.
    log = Path("worker.log")
    with (
        log.open("w") as told,
        subprocess.Popen([sys.executable, "-m", "eventonce", last, "-v"], stderr=told) as worker,
    ):
        try:
            _until_all_were_received(worker, log)
        finally:
            worker.send_signal(signal.SIGTERM)
            worker.wait(PATIENCE)
    assert "3 deliveries, 1 done" in log.read_text()
    (effect,) = Path("effects.jsonl").read_text().splitlines()
    assert "8b1c" in effect


def _until_all_were_received(worker: subprocess.Popen[bytes], log: Path) -> None:
    """Busy copies come again a lease later, and the test does not wait for that."""
    end = time.monotonic() + PATIENCE
    while log.read_text().count('"key":') < 3:
        assert worker.poll() is None, log.read_text()
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.1)
