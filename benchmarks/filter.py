"""`eventonce filter` on SQLite against the naive script, as processes on the same file.

`EVENTONCE_BENCH_GB` is the size of the stream whose memory is measured.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from benchmarks import Figure
from benchmarks.yardstick import EVENT

EVENTS = 300_000
COPIES = 0.3
ROUNDS = 5
STREAM_GB = float(os.environ.get("EVENTONCE_BENCH_GB", "10"))

NAIVE = """
import json, sys
seen = set()
for line in sys.stdin:
    event = json.loads(line)
    body = event["detail"]["eventBody"]
    key = (
        event["detail-type"],
        body["conversationId"],
        body["participantId"],
        body["sessionId"],
        body["eventTime"],
    )
    if key not in seen:
        seen.add(key)
        sys.stdout.write(line)
"""


def _event(number: int, published: int) -> bytes:
    """Return a fact with a new transport id and correlation id."""
    return (
        EVENT.replace(b"1b8e4c38", b"%08x" % number)
        .replace(b"1777886127391", b"%d" % (1_777_886_127_391 + number * 5))
        .replace(b"6a7e8feb", b"%08x" % published)
        .replace(b"8d1f3f5a", b"%08x" % published)
    )


def _capture(path: Path) -> None:
    chance = random.Random(1)
    with path.open("wb") as out:
        fact = 0
        for published in range(EVENTS):
            if fact and chance.random() < COPIES:
                out.write(_event(chance.randrange(max(0, fact - 5_000), fact), published) + b"\n")
            else:
                out.write(_event(fact, published) + b"\n")
                fact += 1


def _filter(*options: str) -> list[str]:
    return [sys.executable, "-m", "eventonce", "filter", "--presets", "genesys", *options]


def _seconds(command: list[str], source: Path, out: Path) -> float:
    with source.open("rb") as given, out.open("wb") as taken:
        started = time.perf_counter()
        subprocess.run(command, stdin=given, stdout=taken, stderr=subprocess.DEVNULL, check=True)
        return time.perf_counter() - started


def _speed(folder: Path) -> Iterator[Figure]:
    capture = folder / "capture.jsonl"
    _capture(capture)
    ratios = []
    for number in range(ROUNDS):
        naive = _seconds([sys.executable, "-c", NAIVE], capture, folder / "naive")
        store = f"sqlite:///{folder}/{number}.db"
        ours = _seconds(_filter("--store", store), capture, folder / "ours")
        if (folder / "naive").read_bytes() != (folder / "ours").read_bytes():
            raise AssertionError("the two do not agree")
        ratios.append(naive / ours)
    yield Figure("naive script's time / filter's time", median(ratios), "x", at_least=1.0)


def _memory(folder: Path) -> Iterator[Figure]:
    """Yield the peak memory of the process, early and late in a long stream with a store."""
    command = _filter("--store", f"sqlite:///{folder}/stream.db")
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    assert process.stdin is not None
    lines = int(STREAM_GB * 1e9 / len(_event(0, 0)))
    early = 0
    for number in range(lines):
        process.stdin.write(_event(number, number) + b"\n")
        if number == lines // 10:
            early = _resident(process.pid)
    late = _resident(process.pid)
    process.stdin.close()
    process.wait()
    what = f"memory at the end / after a tenth of {STREAM_GB:g} GB"
    yield Figure(what, late / early, "x", at_most=1.1)
    yield Figure("memory at the end", late / 1e6, "MB")


def _resident(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def run() -> Iterator[Figure]:
    """Yield the figures of speed, then of memory."""
    with tempfile.TemporaryDirectory() as folder:
        yield from _speed(Path(folder))
        yield from _memory(Path(folder))
