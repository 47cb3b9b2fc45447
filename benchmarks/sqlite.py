"""The SQLite store as it fills, from 10 thousand keys to 10 million: claim and settle in batches of
1,000. Keys that begin with their time stay on a few pages of the tree; those of facts without a
time and of states are spread over all of it, and are measured separately, up to 3 million.

`EVENTONCE_BENCH_KEYS` makes the largest store smaller; `EVENTONCE_BENCH_CLOCK=processor` excludes
the work of other programs, and the waits for the disk.
"""

from __future__ import annotations

import os
import random
import resource
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from statistics import median

from benchmarks import Figure
from benchmarks.yardstick import clock, json_loads
from eventonce.stores.sqlite import SQLiteStore
from eventonce.types import Claim, Settlement

BATCH = 1_000
SMALL = 100_000
LARGE = int(os.environ.get("EVENTONCE_BENCH_KEYS", "10000000"))
SIZES = (*(size for size in (10_000, SMALL, 1_000_000) if size < LARGE), LARGE)
MEASURED = 300
"""The timed batches: a few times those between two checkpoints; fewer in a small store."""

EVENTS_A_SECOND = 1_000
LATE = 100
"""The most hundredths of a second between the time of an event and its arrival; the other events of
this time come in between, in no order."""
SCATTERED = min(LARGE, 3_000_000)
BURST = min(LARGE, 100_000)
"""The events of each rate: five seconds of the highest."""

FILLED_AT_ONCE = 50_000
"""Keys in one batch while a store is only filled: each batch goes through the whole tree."""

START = 1_777_000_000
LEASE = 60_000
REMEMBER = 10 * 86_400_000


def _batch(
    number: int,
    chance: random.Random,
    size: int = BATCH,
    rate: int = EVENTS_A_SECOND,
    late: int = LATE,
) -> list[Claim]:
    """Return new facts with keys as `rules` makes them: the hundredth of a second, then a digest.
    Each event comes up to `late` hundredths after its time."""
    nonce = chance.getrandbits(52) | 1
    first = START * 100 + number * size * 100 // rate
    times = (
        ((first + each * 100 // rate - chance.randrange(late + 1)) % 2**32).to_bytes(4, "big")
        for each in range(size)
    )
    return [
        Claim(time + chance.randbytes(12), nonce, LEASE, REMEMBER, 5, by=chance.randbytes(4))
        for time in times
    ]


def _scattered(count: int, chance: random.Random, *, states: bool) -> list[Claim]:
    """Return new facts without a time, or first versions of new subjects."""
    nonce = chance.getrandbits(52) | 1
    return [
        Claim(
            chance.randbytes(16),
            nonce,
            LEASE,
            REMEMBER,
            5,
            by=chance.randbytes(4),
            order=START if states else None,
            digest=chance.randbytes(8) if states else b"",
        )
        for _ in range(count)
    ]


def _process(store: SQLiteStore, claims: list[Claim], now: int) -> tuple[float, float]:
    """Return the seconds for claiming and for completing."""
    begun = clock()
    verdicts = store.claim(claims, now)
    claimed = clock()
    settlements = [
        Settlement(claim, verdict.token, "complete")
        for claim, verdict in zip(claims, verdicts, strict=True)
    ]
    told = clock()
    kept = store.settle(settlements, now + 5)
    settled = clock()
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
            # Each sum includes the same moments of other programs.
            both = sum(map(sum, times)) / sum(units) / BATCH
            unit = median(units) * BATCH
            at = f"at {size:,} keys"
            yield Figure(f"{at}: claim", median(t for t, _ in times) / unit, "json.loads")
            yield Figure(f"{at}: complete", median(t for _, t in times) / unit, "json.loads")
            yield Figure(f"{at}: both, with checkpoints", both, "json.loads", at_most=1 / 1.5)
            yield Figure(f"{at}: memory of the process", memories[size] / 2**20, "MiB")
            speeds[size] = 1 / both
        yield Figure("speed left in the large store", speeds[LARGE] / speeds[SMALL], at_least=0.5)
        # By then SQLite's own cache, which has a fixed size, is full.
        grown = memories[LARGE] / memories[SIZES[-2]]
        yield Figure(f"memory, of that at {SIZES[-2]:,} keys", grown, at_most=1.1)
        batches = [_batch(number + n, chance) for n in range(20)]
        for claims in batches:
            _process(store, claims, _instant(number))
        begun = clock()
        for claims in batches:
            store.claim(claims, _instant(number))
        took = (clock() - begun) / 20
        yield Figure("claim, copies only", took / json_loads() / BATCH, "json.loads")
        records = store.stats().records
        store.close()
        yield Figure(
            "on disk, a completed fact", path.stat().st_size / records, "bytes", at_most=80
        )
    yield from _run_bursts()
    yield from _run_scattered(states=False)
    yield from _run_scattered(states=True)


def _run_bursts() -> Iterator[Figure]:
    """Yield figures at other rates, with events that come in the order of their times, and with
    events that do not: then their keys are spread over more pages."""
    for size, rate, late in (
        (100, 1_000, 0),
        (100, 1_000, LATE),
        (100, 20_000, 0),
        (100, 20_000, LATE),
        (1_600, 20_000, LATE),
    ):
        chance = random.Random(7)
        took = units = 0.0
        with (
            tempfile.TemporaryDirectory() as folder,
            closing(SQLiteStore(Path(folder, "b.db"))) as store,
        ):
            for number in range(BURST // size):
                took += sum(_process(store, _batch(number, chance, size, rate, late), START * 1000))
                units += json_loads(size) * size
        order = "late" if late else "in order"
        name = f"batches of {size:,}, {rate:,} events a second, {order}: both"
        yield Figure(name, took / units, "json.loads")


def _run_scattered(*, states: bool) -> Iterator[Figure]:
    """Yield the same figures with keys that are spread over the whole tree."""
    chance = random.Random(7)
    name = "states" if states else "facts without a time"
    now = START * 1000
    costs = []
    with (
        tempfile.TemporaryDirectory() as folder,
        closing(SQLiteStore(Path(folder, "b.db"))) as store,
    ):
        filled = 0
        for size in sorted({min(SMALL, SCATTERED), SCATTERED}):
            while filled < size:
                count = min(FILLED_AT_ONCE, size - filled)
                _process(store, _scattered(count, chance, states=states), now)
                filled += count
            took = units = 0.0
            for _ in range(min(MEASURED // 6, size // BATCH)):
                took += sum(_process(store, _scattered(BATCH, chance, states=states), now))
                units += json_loads(BATCH) * BATCH
                filled += BATCH
            costs.append(took / units)
            yield Figure(f"{name}, at {size:,} keys: both", costs[-1], "json.loads")
    yield Figure(f"{name}: speed left in the large store", costs[0] / costs[-1])


def _resident() -> int:
    """Return the bytes of memory in use, or the peak if the system does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
    return pages * resource.getpagesize()
