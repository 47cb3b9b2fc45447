"""Observers: what becomes of events, counted or written to a log."""

from __future__ import annotations

import logging
from collections import Counter
from threading import Lock
from typing import Final

from eventonce.ports import Observer
from eventonce.types import Outcome

QUIET: Final = frozenset[str](("done", "duplicate", "stale", "unchanged", "ignored"))
"""The statuses of an ordinary day; the others are warnings."""


class Tally:
    """Counts outcomes by status; safe in many threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self.counts: Counter[str] = Counter()

    def __call__(self, outcome: Outcome, _seconds: float) -> None:
        with self._lock:
            self.counts[outcome.status] += 1


def to_log(logger: logging.Logger | None = None) -> Observer:
    """An observer that writes one line an outcome: ids and reasons, never the event's content."""
    target = logger or logging.getLogger("eventonce.outcomes")

    def write(outcome: Outcome, _seconds: float) -> None:
        level = logging.INFO if outcome.status in QUIET else logging.WARNING
        event = outcome.event
        target.log(
            level,
            "%s type=%s id=%s rule=%s key=%s: %s",
            outcome.status,
            _on_one_line(event.type) if event is not None else "-",
            _on_one_line(event.id) if event is not None else "-",
            outcome.rule or "-",
            outcome.key.hex() or "-",
            _on_one_line(outcome.reason) or "ran",
        )

    return write


def _on_one_line(text: str) -> str:
    """What a sender chose must not look like a line of ours."""
    return text if text.isprintable() else repr(text)[1:-1]
