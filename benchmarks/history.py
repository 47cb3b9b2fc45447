"""The figures of every run, one JSON line a run in `figures.jsonl`.

The file is kept in the repository, so that a figure can be followed over the changes.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from benchmarks import Figure

FILE = Path(__file__).with_name("figures.jsonl")


class Measured(msgspec.Struct, frozen=True, omit_defaults=True):
    """A figure, and the benchmark that measured it."""

    benchmark: str
    what: str
    value: float
    unit: str = ""
    at_most: float | None = None
    at_least: float | None = None


class Run(msgspec.Struct, frozen=True):
    """One run of some or all benchmarks."""

    date: str
    commit: str
    """The commit; it ends with `-dirty` if there were uncommitted changes."""
    machine: str
    figures: list[Measured]


def keep(figures: Iterable[tuple[str, Figure]], file: Path = FILE) -> None:
    """Add this run to the file."""
    measured = [
        Measured(benchmark, *figure._replace(value=float(f"{figure.value:.4g}")))
        for benchmark, figure in figures
    ]
    now = datetime.now(UTC).isoformat(timespec="seconds")
    run = Run(now, _commit(), _machine(), measured)
    with file.open("ab") as lines:
        lines.write(msgspec.json.encode(run) + b"\n")


def runs(file: Path = FILE) -> list[Run]:
    """Return all runs, the oldest first."""
    return [msgspec.json.decode(line, type=Run) for line in file.read_bytes().splitlines()]


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty", "--exclude", "*"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=FILE.parent, check=False)
    return done.stdout.strip()


def _machine() -> str:
    """Return the kind of machine, not its name."""
    about = Path("/proc/cpuinfo")
    model = re.search(r"model name\s*: (.*)", about.read_text()) if about.exists() else None
    processor = model[1] if model else platform.machine()
    return f"{os.cpu_count()} x {processor}, Python {platform.python_version()}"
