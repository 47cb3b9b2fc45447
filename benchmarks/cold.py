"""Cold start of a function against Powertools' idempotency, and the size of a Lambda package.

Both do the work before the first event: import, make the DynamoDB layer with its client, and the
handler. Each does so in new processes, in turns, from a folder with its own installation and boto3,
which Lambda's runtime has; all is compiled beforehand, as by pip. No server is called. The figure
is processor time: there is almost no waiting, and other load on the machine counts less.
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
"""Each round starts all of them one after the other, and the median of their ratios counts, because
the load of the machine changes from one moment to the next."""
MOST = 0.5
MEGABYTES = 5

OURS = """
from eventonce import Consumer, Rule
from eventonce.aws import lambda_handler
rules = {rules}
consumer = Consumer("dynamodb://table?region=eu-central-1", name="crm", rules=rules)
consumer.on()(print)
handler = lambda_handler(consumer)
"""
ONE_RULE = 'Rule(name="call", key=["detail.eventBody.conversationId"])'
PRESET = '"genesys"'

THEIRS = """
from aws_lambda_powertools.utilities.idempotency import (
    DynamoDBPersistenceLayer, IdempotencyConfig, idempotent,
)
layer = DynamoDBPersistenceLayer(table_name="table")
config = IdempotencyConfig(event_key_jmespath="detail.eventBody.conversationId")
@idempotent(persistence_store=layer, config=config)
def handler(event, context):
    return None
"""

TIMED = """
import sys, time
sys.path.insert(0, {folder!r})
started = time.process_time()
{code}
print(time.process_time() - started)
"""

ENVIRONMENT = {
    "AWS_DEFAULT_REGION": "eu-central-1",
    "AWS_ACCESS_KEY_ID": "benchmark",
    "AWS_SECRET_ACCESS_KEY": "not-a-secret",
    "AWS_EC2_METADATA_DISABLED": "true",
}
"""The environment of a function: with a region and credentials."""

FOR_BOTOCORE = {"AWS_USE_FIPS_ENDPOINT": "false"}
"""A variable that makes the store use botocore for its client."""


def run() -> Iterator[Figure]:
    """Start the processes in turns, then measure the sizes."""
    with tempfile.TemporaryDirectory(prefix="eventonce-cold-") as folder:
        ours, theirs, base = Path(folder, "ours"), Path(folder, "theirs"), Path(folder, "base")
        _install(ours, ["eventonce", "boto3"])
        _install(theirs, ["aws-lambda-powertools", "boto3"])
        _install(base, ["eventonce"])
        compiled = Path(folder, "compiled")
        one_rule = OURS.format(rules=ONE_RULE)
        sides = {
            "one rule": (ours, one_rule, ENVIRONMENT),
            "the preset genesys": (ours, OURS.format(rules=PRESET), ENVIRONMENT),
            "botocore's client": (ours, one_rule, ENVIRONMENT | FOR_BOTOCORE),
            "Powertools' idempotency": (theirs, THEIRS, ENVIRONMENT),
        }
        for side in sides.values():
            _started(*side, compiled)
        times = [[_started(*side, compiled) for side in sides.values()] for _ in range(ROUNDS)]
        for name, column in zip(sides, zip(*times, strict=True), strict=True):
            yield Figure(f"a function with {name}", 1000 * median(column), "ms")
        for number, name in enumerate(list(sides)[:-1]):
            ratio = median(row[number] / row[-1] for row in times)
            most = MOST if name != "botocore's client" else None
            yield Figure(f"{name} / Powertools, median of the rounds", ratio, "times", at_most=most)
        yield Figure("base installation", _megabytes(base), "MB", at_most=MEGABYTES)


def _install(folder: Path, names: list[str]) -> None:
    """Link the packages of these distributions and of all their requirements."""
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
    """Return the requirements on this Python: without extras and other systems."""
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
        # Installed for development: there is no list of its files.
        return [Path(eventonce.__file__).parent]
    tops = {file.parts[0] for file in found.files or () if file.parts[0] != ".."}
    return [
        Path(str(found.locate_file(top)))
        for top in sorted(tops)
        if not top.endswith(".dist-info") and top not in ("bin", "__pycache__")
    ]


def _started(folder: Path, code: str, environment: dict[str, str], compiled: Path) -> float:
    """Return the processor time of a process with only this folder and the standard library."""
    command = [
        *(sys.executable, "-I", "-S", "-X", f"pycache_prefix={compiled}"),
        *("-c", TIMED.format(folder=str(folder), code=code)),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return float(done.stdout)


def _megabytes(folder: Path) -> float:
    """Return the size of the packages, without compiled files."""
    files = (
        file
        for package in folder.iterdir()
        for file in package.resolve().rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    )
    return sum(file.stat().st_size for file in files) / 1e6
