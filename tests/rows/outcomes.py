"""Outcomes of events that are given one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from eventonce import Consumer
from eventonce.stores.memory import MemoryStore
from eventonce.testing.harness import ManualClock
from tests.rows.edits import republished
from tests.rows.row import Row

Story = list[tuple[dict[str, Any], str]]
"""Events in the order they arrive, each with the status it shall have."""

Events = Sequence[dict[str, Any]]


def statuses(preset: str, events: Events, every: float = 0) -> list[str]:
    """The outcomes of these events, given one after the other, so many seconds apart."""
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    consumer = Consumer(store, name="test", rules=preset, handler=lambda _: None, clock=clock)
    found: list[str] = []
    for event in events:
        found.append(consumer.process([event])[0].status)
        clock.advance(every)
    return found


def together(preset: str, events: Events) -> list[str]:
    """The outcomes of these events, given in one call."""
    consumer = Consumer(MemoryStore(), name="test", rules=preset, handler=lambda _: None)
    return [outcome.status for outcome in consumer.process(list(events))]


def at(second: int, millisecond: int = 0) -> str:
    return f"2026-03-03T09:{30 + second // 60:02}:{second % 60:02}.{millisecond:03}Z"


def again(event: dict[str, Any]) -> dict[str, Any]:
    return republished(Row("", event))
