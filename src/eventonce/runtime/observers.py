"""Observers: what becomes of events, counted or written to a log."""

from __future__ import annotations

import logging
from collections import Counter
from threading import Lock
from typing import Final

from eventonce.core.ports import Observer
from eventonce.core.status import USUAL
from eventonce.errors import ConfigError, EventonceError, Reject, Retry
from eventonce.log import on_one_line
from eventonce.types import Outcome

RAISED: Final = frozenset[str](("failed", "dead"))
"""The statuses by which a handler's own error is met."""

EXPECTED: Final = (EventonceError, Reject, Retry)
"""Errors whose reason says it all: a traceback leads to who raised them on purpose."""


class Tally:
    """Counts outcomes by status; safe in many threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self.counts: Counter[str] = Counter()

    def __call__(self, outcome: Outcome, _seconds: float) -> None:
        with self._lock:
            self.counts[outcome.status] += 1


def to_log(logger: logging.Logger | None = None) -> Observer:
    """An observer that writes one line an outcome: ids and reasons, never the event's content.

    A handler's error brings its traceback. The first event of each type that no handler takes is a
    warning of the consumer itself, whoever observes.
    """
    if logger is not None and not hasattr(logger, "log"):
        raise ConfigError(f"to_log: expected a logger, not {type(logger).__name__}")
    target = logger or logging.getLogger("eventonce.outcomes")

    def write(outcome: Outcome, _seconds: float) -> None:
        event, error = outcome.event, outcome.error
        raised = outcome.status in RAISED and not isinstance(error, EXPECTED)
        target.log(
            logging.INFO if outcome.status in USUAL else logging.WARNING,
            "%s type=%s id=%s rule=%s key=%s: %s",
            outcome.status,
            on_one_line(event.type) if event is not None else "-",
            on_one_line(event.id) if event is not None else "-",
            outcome.rule or "-",
            outcome.key.hex() or "-",
            on_one_line(outcome.reason) or "ran",
            exc_info=error if raised else None,
        )

    return write
