"""The SQLite store as it fills, from 10 thousand keys to 10 million: claim and settle in batches of
1,000.

`EVENTONCE_BENCH_KEYS` makes the largest store smaller.
"""

from __future__ import annotations

import os
import random
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from benchmarks import Figure
from benchmarks.yardstick import json_loads
from eventonce.stores.sqlite import SQLiteStore
from eventonce.types import Claim, Settlement

BATCH = 1_000
SMALL = 100_000
LARGE = int(os.environ.get("EVENTONCE_BENCH_KEYS", "10000000"))
SIZES = (*(size for size in (10_000, SMALL, 1_000_000) if size < LARGE), LARGE)
MEASURED = 300
"""Batches timed: a few times what lies between two checkpoints; fewer in a store that is small."""

EVENTS_A_SECOND = 1_000
START = 1_777_000_000
LEASE = 60_000
REMEMBER = 10 * 86_400_000


def _batch(number: int, chance: random.Random) -> list[Claim]:
    """Facts that are new, with keys as `rules` makes them: the second, then a digest."""
    second = ((START + number * BATCH // EVENTS_A_SECOND) % 2**24).to_bytes(3, "big")
    nonce = chance.getrandbits(52) | 1
    return [
        Claim(second + chance.randbytes(13), nonce, LEASE, REMEMBER, 5, by=chance.randbytes(4))
        for _ in range(BATCH)
    ]


def _process(store: SQLiteStore, claims: list[Claim], now: int) -> tuple[float, float]:
    """Seconds for claiming and for completing."""
    begun = time.perf_counter()
    verdicts = store.claim(claims, now)
    claimed = time.perf_counter()
    settlements = [
        Settlement(claim, verdict.token, "complete")
        for claim, verdict in zip(claims, verdicts, strict=True)
    ]
    told = time.perf_counter()
    kept = store.settle(settlements, now + 5)
    settled = time.perf_counter()
    if kept != ["kept"] * len(claims):
        raise AssertionError("a new fact was not completed")
    return claimed - begun, settled - told


def _instant(number: int) -> int:
    return (START + number * BATCH // EVENTS_A_SECOND) * 1000


def run() -> Iterator[Figure]:
    """Fill a store in steps and measure at each."""
    chance = random.Random(7)
    speeds, memories = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "bench.db")
        store = SQLiteStore(path)
        number = 0
        for size in SIZES:
            while number * BATCH < size:
                _process(store, _batch(number, chance), _instant(number))
                number += 1
            memories[size] = _resident()
            times = []
            units = []
            for _ in range(min(MEASURED, size // BATCH)):
                times.append(_process(store, _batch(number, chance), _instant(number)))
                units.append(json_loads(BATCH))
                number += 1
            # Each sum holds the same moments of other programs.
            both = sum(map(sum, times)) / sum(units) / BATCH
            unit = median(units) * BATCH
            at = f"at {size:,} keys"
            yield Figure(f"{at}: claim", median(t for t, _ in times) / unit, "json.loads")
            yield Figure(f"{at}: complete", median(t for _, t in times) / unit, "json.loads")
            yield Figure(f"{at}: both, with checkpoints", both, "json.loads", at_most=1 / 1.5)
            yield Figure(f"{at}: memory of the process", memories[size] / 2**20, "MiB")
            speeds[size] = 1 / both
        yield Figure("speed left in the large store", speeds[LARGE] / speeds[SMALL], at_least=0.5)
        # By then SQLite's own cache is full, which has a fixed size.
        grown = memories[LARGE] / memories[SIZES[-2]]
        yield Figure(f"memory, of that at {SIZES[-2]:,} keys", grown, at_most=1.1)
        batches = [_batch(number + n, chance) for n in range(20)]
        for claims in batches:
            _process(store, claims, _instant(number))
        begun = time.perf_counter()
        for claims in batches:
            store.claim(claims, _instant(number))
        took = (time.perf_counter() - begun) / 20
        yield Figure("claim, copies only", took / json_loads() / BATCH, "json.loads")
        records = store.stats().records
        store.close()
        yield Figure(
            "on disk, a completed fact", path.stat().st_size / records, "bytes", at_most=80
        )


def _resident() -> int:
    """Bytes of memory in use, or the most ever used where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
    return pages * resource.getpagesize()
