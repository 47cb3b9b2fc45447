"""The PostgreSQL store, from bytes to outcomes, on its own server on this machine.

The server has its usual durability: each batch waits twice for the disk. `per core` counts only the
processor time of this process, as for a client on another machine.
`EVENTONCE_BENCH_KEYS=1000000` makes the table smaller.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import count

from benchmarks import Figure
from benchmarks.yardstick import EVENT, json_loads
from eventonce import Consumer
from eventonce.stores.postgres import PostgresStore
from eventonce.types import Claim, Job, Settlement
from tests.servers.postgres import Cluster, postgres18, serving

DURABLE = ("-c", "fsync=on", "-c", "full_page_writes=on", "-c", "shared_buffers=256MB")
NO_WAIT = "?options=-csynchronous_commit%3Doff"
ROUNDS = {1: 400, 10: 200, 100: 100}
"""The timed batches of each size."""

LARGEST = int(os.environ.get("EVENTONCE_BENCH_KEYS", "10000000"))
SIZES = tuple(size for size in (10_000, 1_000_000, 10_000_000) if size <= LARGEST)
MEASURED = 100
"""The timed batches of a hundred at each size of the table."""

START = 1_777_886_127
A_HUNDREDTH = 10
"""Events in a hundredth of a second, which the first four bytes of a key count."""

FILL = """
INSERT INTO eventonce.records (token, expires, done, key, by)
SELECT
    1777886127000000 + n, 2000000000000, true,
    substring(int8send({start} * 100::bigint + n / {a_hundredth}) FROM 5)
    || substring(sha256(int4send(n)) FROM 4 FOR 12),
    substring(sha256(int4send(n)) FROM 20 FOR 4)
