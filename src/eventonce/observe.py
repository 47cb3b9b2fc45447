"""Observers: what becomes of events, counted or written to a log."""

from __future__ import annotations

import logging
from collections import Counter
from threading import Lock
from typing import Final

from eventonce.errors import EventonceError, Reject, Retry
from eventonce.log import on_one_line
from eventonce.ports import Observer
from eventonce.types import Outcome

QUIET: Final = frozenset[str](("done", "duplicate", "stale", "unchanged", "ignored"))
"""The statuses of an ordinary day; the others are warnings."""

RAISED: Final = frozenset[str](("failed", "dead"))
"""The statuses by which a handler's own error is met."""

EXPECTED: Final = (EventonceError, Reject, Retry)
"""Errors whose reason says it all: a traceback leads to who raised them on purpose."""

UNTAKEN: Final = 100
"""Types that a warning is given for because no handler takes them: senders choose types, and must
fill neither the log nor the memory with them."""


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

    A handler's error brings its traceback. The first event of a type that no handler takes is a
    warning: a `match` with a slip in it would let the others go unseen.
    """
    target = logger or logging.getLogger("eventonce.outcomes")
    untaken = _Untaken()

    def write(outcome: Outcome, _seconds: float) -> None:
        event, error = outcome.event, outcome.error
        first = untaken.is_first(outcome)
        raised = outcome.status in RAISED and not isinstance(error, EXPECTED)
        target.log(
            logging.INFO if outcome.status in QUIET and not first else logging.WARNING,
            "%s type=%s id=%s rule=%s key=%s: %s%s",
            outcome.status,
            on_one_line(event.type) if event is not None else "-",
            on_one_line(event.id) if event is not None else "-",
            outcome.rule or "-",
            outcome.key.hex() or "-",
            on_one_line(outcome.reason) or "ran",
            "; more of this type are no warnings" if first else "",
            exc_info=error if raised else None,
        )

    return write


class _Untaken:
    """The types that no handler takes, as far as they were met; safe in many threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._met: set[int] = set()
        """Their hashes: a type may be as long as an event."""

    def is_first(self, outcome: Outcome) -> bool:
        """Whether this is the first of its type, and not of too many types."""
        # With a rule it was claimed: a replay that is only reported, as somebody wants it.
        if outcome.status != "ignored" or outcome.rule or outcome.event is None:
            return False
        met = hash(outcome.event.type)
        with self._lock:
            if met in self._met or len(self._met) == UNTAKEN:
                return False
            self._met.add(met)
        return True
