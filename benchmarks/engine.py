"""The engine on the memory store, and the way from bytes to a claim, in units of `json.loads`."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

from benchmarks import Figure
from benchmarks.yardstick import EVENT, clock
from eventonce import Consumer, Event, envelope, presets
from eventonce.history import History
from eventonce.metrics import measure
from eventonce.rules import Ruleset
from eventonce.stores.memory import MemoryStore
from eventonce.types import Job

BATCH = 100
EVENTS = 5_000
ROUNDS = 15
"""Each round times the yardstick and the engine next to each other; the median of their ratios
counts, because what else this machine does changes from one second to the next."""


def _events() -> list[bytes]:
    session = b"1b8e4c38"
    return [EVENT.replace(session, b"%08x" % number) for number in range(EVENTS)]


def _ignore(_: Job) -> None:
    """A handler that does nothing."""


def _engine(ready: list[Event]) -> None:
    consumer = Consumer(MemoryStore(), rules="genesys", handler=_ignore)
    for start in range(0, len(ready), BATCH):
        consumer.process(ready[start : start + BATCH])
    consumer.close()


def _observed(ready: list[Event], folder: str) -> tuple[float, float]:
    """The microseconds that history and metrics take of an event: of the thread that works, and of
    all threads."""
    spent = []
    with History(f"sqlite:///{folder}/history.db") as history:
        for watched in (False, True):
            consumer = Consumer(MemoryStore(), name="bench", rules="genesys", handler=_ignore)
            if watched:
                measure(consumer)
                consumer.observers.append(history.observer(consumer.name))
            own, of_all = time.thread_time(), time.process_time()
            for start in range(0, len(ready), BATCH):
                consumer.process(ready[start : start + BATCH])
            own = time.thread_time() - own
            if watched:
                history.flush()
            spent.append((own, time.process_time() - of_all))
            consumer.close()
    (own, of_all), (own_watched, all_watched) = spent
    micro = 1e6 / len(ready)
    return (own_watched - own) * micro, (all_watched - of_all) * micro


def _ratio(work: Callable[[], object], raw: list[bytes]) -> float:
    ratios = []
    for _ in range(ROUNDS):
        started = clock()
        for event in raw:
            json.loads(event)
        loaded = clock()
        work()
        ratios.append((clock() - loaded) / (loaded - started))
    return median(ratios)


def run() -> Iterator[Figure]:
    """Both figures."""
    raw = _events()
    ready = [envelope.read(event) for event in raw]
    rules = Ruleset(presets.resolve("genesys"), name="bench")

    def claims() -> None:
        for event in raw:
            rules.plan(envelope.read(event), 1)

    unit = "x json.loads"
    yield Figure("bytes to claim: decode, rule, key", _ratio(claims, raw), unit, at_most=0.6)
    figure = _ratio(lambda: _engine(ready), raw)
    yield Figure("ready events to outcomes, batches of 100", figure, unit, at_most=1.0)
    with tempfile.TemporaryDirectory() as folder:
        observed = [_observed(ready, folder) for _ in range(ROUNDS)]
        size = Path(folder, "history.db").stat().st_size / (ROUNDS * len(ready))
    own, of_all = (median(some) for some in zip(*observed, strict=True))
    yield Figure("history and metrics: of the thread that works", own, "µs", at_most=5)
    yield Figure("history and metrics: of all threads", of_all, "µs")
    yield Figure("history: a decision on disk", size, "bytes")
