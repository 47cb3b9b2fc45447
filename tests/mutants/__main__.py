"""`python -m tests.mutants [WORD]`: plant each breakage whose name has the word; is it caught?

Exit code 1 if one survives, if its text is not found exactly once, or if its tests are red anyway.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tests.mutants import MUTANTS, Mutant
from tests.mutants.mutant import planted

ROOT: Final = Path(__file__).parents[2]
SIDE_BY_SIDE: Final = 2
"""Pytests at once: the cores of the smallest machine this runs on."""
PATIENCE: Final = 300
"""Seconds: a breakage may well make a test wait for ever, and that too is being caught."""
FAILED: Final = 1
"""Pytest's exit code for tests that ran and failed; any other means that they did not run."""


def main(words: list[str]) -> int:
    """Print a line for each breakage; answer with the exit code."""
    chosen = [mutant for mutant in MUTANTS if all(word in mutant.name for word in words)]
    started = time.monotonic()
    with TemporaryDirectory(prefix="eventonce-mutants-") as folder:
        sane = _sane(Path(folder) / "sane", chosen)
        if sane:
            _say(f"These tests are red with nothing planted:\n{sane}")
            return 1
        with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
            fates = pool.map(
                lambda numbered: _fate(Path(folder) / str(numbered[0]), numbered[1]),
                enumerate(chosen),
            )
            survivors = _table(chosen, fates)
    _say(
        f"{len(chosen) - survivors} of {len(chosen)} caught, {survivors} not,"
        f" in {time.monotonic() - started:.0f} s"
    )
    return 1 if survivors or not chosen else 0


def _table(chosen: list[Mutant], fates: Iterable[str]) -> int:
    survivors = 0
    width = max((len(mutant.name) for mutant in chosen), default=0)
    for mutant, fate in zip(chosen, fates, strict=True):
        survivors += fate != "caught"
        _say(f"{mutant.name:{width}}  {mutant.file:40}  {fate}")
    return survivors


def _sane(tree: Path, chosen: list[Mutant]) -> str:
    """What is wrong before anything is planted: a suite that is red anyway catches everything."""
    _copy(tree)
    tests = sorted({test for mutant in chosen for test in mutant.red})
    run = _pytest(tree, tests)
    return "" if run.returncode == 0 else (run.stdout + run.stderr)[-3000:]


def _fate(tree: Path, mutant: Mutant) -> str:
    _copy(tree)
    file = tree / mutant.file
    try:
        file.write_text(planted(mutant, file.read_text(encoding="utf-8")), encoding="utf-8")
        run = _pytest(tree, [*mutant.red, "-x"])
    except ValueError as error:
        return f"NOT PLANTED ({error})"
    except subprocess.TimeoutExpired:
        return "caught"
    finally:
        shutil.rmtree(tree, ignore_errors=True)
    if run.returncode == FAILED:
        return "caught"
    if run.returncode == 0:
        return "SURVIVED"
    return f"NOT RUN (pytest's exit code {run.returncode})"


def _copy(tree: Path) -> None:
    for part in ("src", "tests"):
        ignored = shutil.ignore_patterns("__pycache__", ".*")
        shutil.copytree(ROOT / part, tree / part, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", tree)


def _pytest(tree: Path, arguments: list[str]) -> subprocess.CompletedProcess[str]:
    # The copy must come before an installed eventonce, and leave no bytecode of another's text.
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "--no-header", *arguments],
        cwd=tree,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
