"""The processor time an event that the meter, OpenTelemetry and a history add to the engine on the
memory store."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from itertools import starmap
from pathlib import Path
from statistics import median
from time import process_time, thread_time
from typing import NamedTuple
from zlib import crc32

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from benchmarks import Figure
from benchmarks.engine import BATCH, EVENTS, ROUNDS, ignore, new_events
from benchmarks.yardstick import clock
from eventonce import Consumer, Event, envelope
from eventonce.history import History
from eventonce.metrics import measure
from eventonce.otel import instrument
from eventonce.stores.memory import MemoryStore


class Spent(NamedTuple):
    """Microseconds of processor time an event."""

    own: float
    """The time of the thread that works."""
    of_all: float
    passed: float
    """The clock of the engine's benchmark. A round ends before the thread of a history begins to
    write, so that its writing counts only in `of_all`."""


class _Nowhere(SpanExporter):
    """Takes spans, and discards them."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:  # noqa: ARG002  see above
        return SpanExportResult.SUCCESS


def _traced(consumer: Consumer) -> None:
    spans = TracerProvider(shutdown_on_exit=False)
    spans.add_span_processor(BatchSpanProcessor(_Nowhere()))
    meters = MeterProvider([InMemoryMetricReader()], shutdown_on_exit=False)
    instrument(consumer, channel="sqs:bench", tracer_provider=spans, meter_provider=meters)
    consumer.runtime.on_close(spans.shutdown)
    consumer.runtime.on_close(meters.shutdown)


def _engine(
    ready: Sequence[Event],
    batch: int,
    watch: Callable[[Consumer], object] = id,
    then: Callable[[], None] = lambda: None,
) -> Spent:
    consumer = Consumer(MemoryStore(), name="bench", rules="genesys", handler=ignore)
    watch(consumer)
    own, of_all, passed = thread_time(), process_time(), clock()
    for start in range(0, len(ready), batch):
        consumer.process(ready[start : start + batch])
    own, passed = thread_time() - own, clock() - passed
    then()
    of_all = process_time() - of_all
    consumer.close()
    return Spent(*(it / len(ready) * 1e6 for it in (own, of_all, passed)))


def run() -> Iterator[Figure]:
    """Yield the cost of each, in batches and for single events."""
    # EventBridge gives times in seconds; here ten events share each second.
    new = [
        event.replace(b"09:15:27Z", b"09:%02d:%02dZ" % divmod(number // 10, 60))
        for number, event in enumerate(new_events())
    ]
    ready = [*map(envelope.read, new)]
    assert len({event.time for event in ready}) == EVENTS // 10
    for batch, at_most in ((BATCH, 2.0), (1, None)):
        # One after the other, because the load of the machine changes.
        rounds = [
            [_engine(ready, batch, watch).of_all for watch in (id, measure, _traced)]
            for _ in range(ROUNDS)
        ]
        what = f"events in batches of {batch}"
        yield Figure(f"{what}, without the meter", median(one[0] for one in rounds), "µs")
        added = median(one[1] - one[0] for one in rounds)
        yield Figure(f"{what}, added by the meter", added, "µs", at_most=at_most)
        added = median(one[2] - one[0] for one in rounds)
        yield Figure(f"{what}, added by OpenTelemetry with its metrics", added, "µs")
    yield from _with_history("history and meter", ready, at_most=5)
    own = [*starmap(_with_own_ids, enumerate(new))]
    assert len({event.id for event in own}) == EVENTS
    yield from _with_history("history and meter, ids and conversations of their own", own)


def _with_own_ids(number: int, event: bytes) -> Event:
    """Return an event with its own transport id, and a conversation that it shares with nine
    others: a lookup costs more if there are many."""
    for begin, one in ((b'"id": "', number), (b'"conversationId": "', number // 10)):
        at = event.index(begin) + len(begin)
        event = event[:at] + b"%08x" % crc32(b"%d" % one) + event[at + 8 :]
    return envelope.read(event)


def _with_history(
    what: str, ready: Sequence[Event], at_most: float | None = None
) -> Iterator[Figure]:
    added: list[Spent] = []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(ROUNDS):
            with History(f"sqlite:///{folder}/history.db") as history:

                def watch(consumer: Consumer, history: History = history) -> None:
                    measure(consumer)
                    observer = history.observer(consumer)
                    consumer.observers.append(observer)

                without = _engine(ready, BATCH)
                watched = _engine(ready, BATCH, watch, history.flush)
                assert not history.dropped, "the cost of a history is that of all decisions"
            added.append(Spent(*(one - other for one, other in zip(watched, without, strict=True))))
        size = Path(folder, "history.db").stat().st_size / (ROUNDS * len(ready))
    own, of_all, passed = (median(some) for some in zip(*added, strict=True))
    yield Figure(f"{what}: of the thread that works", own, "µs", at_most=at_most)
    yield Figure(f"{what}: of all threads", of_all, "µs", at_most=at_most)
    yield Figure(f"{what}: by the engine's clock", passed, "µs")
    yield Figure(f"{what}: a decision on disk", size, "bytes")
