"""The Redis store against Powertools' idempotency and a bare `SET NX EX`, on the same server.

Ours goes from bytes to outcomes, with claim and completion; Powertools gets ready dicts, and the
bare commands ready keys. `EVENTONCE_BENCH_KEYS` makes the large store smaller.
"""

from __future__ import annotations

import os
import random
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from types import SimpleNamespace
from typing import Any

import msgspec
import redis
from aws_lambda_powertools.utilities.idempotency import IdempotencyConfig, idempotent_function
from aws_lambda_powertools.utilities.idempotency.persistence.cache import CachePersistenceLayer

from benchmarks import Figure
from benchmarks.delay import delayed
from benchmarks.yardstick import EVENT, clock
from eventonce import Consumer
from eventonce.stores.redis import RedisStore
from eventonce.stores.redis.codec import Keys
from eventonce.types import Claim, Settlement
from tests.servers.valkey import Node, serving

ROUNDS = 25
"""Each round times all variants one after the other; the median of their ratios counts, because the
load of the machine changes from one moment to the next."""
EVENTS = 200
"""The events of each variant in a round."""
FLOORS: Mapping[int, tuple[float, float]] = {1: (1.3, 2.5), 10: (6, 12), 100: (12, 25)}
"""The least factors for new events and for copies, by batch size."""
OVERHEAD = 1.4
"""The limit for one event at a time, against its two bare commands."""
THREADS, SHARED, ROUND_TRIP = 16, 3.0, 0.0005
"""The threads that share calls to the store, the least factor of their throughput against one
thread, and the seconds of a network round trip with which it is measured."""
REMEMBER = 10 * 86_400
SMALL, LARGE = 100_000, int(os.environ.get("EVENTONCE_BENCH_KEYS", "10000000"))
GROWTH = 2.0
"""The limit of the processor time of a fact in the large store, against the small one."""
BYTES_A_FACT = 160

Way = Callable[[list[bytes]], object]


def _events(chance: random.Random) -> list[bytes]:
    return [EVENT.replace(b"1b8e4c38", b"%08x" % chance.getrandbits(32)) for _ in range(EVENTS)]


def _powertools(node: Node) -> Callable[[list[dict[str, Any]]], None]:
    """Return Powertools' function: it takes one event a call."""
    client: Any = redis.Redis(port=node.port, decode_responses=True)
    body = "detail.eventBody"
    parts = ("conversationId", "participantId", "sessionId", "eventTime")
    config = IdempotencyConfig(
        event_key_jmespath=f'["detail-type", {", ".join(f"{body}.{part}" for part in parts)}]',
        expires_after_seconds=REMEMBER,
    )
    # Without a context it logs a warning with every call, which would not be fair.
    context: Any = SimpleNamespace(get_remaining_time_in_millis=lambda: 60_000)
    config.register_lambda_context(context)

    def handle(event: dict[str, Any]) -> None:
        """Do nothing, like our handler."""

    idempotent: Any = idempotent_function(
        handle,
        data_keyword_argument="event",
        persistence_store=CachePersistenceLayer(client=client),
        config=config,
    )

    def process(events: list[dict[str, Any]]) -> None:
        for event in events:
            idempotent(event=event)

    return process


def _bare(node: Node) -> Callable[[list[str]], None]:
    client = redis.Redis(port=node.port)

    def process(keys: list[str]) -> None:
        for key in keys:
            client.set(key, 1, nx=True, ex=REMEMBER)

    return process


def _two_bare(port: int) -> Callable[[list[Claim]], None]:
    """Return the minimum for claim and completion: two commands by the driver."""
    client = redis.Redis(port=port)

    def process(claims: list[Claim]) -> None:
        for claim in claims:
            client.set(claim.key, 1, nx=True, ex=REMEMBER)
            client.set(claim.key, 2, ex=REMEMBER)

    return process


def _store_alone(store: RedisStore) -> Callable[[list[Claim]], None]:
    def process(claims: list[Claim]) -> None:
        for claim in claims:
            (run,) = store.claim([claim])
            store.settle([Settlement(claim, run.token, "complete")])

    return process


def _ours(consumer: Consumer, batch: int) -> Callable[[list[bytes]], None]:
    def process(events: list[bytes]) -> None:
        for start in range(0, len(events), batch):
            consumer.process(events[start : start + batch])

    return process


