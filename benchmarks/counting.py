"""The counting passes of `eventonce diagnose` on an index of a very large capture: the index of a
simulated capture, repeated under other keys. Reading an event and making its key takes the same
time for every event; the growth of the counting has to be measured.

`EVENTONCE_BENCH_COUNTING` is the number of events.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator

from benchmarks import Figure
from benchmarks.study import CORES, measured, simulated

BASE = 300_000
LARGEST = max(10 * BASE, int(os.environ.get("EVENTONCE_BENCH_COUNTING", "0")))

COUNTED = """
import json, resource, sys
from pathlib import Path
from eventonce import presets
from eventonce.rules import Ruleset
from eventonce.study.diagnose import diagnose
from eventonce.study.index import Index, Planned

def used():
    one = resource.getrusage(resource.RUSAGE_SELF)
    return one.ru_utime + one.ru_stime

class Repeated(Index):
    def repeat(self, times):
        self.once = self.lines
        anew = "message id content essence key subject".split()
        for time in range(1, times):
            told = [f"line + {time * self.once} AS line"]
            told += [f"if(coalesce({it}, 0) = 0, {it}, hash({it}, {time})) AS {it}" for it in anew]
            self.run(
                f"INSERT INTO events SELECT * REPLACE ({', '.join(told)}) FROM events "
                f"WHERE line <= {self.once}"
            )
        self.lines *= times

    def samples(self, wanted):
        numbers = [*wanted]
        found = {(number - 1) % self.once + 1 for number in numbers}
        samples = {one.line: (event, one) for event, one in super().samples(iter(sorted(found)))}
        for number in numbers:
            time, line = divmod(number - 1, self.once)
            if line + 1 in samples:
                event, one = samples[line + 1]
                yield event, one._replace(line=number, id=one.id and hash((one.id, time)))

rules = Ruleset(presets.resolve("auto"), name="study")
states = Ruleset(presets.load("genesys:latest").rules, name="study")
with Repeated([Path(sys.argv[1])], Planned(rules, states)) as index:
    index.build(2)
    index.repeat(int(sys.argv[2]))
    before = used()
    found = diagnose(index)
print(json.dumps({"lines": found.lines, "copies": found.copies, "all": used() - before}))
"""


def run() -> Iterator[Figure]:
    """Simulate a capture, repeat its index, and count."""
    costs = []
    with tempfile.TemporaryDirectory() as folder:
        (capture,) = simulated(folder, 1, BASE, ".jsonl")
        for times in (LARGEST // BASE // 10, LARGEST // BASE):
            found = measured(COUNTED, capture, times)
            costs.append(found["all"] / found["lines"])
            name = f"{found['lines']:,} events"
            yield Figure(f"{name}: processor time an event", costs[-1] * 1e6, "µs")
            yield Figure(
                f"{name}: memory of all processes", found["memory"] / 2**20, "MiB", at_most=1024
            )
            yield Figure(f"{name}: temporary disk space", found["disk"] / 2**20, "MiB")
    yield Figure(
        "growth of that time to 10 times the events", costs[-1] / costs[0], "times", at_most=1.2
    )
    yield Figure("on two cores", CORES / costs[-1], "events/s", at_least=200_000)
