"""The engine on the memory store, and the time from bytes to a claim, in units of `json.loads`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from statistics import median

from benchmarks import Figure
from benchmarks.yardstick import EVENT, clock
from eventonce import Consumer, Event, envelope, presets
from eventonce.rules import Ruleset
from eventonce.stores.memory import MemoryStore
from eventonce.types import Job

BATCH = 100
EVENTS = 5_000
ROUNDS = 15
"""Each round times the yardstick and the engine one after the other; the median of their ratios
counts, because the load of the machine changes from one second to the next."""


def new_events() -> list[bytes]:
    """Return events of one type, each with its own session."""
    session = b"1b8e4c38"
    return [EVENT.replace(session, b"%08x" % number) for number in range(EVENTS)]


def ignore(_: Job) -> None:
    """Do nothing."""


def _engine(ready: list[Event]) -> None:
    consumer = Consumer(MemoryStore(), rules="genesys", handler=ignore)
    for start in range(0, len(ready), BATCH):
        consumer.process(ready[start : start + BATCH])
    consumer.close()


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
    """Yield both figures."""
    raw = new_events()
    ready = [envelope.read(event) for event in raw]
    rules = Ruleset(presets.resolve("genesys"), name="bench")

    def claims() -> None:
        for event in raw:
            rules.plan(envelope.read(event), 1)

    unit = "x json.loads"
    yield Figure("bytes to claim: decode, rule, key", _ratio(claims, raw), unit, at_most=0.6)
    figure = _ratio(lambda: _engine(ready), raw)
    yield Figure("ready events to outcomes, batches of 100", figure, unit, at_most=1.0)
