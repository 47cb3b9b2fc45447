"""Observers: what becomes of events, counted or written to a log."""

from __future__ import annotations

import logging
from collections import Counter
from math import inf
from threading import Lock
from time import monotonic
from typing import Final

from eventonce.core.ports import Observer
from eventonce.core.redaction import REDACTED
from eventonce.core.status import COPIES, USUAL
from eventonce.errors import ConfigError, EventonceError, Reject, Retry
from eventonce.log import on_one_line
from eventonce.types import Outcome

RAISED: Final = frozenset[str](("failed", "dead"))
"""The statuses by which a handler's own error is met."""

EXPECTED: Final = (EventonceError, Reject, Retry)
"""Errors whose reason says it all: a traceback leads to who raised them on purpose."""


COPIES_EVERY: Final = 60.0
"""Seconds between two lines about copies of one type and cause."""
MOST_KINDS: Final = 1000


class Tally:
    """Counts outcomes by status; safe in many threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self.counts: Counter[str] = Counter()

    def __call__(self, outcome: Outcome, _seconds: float) -> None:
        with self._lock:
            self.counts[outcome.status] += 1


class _Sampled:
    """Lets one of many copies of a kind through in a while, and counts the others."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._kinds: dict[tuple[str, str, bool | None], tuple[float, int]] = {}

    def more(self, outcome: Outcome) -> int | None:
        """How many others there were since the last one that is told; None if this is not told."""
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


def to_log(
    logger: logging.Logger | None = None, *, every: bool = True, copies: bool = True
) -> Observer:
    """An observer that writes one line an outcome: ids and reasons, never the event's content.

    A handler's error brings its traceback. The first event of each type that no handler takes is a
    warning of the consumer itself, whoever observes. With `every=False` what ran is left out, and
    of `copies` of one type and cause one a minute is told, with the number of the others.
    """
    if logger is not None and not hasattr(logger, "log"):
        raise ConfigError(f"to_log: expected a logger, not {type(logger).__name__}")
    target = logger or logging.getLogger("eventonce.outcomes")
    sampled = _Sampled()

    def write(outcome: Outcome, _seconds: float) -> None:
        # In shadow mode copies run, and are told as copies.
        copy = outcome.status in COPIES or outcome.shadowed in COPIES
        usual, more = copy or outcome.status in USUAL, 0
        if usual and not every:
            told = sampled.more(outcome) if copies and copy else None
            if told is None:
                return
            more = told
        event, error = outcome.event, outcome.error
        raised = outcome.status in RAISED and not isinstance(error, EXPECTED)
        # Its traceback would have what was redacted in the reason.
        raised = raised and REDACTED not in outcome.reason
        reason = on_one_line(outcome.reason) or "ran"
        fields = {
            # The message of a line of JSON, which has the rest as fields.
            "message": f"{outcome.status}: {reason}",
            "status": outcome.status,
            "type": on_one_line(event.type) if event is not None else "",
            "id": on_one_line(event.id) if event is not None else "",
            "rule": outcome.rule,
            "key": outcome.key.hex(),
            "attempt": outcome.attempt,
            "more": more,
        }
        target.log(
            logging.INFO if usual else logging.WARNING,
            "%s type=%s id=%s rule=%s key=%s: %s%s",
            outcome.status,
            fields["type"] or "-",
            fields["id"] or "-",
            outcome.rule or "-",
            fields["key"] or "-",
            reason,
            f"; {more} more like it since the last line" if more else "",
            exc_info=error if raised else None,
            extra={"fields": {name: value for name, value in fields.items() if value}},
        )

    return write
