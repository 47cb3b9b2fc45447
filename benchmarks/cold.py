"""Cold import of the Lambda entry point against Powertools' idempotency, and what a Lambda ships.

Each is imported in fresh processes, by turns, out of a folder that holds what its own installation
brings and nothing else, compiled beforehand as pip leaves it. Powertools' is given boto3 too, which
it imports, and which Lambda's own runtime has.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path
from statistics import median

import eventonce
from benchmarks import Figure

ROUNDS = 25
"""Each round imports both next to each other, and the median of their ratios counts, because what
else this machine does changes from one moment to the next."""
OURS = "eventonce.aws"
THEIRS = "aws_lambda_powertools.utilities.idempotency"
MOST = 0.25
MEGABYTES = 5

CODE = """
import sys, time
sys.path.insert(0, {folder!r})
started = time.perf_counter()
import {module}
print(time.perf_counter() - started)
"""


def run() -> Iterator[Figure]:
    """Import by turns, and weigh."""
    with tempfile.TemporaryDirectory(prefix="eventonce-cold-") as folder:
        ours, theirs = Path(folder, "ours"), Path(folder, "theirs")
        _install(ours, ["eventonce"])
        _install(theirs, ["aws-lambda-powertools", "boto3"])
        compiled = Path(folder, "compiled")
        for place, module in ((ours, OURS), (theirs, THEIRS)):
            _imported(place, module, compiled)
        times = [
            (_imported(ours, OURS, compiled), _imported(theirs, THEIRS, compiled))
            for _ in range(ROUNDS)
        ]
        mine, other = (median(column) for column in zip(*times, strict=True))
        ratio = median(ours_ / theirs_ for ours_, theirs_ in times)
        yield Figure("import eventonce.aws", 1000 * mine, "ms")
        yield Figure("import Powertools' idempotency", 1000 * other, "ms")
        yield Figure("ours against Powertools', median of the rounds", ratio, "times", at_most=MOST)
        yield Figure("base installation", _megabytes(ours), "MB", at_most=MEGABYTES)


def _install(folder: Path, names: list[str]) -> None:
    """Links to the packages of these distributions and of all they need."""
    folder.mkdir()
    done: set[str] = set()
    while names:
        name = names.pop()
        if name not in done:
            done.add(name)
            found = distribution(name)
            names += _needs(found)
            for package in _packages(found):
                (folder / package.name).symlink_to(package)


def _needs(found: Distribution) -> list[str]:
    """What it cannot do without on this Python: no extras, no other systems."""
    names = []
    for text in found.requires or ():
        requirement, _, condition = text.partition(";")
        if not condition or ("extra" not in condition and "win" not in condition.lower()):
            names.append(_name(requirement))
    return names


def _name(requirement: str) -> str:
    for mark in "<>=!~[( ":
        requirement = requirement.partition(mark)[0]
    return requirement


def _packages(found: Distribution) -> list[Path]:
    name = found.metadata["Name"]
    if name == "eventonce":
        # Installed for development: there is a link to it, and no list of its files.
        return [Path(eventonce.__file__).parent]
    tops = {file.parts[0] for file in found.files or () if file.parts[0] != ".."}
    return [
        Path(str(found.locate_file(top)))
        for top in sorted(tops)
        if not top.endswith(".dist-info") and top not in ("bin", "__pycache__")
    ]


def _imported(folder: Path, module: str, compiled: Path) -> float:
    """Seconds, in a process that sees this folder and the standard library."""
    command = [
        *(sys.executable, "-I", "-S", "-X", f"pycache_prefix={compiled}"),
        *("-c", CODE.format(folder=str(folder), module=module)),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout)


def _megabytes(folder: Path) -> float:
    """What is in the packages, without what Python compiles of it."""
    files = (
        file
        for package in folder.iterdir()
        for file in package.resolve().rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    )
    return sum(file.stat().st_size for file in files) / 1e6
