"""One invocation of a Lambda function: the time left, and how many events fit into that time."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from math import inf
from typing import Any, Final

from eventonce.consumer import Consumer
from eventonce.core.reasons import TOO_LATE
from eventonce.core.status import DEAD_LETTERS, RAN, USUAL
from eventonce.log import log, on_one_line
from eventonce.runtime.log_lines import is_copy, write_line
from eventonce.types import Outcome

SETTLE_MARGIN: Final = 1.0
"""Seconds that are reserved for settling before Lambda ends the process: enough for one retry."""

COPY_WAIT: Final = 3.0
"""Seconds that a copy waits while its event runs in another invocation: if that run ends meanwhile,
the copy need not come again."""

MARGIN_SHARE: Final = 5
"""The margin is at most this part of the invocation, a fifth: otherwise a short invocation would
begin no event."""

MOST_CLAIMED: Final = 100
"""The most events in one claim: the leases of a batch are held until its last handler ends."""

TIME_FACTOR: Final = 2
"""The factor of safety: the next events may take this many times as long as the last ones."""

MOST_REASONS: Final = 5
"""The most reasons of copies in one line: each version of a state has its own reason."""


class RecentTime:
    """The time that an event took lately; it stays from one invocation of a process to the next."""

    def __init__(self) -> None:
        self.seconds = 0.0
        """Seconds of one event, or of all concurrent async events; 0 while nothing is known."""

    def note(self, seconds: float) -> None:
        """Adopt a longer time at once, and a shorter time gradually."""
        self.seconds = max(seconds, self.seconds / 2)


class Invocation:
    """The time until Lambda ends the process, and how many events may be claimed meanwhile."""

    def __init__(self, context: Any, margin: float, recent: RecentTime) -> None:
        self._remaining = getattr(context, "get_remaining_time_in_millis", None)
        self._end = inf
        self._recent = recent
        self._next = 1
        self._begun = False
        left = None if self._remaining is None else self._remaining()
        if isinstance(left, (int, float)):
            self._end = time.monotonic() + left / 1000
            margin = min(margin, left / 1000 / MARGIN_SHARE)
        else:
            # No context, or a context without a time, such as a mock of a test.
            self._remaining = None
        self._margin = margin

    def left(self) -> float:
        """Seconds until Lambda ends the process."""
        if self._remaining is None:
            return inf
        return float(min(self._remaining() / 1000, self._end - time.monotonic()))

    def room(self, consumer: Consumer) -> int:
        """Return how many events may be claimed now with time left to settle them.

        The first events are always tried: otherwise Lambda would invoke for ever without progress.
        """
        least = 0 if self._begun else 1
        left = self.left() - self._margin
        if left == inf:
            return MOST_CLAIMED
        if left <= 0:
            return least
        need = TIME_FACTOR * self._recent.seconds
        if not need:
            # Nothing is known yet: one event first, and more as long as all are copies.
            return self._next
        if consumer.asynchronous:
            return MOST_CLAIMED if need <= left else least
        return max(least, min(MOST_CLAIMED, int(left / need)))

    def process(
        self, consumer: Consumer, events: Sequence[Any], deliveries: int | None = None
    ) -> list[Outcome]:
        """Process the events, with leases that end with the invocation, and learn the time taken.

        Events that have not begun in time are released, and come again.
        """
        self._begun = True
        left = self.left()
        started = time.monotonic()
        if left == inf:
            outcomes = consumer.process(events, deliveries=deliveries, wait=COPY_WAIT)
        else:
            # The first events are tried although no time is left: a margin would stop them.
            margin = self._margin if left > self._margin else 0.0
            outcomes = consumer.process(
                events,
                deadline=max(0.0, left),
                margin=margin,
                deliveries=deliveries,
                wait=COPY_WAIT,
            )
        took = time.monotonic() - started
        ran = sum(one.status in RAN and one.reason != TOO_LATE for one in outcomes)
        if ran:
            self._recent.note(took if consumer.asynchronous else took / ran)
        else:
            self._next = min(MOST_CLAIMED, 2 * self._next)
        if not any(getattr(one, "in_our_log", False) for one in consumer.observers):
            # No `to_log` writes these lines. An observer of whole batches counts or stores
            # outcomes, and logs none.
            _warn(outcomes, told=any(callable(one) for one in consumer.observers))
        return outcomes


def _warn(outcomes: Sequence[Outcome], *, told: bool) -> None:
    """Log the events that were given up; and the others whose status is not usual, unless an
    observer has them.

    The answer of the function does not name dead letters nor unguarded events, and only SQS reads
    which events must come again.
    """
    for outcome in outcomes:
        unusual = outcome.status not in USUAL and not is_copy(outcome) and not outcome.warned
        if unusual and (outcome.status in DEAD_LETTERS or not told):
            write_line(outcome, log())


def logged(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Return the outcomes, after one line in the log for all of them, at level INFO: the statuses,
    and the reasons of copies.

    The record of the log also has the numbers as fields, for a log in JSON.
    """
    told, level = log(), 20
    if told.isEnabledFor(level):
        statuses = Counter[str](outcome.status for outcome in outcomes)
        copies = Counter(one.reason for one in outcomes if is_copy(one))
        reasons = dict(copies.most_common(MOST_REASONS))
        said = ", ".join(f"{count} {on_one_line(why)}" for why, count in reasons.items())
        told.log(
            level,
            "%d events: %s%s",
            len(outcomes),
            " ".join(f"{status}={count}" for status, count in statuses.items()) or "none",
            f" (copies: {said})" if said else "",
            extra={"statuses": dict(statuses), "copies": reasons},
        )
    return list(outcomes)