def _seconds(work: Callable[[Any], object], given: Any) -> float:
    started = clock()
    work(given)
    return clock() - started


def _speed(node: Node) -> Iterator[Figure]:
    chance = random.Random(1)
    powertools, bare = _powertools(node), _bare(node)
    consumer = Consumer(RedisStore.from_uri(node.uri), name="bench", rules="genesys")
    consumer.on()(lambda _: None)
    ratios: dict[tuple[str, str, int], list[float]] = {}
    microseconds: dict[tuple[str, str], list[float]] = {}
    for _ in range(ROUNDS):
        events = _events(chance)
        dicts = [msgspec.json.decode(event) for event in events]
        keys = [f"{chance.getrandbits(128):x}" for _ in range(EVENTS)]
        for kind in ("new events", "copies"):
            theirs = _seconds(powertools, dicts)
            simplest = _seconds(bare, keys)
            microseconds.setdefault((kind, "Powertools"), []).append(theirs)
            microseconds.setdefault((kind, "SET NX EX"), []).append(simplest)
        for batch in FLOORS:
            events = _events(chance)
            for kind in ("new events", "copies"):
                spent = _seconds(_ours(consumer, batch), events)
                microseconds.setdefault((kind, f"ours in batches of {batch}"), []).append(spent)
                for name in ("Powertools", "SET NX EX"):
                    before = microseconds[kind, name][-1]
                    ratios.setdefault((kind, name, batch), []).append(before / spent)
    consumer.close()
    for (kind, name), spent_by_round in microseconds.items():
        yield Figure(f"{kind}: {name}", median(spent_by_round) / EVENTS * 1e6, "µs an event")
    for (kind, name, batch), found in ratios.items():
        floor = FLOORS[batch][kind == "copies"] if name == "Powertools" else None
        what = f"{kind}: {name} / ours in batches of {batch}"
        yield Figure(what, median(found), "x", at_least=floor)


def _claims(count: int, chance: random.Random) -> list[Claim]:
    nonce = chance.getrandbits(52) | 1
    return [
        Claim(
            chance.randbytes(16),
            nonce,
            60_000,
            REMEMBER * 1000,
            5,
            by=chance.randbytes(4),
        )
        for _ in range(count)
    ]


def _one_by_one(node: Node) -> Iterator[Figure]:
    """Yield figures of one event at a time, by the store alone and from bytes to outcome."""
    chance = random.Random(3)
    store = RedisStore.from_uri(node.uri)
    consumer = Consumer(RedisStore.from_uri(node.uri), name="bench", rules="genesys")
    consumer.on()(lambda _: None)
    two_bare, alone, whole = _two_bare(node.port), _store_alone(store), _ours(consumer, 1)
    by_store: list[float] = []
    by_consumer: list[float] = []
    for _ in range(2 * ROUNDS):
        bare = _seconds(two_bare, _claims(EVENTS, chance))
        by_store.append(_seconds(alone, _claims(EVENTS, chance)) / bare)
        by_consumer.append(_seconds(whole, _events(chance)) / bare)
    consumer.close()
    store.close()
    for name, ratios in (("the store alone", by_store), ("the consumer", by_consumer)):
        what = f"one at a time: {name} / two bare commands"
        yield Figure(what, median(ratios), "x", at_most=OVERHEAD)


def _threads_against_one(
    work: Callable[[Any], object], given: Callable[[], Any], rounds: int
) -> float:
    """Return the throughput of these threads as a multiple of one thread's."""
    ratios = []
    with ThreadPoolExecutor(THREADS) as threads:
        for _ in range(rounds):
            one, many = given(), [given() for _ in range(THREADS)]
            began = time.perf_counter()
            work(one)
            started = time.perf_counter()
            list(threads.map(work, many))
            ratios.append(THREADS * (started - began) / (time.perf_counter() - started))
    return median(ratios)


