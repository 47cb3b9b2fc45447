"""The memory store as it fills: claim and complete in batches of 1,000, at 10 thousand keys and at
a million. Ten million keys would need gigabytes, which is no use of a memory store.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

from benchmarks import Figure
from benchmarks.yardstick import json_loads
from eventonce.stores.memory import MemoryStore
from eventonce.types import Claim, Settlement

BATCH = 1_000
SIZES = (10_000, 1_000_000)
MEASURED = 10
"""Batches timed at each size."""

LEASE = 60_000
REMEMBER = 10 * 86_400_000


def _process(store: MemoryStore, chance: random.Random) -> float:
    """Return the seconds for a batch of new facts."""
    nonce = chance.getrandbits(52) | 1
    claims = [Claim(chance.randbytes(16), nonce, LEASE, REMEMBER, 5) for _ in range(BATCH)]
    begun = time.perf_counter()
    verdicts = store.claim(claims)
    store.settle(
        [
            Settlement(claim, verdict.token, "complete")
            for claim, verdict in zip(claims, verdicts, strict=True)
        ]
    )
    return time.perf_counter() - begun


def run() -> Iterator[Figure]:
    """Fill a store in steps and measure at each."""
    chance = random.Random(7)
    store = MemoryStore()
    speeds = []
    there = 0
    for size in SIZES:
        while there < size:
            _process(store, chance)
            there += BATCH
        took = unit = 0.0
        for _ in range(MEASURED):
            took += _process(store, chance)
            unit += json_loads(BATCH) * BATCH
            there += BATCH
        yield Figure(f"at {size:,} keys: claim and complete", took / unit, "json.loads")
        speeds.append(unit / took)
    yield Figure("speed left in the large store", speeds[-1] / speeds[0])
    store.close()
