"""`eventonce diagnose` on simulated captures of three sizes: the processor time of an event,
whether it grows with the capture, and the memory of all processes together.

`EVENTONCE_BENCH_STUDY` is the number of events of the largest capture; `make scale` sets ten
million. Rates are those of two idle cores: processor time, not wall-clock time, so that other load
on the machine counts less.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks import Figure

LARGEST = int(os.environ.get("EVENTONCE_BENCH_STUDY", "1000000"))
PART = min(1_000_000, LARGEST // 10)
"""The events in one file of a capture."""
PARTS = LARGEST // PART
ENDING = ".jsonl" if LARGEST <= 10_000_000 else ".jsonl.zst"
"""Ten million events are 10 GB, or a tenth of that compressed."""
CORES = 2
WATCHED = 0.5
"""Seconds between two measurements of the memory."""

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
with Index([Path(one) for one in sys.argv[1:]], Planned(rules, states)) as index:
    index.build(2)
    indexed = used()
    found = diagnose(index)
print(json.dumps({"lines": found.lines, "copies": found.copies, "indexed": indexed, "all": used()}))
"""

LOADED = """
import json, sys, time
from pathlib import Path
from eventonce.sources.files import Capture
lines, before = 0, time.process_time()
for lines, line in enumerate(Capture([Path(sys.argv[1])]), start=1):
    json.loads(line)
print(json.dumps({"lines": lines, "all": time.process_time() - before}))
"""


def _memory(process: int) -> int:
    """Return the bytes of a process and its children; shared pages count once."""
    total = 0
    try:
        for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total = int(line.split()[1]) * 1024
        children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    except OSError:
        return total
    return total + sum(_memory(int(child)) for child in children)


def _disk(folder: str) -> int:
    """Return the bytes of the files in a folder; some may be removed meanwhile."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += Path(parent, name).stat().st_blocks * 512
    return total


def measured(script: str, *arguments: Path | int) -> dict[str, Any]:
    """Return the output of the script, and the most memory and temporary disk space that it was
    seen to use."""
    with tempfile.TemporaryDirectory() as temporary:
        environment = {**os.environ, "TMPDIR": temporary}
        command = [sys.executable, "-c", script, *map(str, arguments)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as running:
            memory = disk = 0
            while running.poll() is None:
                memory = max(memory, _memory(running.pid))
                disk = max(disk, _disk(temporary))
                time.sleep(WATCHED)
            assert running.stdout is not None
            return {**json.loads(running.stdout.read()), "memory": memory, "disk": disk}


def simulated(folder: str, parts: int, events: int, ending: str) -> list[Path]:
    """Return the files of a capture, each with its own conversations."""
    files = []
    for seed in range(1, parts + 1):
        files.append(Path(folder, f"{seed:04}{ending}"))
        simulate = [sys.executable, "-m", "eventonce", "simulate", "--events", str(events)]
        subprocess.run(
            [*simulate, "--days", "30", "--seed", str(seed), "-o", str(files[-1])],
            check=True,
            stderr=subprocess.DEVNULL,
        )
    return files


def run() -> Iterator[Figure]:
    """Simulate captures, diagnose them, and compare the costs."""
    costs, counting = [], []
    with tempfile.TemporaryDirectory() as folder:
        files = simulated(folder, PARTS, PART, ENDING)
        for parts in (PARTS // 10, PARTS // 3, PARTS):
            found = measured(DIAGNOSED, *files[:parts])
            lines = found["lines"]
            costs.append(found["all"] / lines)
            counting.append((found["all"] - found["indexed"]) / lines)
            name = f"{lines:,} events"
            yield Figure(f"{name}: processor time an event", costs[-1] * 1e6, "µs")
            yield Figure(f"{name}: of that, the counting passes", counting[-1] * 1e6, "µs")
            yield Figure(
                f"{name}: memory of all processes", found["memory"] / 2**20, "MiB", at_most=1024
            )
            yield Figure(f"{name}: temporary disk space", found["disk"] / 2**20, "MiB")
        read = measured(LOADED, files[0])
    loaded = read["all"] / read["lines"]
    yield Figure(
        "growth of that time to 10 times the events", costs[-1] / costs[0], "times", at_most=1.2
    )
    yield Figure("growth of the counting passes", counting[-1] / counting[0], "times", at_most=1.2)
    yield Figure("json.loads alone: processor time an event", loaded * 1e6, "µs")
    yield Figure("diagnose against json.loads alone", costs[-1] / loaded, "times")
    yield Figure("counting passes on two cores", CORES / counting[-1], "events/s", at_least=200_000)
    yield Figure("all in on two cores", CORES / costs[-1], "events/s", at_least=50_000)
