"""The examples with a queue run with one command and end with each effect once."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import PATIENCE
from tests.servers import missing

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("name", ["lambda_sqs", "worker_sqlite"])
def test_an_example_runs_with_one_command_and_closes_each_call_once(name: str) -> None:
    if importlib.util.find_spec("ministack") is None:
        missing("ministack is not installed (pip install ministack aws-sam-translator boto3)")
    command = [sys.executable, str(EXAMPLES / name / "run.py")]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=3 * PATIENCE, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    shown = done.stdout.partition("closed calls\n")[2]
    promised = (EXAMPLES / name / "README.md").read_text().rpartition("closed calls\n")[2]
    expected = sorted(re.findall(r"  [0-9a-f-]{36}  .*", promised))
    assert sorted(shown.splitlines()) == expected
    assert len(expected) == 3
