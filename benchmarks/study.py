"""`eventonce diagnose` on simulated captures of three sizes: what an event costs in processor time,
whether that grows with the capture, and the memory of all processes together.

`EVENTONCE_BENCH_STUDY` is the number of events of the largest capture. Rates are those of two cores
that do nothing else: processor time, not the clock, so that other work on the machine counts less.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import Figure

LARGEST = int(os.environ.get("EVENTONCE_BENCH_STUDY", "1000000"))
SIZES = (LARGEST // 10, LARGEST // 3, LARGEST)
CORES = 2
WATCHED = 0.5
"""Seconds from one look at the memory to the next."""

DIAGNOSED = """
import json, resource, sys
from pathlib import Path
from eventonce import presets
from eventonce.rules import Ruleset
from eventonce.study.diagnose import diagnose
from eventonce.study.index import Index, Planned

def used():
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in both)

rules = Ruleset(presets.resolve("auto"), name="study")
states = Ruleset(presets.load("genesys:latest").rules, name="study")
with Index([Path(sys.argv[1])], Planned(rules, states)) as index:
    index.build(2)
    indexed = used()
    found = diagnose(index)
print(json.dumps({"lines": found.lines, "copies": found.copies, "indexed": indexed, "all": used()}))
"""

LOADED = """
import json, resource, sys
with open(sys.argv[1], "rb") as lines:
    for line in lines:
        json.loads(line)
one = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps({"all": one.ru_utime + one.ru_stime}))
"""


def _memory(process: int) -> int:
    """Bytes of a process and of those it started; pages that they share count once."""
    total = 0
    try:
        for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total = int(line.split()[1]) * 1024
        children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    except OSError:
        return total
    return total + sum(_memory(int(child)) for child in children)


def _measured(script: str, capture: Path) -> dict[str, Any]:
    """What the script prints, and the most memory that it was seen to take."""
    command = [sys.executable, "-c", script, str(capture)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as running:
        most = 0
        while running.poll() is None:
            most = max(most, _memory(running.pid))
            time.sleep(WATCHED)
        assert running.stdout is not None
        return {**json.loads(running.stdout.read()), "memory": most}


def run() -> Iterator[Figure]:
    """Simulate, diagnose, compare."""
    costs = []
    with tempfile.TemporaryDirectory() as folder:
        capture = Path(folder, "capture.jsonl")
        for size in SIZES:
            simulate = [sys.executable, "-m", "eventonce", "simulate", "--events", str(size)]
            subprocess.run([*simulate, "-o", str(capture)], check=True, stderr=subprocess.DEVNULL)
            found = _measured(DIAGNOSED, capture)
            lines = found["lines"]
            costs.append(found["all"] / lines)
            name = f"{lines:,} events"
            yield Figure(f"{name}: processor time an event", costs[-1] * 1e6, "µs")
            yield Figure(
                f"{name}: memory of all processes", found["memory"] / 2**20, "MiB", at_most=1024
            )
        loaded = _measured(LOADED, capture)["all"] / lines
    counting = (found["all"] - found["indexed"]) / lines
    yield Figure(
        "growth of that time to 10 times the events", costs[-1] / costs[0], "times", at_most=1.2
    )
    yield Figure("json.loads alone: processor time an event", loaded * 1e6, "µs")
    yield Figure("diagnose against json.loads alone", costs[-1] / loaded, "times")
    yield Figure("counting passes on two cores", CORES / counting, "events/s", at_least=200_000)
    yield Figure("all in on two cores", CORES / costs[-1], "events/s", at_least=50_000)
