"""The meter beside the engine on the memory store: the processor time that it adds to an event."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from time import process_time

from benchmarks import Figure
from benchmarks.engine import BATCH, EVENTS, _events, _ignore
from eventonce import Consumer, Event, envelope
from eventonce.metrics import measure
from eventonce.stores.memory import MemoryStore

ROUNDS = 15
"""Each round measures without and with the meter next to each other."""


def _engine(ready: list[Event], batch: int, *, metered: bool) -> float:
    """Microseconds of processor time an event."""
    consumer = Consumer(MemoryStore(), rules="genesys", handler=_ignore)
    if metered:
        measure(consumer)
    began = process_time()
    for start in range(0, len(ready), batch):
        consumer.process(ready[start : start + batch])
    took = process_time() - began
    consumer.close()
    return took / len(ready) * 1e6


def run() -> Iterator[Figure]:
    """What the meter adds, in batches and for lone events."""
    # EventBridge dates events to the second; here are ten of each.
    ready = [
        envelope.read(event.replace(b"09:15:27Z", b"09:%02d:%02dZ" % divmod(number // 10, 60)))
        for number, event in enumerate(_events())
    ]
    assert len({event.time for event in ready}) == EVENTS // 10
    for batch, at_most in ((BATCH, 2.0), (1, None)):
        pairs = [
            (_engine(ready, batch, metered=False), _engine(ready, batch, metered=True))
            for _ in range(ROUNDS)
        ]
        added = median(with_meter - without for without, with_meter in pairs)
        whole = median(without for without, _ in pairs)
        what = f"events in batches of {batch}"
        yield Figure(f"{what}, without the meter", whole, "µs")
        yield Figure(f"{what}, added by the meter", added, "µs", at_most=at_most)