def _many_threads(node: Node) -> Iterator[Figure]:
    """Yield the throughput of many threads with one event a call, which share the store's calls,
    against one thread: on loopback and over a network; also for the two bare commands.

    On loopback a thread waits for the server a third of its time, so the GIL limits what more
    threads can add: the bare commands, which share nothing, show that limit.
    """
    chance = random.Random(11)
    with delayed(node.port, ROUND_TRIP) as far:
        for where, port in (("", node.port), (f", {ROUND_TRIP * 1000:g} ms away", far)):
            # Fewer rounds if each takes longer.
            rounds = ROUNDS if port == node.port else 5
            bare = _two_bare(port)
            found = _threads_against_one(bare, lambda: _claims(EVENTS, chance), rounds)
            yield Figure(f"{THREADS} threads, two bare commands, against one{where}", found, "x")
            consumer = Consumer(
                RedisStore.from_uri(f"redis://127.0.0.1:{port}/0"),
                name="threads",
                rules="genesys",
                handler=lambda _: None,
            )
            with consumer:
                ours = _threads_against_one(_ours(consumer, 1), lambda: _events(chance), rounds)
            least = SHARED if port == far else None
            what = f"{THREADS} threads, one event a call, against one{where}"
            yield Figure(what, ours, "x", at_least=least)


def _fill(
    store: RedisStore, count: int, chance: random.Random, clock: Callable[[], float]
) -> float:
    """Complete so many facts; return the seconds by this clock."""
    spent = 0.0
    for _ in range(count // 1_000):
        claims = _claims(1_000, chance)
        started = clock()
        runs = store.claim(claims)
        store.settle(
            [
                Settlement(claim, run.token, "complete")
                for claim, run in zip(claims, runs, strict=True)
            ]
        )
        spent += clock() - started
    return spent


def _processor_time(node: Node) -> Callable[[], float]:
    """Return the processor seconds of the server and of this process."""
    client = node.client()

    def seconds() -> float:
        used = client.info("cpu")
        return float(used["used_cpu_user"] + used["used_cpu_sys"] + time.process_time())

    return seconds


def _load(node: Node, store: RedisStore, count: int, chance: random.Random) -> None:
    """Put so many completed facts into a store, faster than by claims: copies of an existing record
    under keys that rules could have made, over a separate socket."""
    (claim,) = _claims(1, chance)
    _store_alone(store)([claim])
    keys, client = Keys("eventonce"), node.client()
    (name,) = keys.of([claim.key])
    value, till = client.get(name), b"%d" % client.pexpiretime(name)
    before = b"*5\r\n$3\r\nSET\r\n$%d\r\n" % len(name)
    after = b"\r\n$%d\r\n%b\r\n$4\r\nPXAT\r\n$%d\r\n%b\r\n" % (len(value), value, len(till), till)
    with socket.create_connection(("127.0.0.1", node.port)) as line:
        for _ in range(count // 10_000):
            drawn = chance.randbytes(160_000)
            facts = keys.of(drawn[at : at + 16] for at in range(0, len(drawn), 16))
            line.sendall(b"".join([before + fact + after for fact in facts]))
            left = len(facts) * len("+OK\r\n")
            while left:
                left -= len(line.recv(left))


def _growth(small: Node, large: Node) -> Iterator[Figure]:
    """Yield the cost of a fact, in memory and in time, as the store fills.

    Processor time, because wall-clock time includes other load of the machine. The two sizes take
    turns and the best round of each counts: other load only adds time, and not the same in every
    round.
    """
    chance = random.Random(2)
    sizes = {SMALL: small, LARGE: large}
    stores = {size: RedisStore.from_uri(node.uri) for size, node in sizes.items()}
    for size, node in sizes.items():
        empty = node.client().info("memory")["used_memory"]
        _load(node, stores[size], size, chance)
        used = (node.client().info("memory")["used_memory"] - empty) / size
        yield Figure(f"memory of a fact at {size:,}", used, "bytes", at_most=BYTES_A_FACT)
    clocks = {size: _processor_time(node) for size, node in sizes.items()}
    rounds = [
        [_fill(stores[size], 5_000, chance, clocks[size]) / 5_000 for size in sizes]
        for _ in range(ROUNDS)
    ]
    best = [min(spent) for spent in zip(*rounds, strict=True)]
    for size, spent in zip(sizes, best, strict=True):
        yield Figure(f"claim and completion at {size:,} facts", spent * 1e6, "µs of processor")
    what = f"a fact at {LARGE:,} / at {SMALL:,}"
    yield Figure(what, best[1] / best[0], "x", at_most=GROWTH)
    for store in stores.values():
        store.close()


def run() -> Iterator[Figure]:
    """Yield the figures of speed, then of growth, each on its own server."""
    with serving() as node:
        yield from _speed(node)
        yield from _one_by_one(node)
        yield from _many_threads(node)
    with serving() as small, serving() as large:
        yield from _growth(small, large)
