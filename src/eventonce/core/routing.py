"""Which handler an event runs: globs over event types, the first registered that matches, or the
one for all that no glob takes; and what becomes of an event that no handler takes."""

from __future__ import annotations

import re
from collections.abc import Callable
from threading import Lock
from typing import Final, Literal, NamedTuple, get_args

from eventonce.core.engine import backoff
from eventonce.core.ports import Handler
from eventonce.errors import ConfigError, EnvelopeError
from eventonce.log import log, on_one_line
from eventonce.rules.rule import glob
from eventonce.runtime.inline import is_async, is_generator
from eventonce.types import Event, Outcome

KNOWN_TYPES: Final = 4096
"""Event types whose handler is remembered; a source that invents types must not fill the memory."""


UNHANDLED_TYPES: Final = 100
"""Types that are warned of because no handler takes them: senders choose types, and must fill
neither the log nor the memory with them."""

SHOWN: Final = 200
"""Characters of a type in a warning: a type may be as long as an event."""

Policy = Literal["ignore", "letter", "fail"]
POLICIES: Final[tuple[Policy, ...]] = get_args(Policy)
"""What becomes of an event that no handler takes: acknowledged, kept as a dead letter, failed."""


class Route(NamedTuple):
    """A handler, and whether it must be awaited."""

    handler: Handler
    asynchronous: bool


class Routes:
    """Handlers in the order they were registered."""

    def __init__(self, fallback: Handler | None = None) -> None:
        self._registered: list[tuple[re.Pattern[str], Route]] = []
        self._fallback = None if fallback is None else _route(fallback)
        self._known: dict[str, Route | None] = {}

    def __bool__(self) -> bool:
        return bool(self._registered) or self._fallback is not None

    @property
    def asynchronous(self) -> bool:
        """Whether some handler must be awaited."""
        routes = [route for _, route in self._registered]
        if self._fallback is not None:
            routes.append(self._fallback)
        return any(route.asynchronous for route in routes)

    def add(self, pattern: str, handler: Handler) -> None:
        """Send the types this glob matches to this handler, unless an earlier one takes them."""
        self._registered.append((glob(pattern), _route(handler)))
        self._known = {}

    def wrapped(self, around: Callable[[Handler], Handler]) -> Routes:
        """The same routes with something around every handler."""
        routes = Routes(None if self._fallback is None else around(self._fallback.handler))
        for types, route in self._registered:
            routes._registered.append((types, _route(around(route.handler))))
        return routes

    def of(self, type: str) -> Route | None:
        """The route of this event type, None if nobody takes it."""
        known = self._known
        if type not in known:
            if len(known) >= KNOWN_TYPES:
                known = self._known = {}
            matching = (route for types, route in self._registered if types.fullmatch(type))
            known[type] = next(matching, self._fallback)
        return known[type]


def _route(handler: Handler) -> Route:
    if not callable(handler):
        raise ConfigError(f"expected a handler, a function that takes a job, not {handler!r}")
    if is_generator(handler):
        raise ConfigError(f"{handler!r} is a generator: calling it runs nothing; remove `yield`")
    return Route(handler, is_async(handler))


def ignored(event: Event) -> Outcome:
    """What becomes of an event that no handler takes, where nobody says otherwise.

    An object without a type is not what somebody chose not to handle. It may be anything: so it is
    no event, and is kept.
    """
    if event.type:
        return Outcome(event, "ignored", f"no handler takes events of type {event.type!r}")
    reason = "it has no type, and no handler takes events without one"
    return Outcome(event, "invalid", reason, error=EnvelopeError(reason))


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
        """What becomes of this event."""
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
            "%s type=%s id=%s: %s; further events of this type are not logged",
            outcome.status,
            on_one_line(event.type[:SHOWN]) or "-",
            on_one_line(event.id[:SHOWN]) or "-",
            on_one_line(outcome.reason[: 2 * SHOWN]),
        )
