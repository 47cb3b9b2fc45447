"""Observers that count outcomes or write them to a log."""

from __future__ import annotations

import logging
from collections import Counter
from math import inf
from time import monotonic
from typing import Final

from eventonce import forks
from eventonce.core.ports import Observer
from eventonce.core.status import USUAL
from eventonce.errors import ConfigError
from eventonce.runtime.log_lines import INFO, WARNING, is_copy, write_line
from eventonce.types import Outcome

COPIES_EVERY: Final = 60.0
"""Seconds between two lines about copies of one type and cause."""
MOST_KINDS: Final = 1000


class Tally:
    """Counts outcomes by status; safe in many threads."""

    def __init__(self) -> None:
        self._lock = forks.lock_of(self)
        self.counts: Counter[str] = Counter()

    def __call__(self, outcome: Outcome, _seconds: float) -> None:
        with self._lock:
            self.counts[outcome.status] += 1


class _Sampled:
    """Selects one copy of a kind a minute for the log, and counts the others."""

    def __init__(self) -> None:
        self._lock = forks.lock_of(self)
        self._kinds: dict[tuple[str, str, bool | None], tuple[float, int]] = {}

    def more(self, outcome: Outcome) -> int | None:
        """Return how many copies were left out since the last line; None to leave this one out."""
        event = outcome.event
        kind = (outcome.status, event.type if event is not None else "", outcome.same_id)
        now = monotonic()
        with self._lock:
            last, others = self._kinds.get(kind, (-inf, 0))
            if now - last < COPIES_EVERY:
                self._kinds[kind] = (last, others + 1)
                return None
            if len(self._kinds) >= MOST_KINDS:
                self._kinds.clear()
            self._kinds[kind] = (now, 0)
            return others


class _ToLog:
    """An observer that writes a line for each outcome, or for those that people look at."""

    def __init__(self, logger: logging.Logger | None, *, every: bool, copies: bool) -> None:
        self.in_our_log = logger is None
        """Whether the lines are in the same log as those of the consumer and of Lambda. A logger
        that was given is another log, which also has a line for outcomes that were `warned` of."""
        self._logger = logger or logging.getLogger("eventonce.outcomes")
        self._every = every
        self._copies = copies
        self._sampled = _Sampled()

    def __call__(self, outcome: Outcome, _seconds: float) -> None:
        if outcome.warned and self.in_our_log:
            return
        copy = is_copy(outcome)
        usual, more = copy or outcome.status in USUAL, 0
        if usual and not self._every:
            told = self._sampled.more(outcome) if self._copies and copy else None
            if told is None:
                return
            more = told
        write_line(outcome, self._logger, INFO if usual else WARNING, more=more)


def to_log(
    logger: logging.Logger | None = None, *, every: bool = True, copies: bool = True
) -> Observer:
    """An observer that writes one line an outcome: ids and reasons, never the event's content.

    A handler's error adds its traceback. The consumer itself always writes a line for the first
    event of each type that no handler takes; the observer writes another only if `logger` is given.
    With `every=False` events that ran are left out, and of `copies` of one type and cause one a
    minute is logged, with the number of the others.
    """
    if logger is not None and not hasattr(logger, "log"):
        raise ConfigError(f"to_log: expected a logger, not {type(logger).__name__}")
    return _ToLog(logger, every=every, copies=copies)