FROM generate_series({first}, {last}) AS n
"""


def _ignore(_: Job) -> None:
    """Do nothing."""


def _event(number: int) -> bytes:
    return EVENT.replace(b"1b8e4c38", b"%08x" % number).replace(
        b"1777886127391", b"%d" % (START * 1000 + number)
    )


class Timed:
    """Seconds and processor seconds of some work, and of the yardstick."""

    def __init__(self) -> None:
        self.seconds = self.processor = self.unit = 0.0
        self.events = 0

    def take(self, work: Callable[[], object], events: int) -> None:
        """Time this work once."""
        self.unit += json_loads(50) * events
        used, begun = time.process_time(), time.perf_counter()
        work()
        self.seconds += time.perf_counter() - begun
        self.processor += time.process_time() - used
        self.events += events


def run() -> Iterator[Figure]:
    """Yield figures of three batch sizes, then of a table that fills."""
    with serving(postgres18, *DURABLE) as cluster:
        store = PostgresStore(cluster.uri())
        store.create()
        yield from _batches(store)
        store.close()
        yield from _at_once(cluster)
        yield from _transactions(cluster)
        yield from _growth(cluster)


def _batches(store: PostgresStore) -> Iterator[Figure]:
    consumer = Consumer(store, name="bench", rules="genesys", handler=_ignore)
    numbers = count()
    consumer.process([_event(next(numbers)) for _ in range(100)])
    for size, rounds in ROUNDS.items():
        new, copies = Timed(), Timed()
        for _ in range(rounds):
            events = [_event(next(numbers)) for _ in range(size)]
            new.take(partial(_all, consumer, events, "done"), size)
            copies.take(partial(_all, consumer, events, "duplicate"), size)
        for what, timed in (("new", new), ("copies", copies)):
            name = f"batches of {size}, {what}"
            yield Figure(name, timed.events / timed.seconds, "events/s")
            least = 10_000 if (size, what) == (100, "new") else None
            per_core = timed.events / timed.processor
            yield Figure(f"{name}, per core", per_core, "events/s", at_least=least)
            yield Figure(name, timed.seconds / timed.unit, "json.loads")


def _at_once(cluster: Cluster) -> Iterator[Figure]:
    """Yield the effect of group commit: with many threads, one wait for the disk serves several."""
    for what, threads, options in (
        ("eight threads", 8, "?connections=8"),
        ("no wait for the disk", 1, NO_WAIT),
    ):
        store = PostgresStore(cluster.uri(options=options))
        consumer = Consumer(store, name=what, rules="genesys", handler=_ignore)
        batches = [
            [_event(n) for n in range(start, start + 100)] for start in range(0, 20_000, 100)
        ]
        timed = Timed()
        with ThreadPoolExecutor(threads) as pool:
            work = partial(_all, consumer, status="done")
            timed.take(lambda: list(pool.map(work, batches)), 20_000)  # noqa: B023  done at once
        consumer.close()
        name = f"batches of 100, new, {what}"
        yield Figure(name, timed.events / timed.seconds, "events/s")
        per_core = timed.events / timed.processor
        yield Figure(f"{name}, per core", per_core, "events/s", at_least=10_000)


def _transactions(cluster: Cluster) -> Iterator[Figure]:
    """Yield handlers that write a row in the transaction of their completion, 100 in parallel."""
    cluster.execute("CREATE TABLE effects (call text)")
    row = "INSERT INTO effects VALUES (%s)"

    def plain(job: Job) -> None:
        job.connection.execute(row, (job.event.id,))

    async def on_the_loop(job: Job) -> None:
        connection = await job.async_connection()
        await connection.execute(row, (job.event.id,))

    kinds = {"plain": plain, "async": on_the_loop}
    timed = {kind: Timed() for kind in kinds}
    with asyncio.Runner() as runner, ExitStack() as stack:
        consumers = {
            kind: stack.enter_context(
                Consumer(cluster.uri(), name=kind, rules="genesys", handler=handler)
            )
            for kind, handler in kinds.items()
        }
        for start in range(0, 1_000, 100):
            events = [_event(number) for number in range(start, start + 100)]
            for kind, consumer in consumers.items():
                work = partial(_all_async, runner, consumer, events)
                timed[kind].take(work, 100)
    for kind, taken in timed.items():
        name = f"in a transaction with a row, {kind} handlers"
        yield Figure(name, taken.events / taken.seconds, "events/s")
        yield Figure(f"{name}, per core", taken.events / taken.processor, "events/s")


def _all_async(runner: asyncio.Runner, consumer: Consumer, events: list[bytes]) -> None:
    outcomes = runner.run(consumer.process_async(events))
    if any(outcome.status != "done" for outcome in outcomes):
        raise AssertionError("an event was not done")


def _all(consumer: Consumer, events: list[bytes], status: str) -> None:
    if any(outcome.status != status for outcome in consumer.process(events)):
        raise AssertionError(f"an event was not {status}")


def _growth(cluster: Cluster) -> Iterator[Figure]:
    """Yield figures without waits for the disk, which are the same for a small table."""
    cluster.execute("TRUNCATE eventonce.records")
    store = PostgresStore(cluster.uri(options=NO_WAIT))
    chance = random.Random(7)
    filled, speeds = 0, []
    for size in SIZES:
        fill = FILL.format(start=START, a_hundredth=A_HUNDREDTH, first=filled, last=size - 1)
        cluster.execute(fill, "VACUUM ANALYZE eventonce.records", "CHECKPOINT")
        new, copies = Timed(), Timed()
        for number in range(MEASURED):
            claims = _claims(size + number * 100, chance)
            new.take(partial(_complete, store, claims), 100)
            copies.take(partial(store.claim, claims), 100)
        filled = size + MEASURED * 100
        at = f"at {size:,} keys"
        yield Figure(f"{at}: claim and complete", new.seconds / new.unit, "json.loads")
        yield Figure(f"{at}: copies", copies.seconds / copies.unit, "json.loads")
        speeds.append(new.unit / new.seconds)
    yield Figure("speed left in the large table", speeds[-1] / speeds[0], at_least=0.5)
    stats = store.stats()
    store.close()
    yield Figure("on the server's disk, a completed fact", (stats.bytes or 0) / filled, "bytes")


def _claims(first: int, chance: random.Random) -> list[Claim]:
    """Return new facts with keys as `rules` makes them: hundredths of a second, then a digest."""
    nonce = chance.getrandbits(52) | 1
    times = [(START * 100 + number // A_HUNDREDTH) % 2**32 for number in range(first, first + 100)]
    return [
        Claim(
            time.to_bytes(4, "big") + chance.randbytes(12),
            *(nonce, 60_000, 864_000_000, 5),
            by=chance.randbytes(4),
        )
        for time in times
    ]


def _complete(store: PostgresStore, claims: list[Claim]) -> None:
    runs = store.claim(claims)
    settlements = [
        Settlement(claim, run.token, "complete") for claim, run in zip(claims, runs, strict=True)
    ]
    if set(store.settle(settlements)) != {"kept"}:
        raise AssertionError("a new fact was not completed")
