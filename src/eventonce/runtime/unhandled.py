"""The policy for events that no handler takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Literal, get_args

from msgspec.structs import replace

from eventonce import forks
from eventonce.core.outcomes import backoff
from eventonce.core.routing import ignored
from eventonce.errors import ConfigError
from eventonce.log import log
from eventonce.runtime.log_lines import write_line
from eventonce.types import Event, Outcome

UNHANDLED_TYPES: Final = 100
"""The most types that are logged because no handler takes them: senders choose types, and must not
be able to fill the log or the memory with them."""

ADVICE: Final = "look at the patterns of the handlers, or at `match` of the sinks"

Policy = Literal["ignore", "letter", "fail"]
POLICIES: Final[tuple[Policy, ...]] = get_args(Policy)
"""The policies for an event that no handler takes: acknowledge it, keep it as a dead letter, fail
it."""


class Unhandled:
    """The outcome of events that no handler takes. The first event of each type is logged as a
    warning, in place of the line of its outcome.

    Without the warning, a mistake in a pattern would go unseen. Safe in many threads.
    """

    def __init__(self, policy: str, clock: Callable[[], int]) -> None:
        if policy not in POLICIES:
            raise ConfigError(f"unhandled: expected {', '.join(POLICIES)}, not {policy!r}")
        self.policy = policy
        self._clock = clock
        self._lock = forks.lock_of(self)
        self._warned: set[int] = set()
        """Hashes of the types that were logged."""

    def __call__(self, event: Event) -> Outcome:
        """Return the outcome of an event that no handler takes."""
        outcome = ignored(event)
        warned = self._warns_of(event.type)
        if self.policy == "fail":
            retry_at = self._clock() + backoff(1)
            return Outcome(event, "failed", outcome.reason, retry_at=retry_at, warned=warned)
        if self.policy == "letter" and event.type:
            return Outcome(event, "dead", outcome.reason, warned=warned)
        return replace(outcome, warned=warned)

    def warn(self, outcomes: Sequence[Outcome]) -> list[Outcome]:
        """Write the line of each outcome that is the first of its type. Return the outcomes; those
        without a line are not `warned` any more.

        Not sooner: before this it is not known whether a dead letter could be kept, or whether the
        caller only plans and runs nothing.
        """
        return [self._warned_of(one) if one.warned else one for one in outcomes]

    def _warned_of(self, outcome: Outcome) -> Outcome:
        assert outcome.event is not None
        with self._lock:
            if not self._warns_of(outcome.event.type):
                return replace(outcome, warned=False)
            self._warned.add(hash(outcome.event.type))
            last = len(self._warned) > UNHANDLED_TYPES
        advice = ADVICE
        if last:
            advice += f"; more than {UNHANDLED_TYPES} types, no warning for any other"
        elif outcome.status == "ignored":
            # A dead or failed event has a line of `run`, `serve` or Lambda each time.
            advice += "; no further warning for this type"
        write_line(outcome, log(), advice=advice)
        return outcome

    def _warns_of(self, type: str) -> bool:
        return len(self._warned) <= UNHANDLED_TYPES and hash(type) not in self._warned
