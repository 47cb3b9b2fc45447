"""The policy for events that no handler takes."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Final, Literal, get_args

from eventonce.core.outcomes import backoff
from eventonce.core.routing import ignored
from eventonce.errors import ConfigError
from eventonce.log import log, on_one_line
from eventonce.types import Event, Outcome

UNHANDLED_TYPES: Final = 100
"""Types that are warned of because no handler takes them: senders choose types, and must fill
neither the log nor the memory with them."""

SHOWN: Final = 200
"""Characters of a type in a warning: a type may be as long as an event."""

Policy = Literal["ignore", "letter", "fail"]
POLICIES: Final[tuple[Policy, ...]] = get_args(Policy)
"""The policies for an event that no handler takes: acknowledge it, keep it as a dead letter, fail
it."""


class Unhandled:
    """The outcome of events that no handler takes; the first of each type is a warning.

    A pattern with a slip in it would otherwise let them go unseen. Safe in many threads.
    """

    def __init__(self, policy: str, clock: Callable[[], int]) -> None:
        if policy not in POLICIES:
            raise ConfigError(f"unhandled: expected {', '.join(POLICIES)}, not {policy!r}")
        self.policy = policy
        self._clock = clock
        self._lock = Lock()
        self._warned: set[int] = set()
        """Hashes of types."""

    def __call__(self, event: Event) -> Outcome:
        """The outcome of an event that no handler takes."""
        outcome = ignored(event)
        if self.policy == "fail":
            retry_at = self._clock() + backoff(1)
            outcome = Outcome(event, "failed", outcome.reason, retry_at=retry_at)
        elif self.policy == "letter" and event.type:
            outcome = Outcome(event, "dead", outcome.reason)
        self._warn(event, outcome)
        return outcome

    def _warn(self, event: Event, outcome: Outcome) -> None:
        with self._lock:
            known = hash(event.type)
            if known in self._warned or len(self._warned) > UNHANDLED_TYPES:
                return
            self._warned.add(known)
            last = len(self._warned) > UNHANDLED_TYPES
        if last:
            log().warning(
                "no handler takes events of more than %d types; further types are not logged",
                UNHANDLED_TYPES,
            )
            return
        log().warning(
            "%s type=%s id=%s: %s%s",
            outcome.status,
            on_one_line(event.type[:SHOWN]) or "-",
            on_one_line(event.id[:SHOWN]) or "-",
            on_one_line(outcome.reason[: 2 * SHOWN]),
            # What is given up or must come again has a line of `run`, `serve` or Lambda each time.
            "; no further warning for this type" if outcome.status == "ignored" else "",
        )
