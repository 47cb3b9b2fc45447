"""Which handler an event runs: globs over event types, the first registered that matches, or the
one for all that no glob takes; and what becomes of an event that no handler takes."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import FunctionType
from typing import Final, NamedTuple, TypeGuard

from eventonce.core.plan import Handler
from eventonce.errors import ConfigError, EnvelopeError
from eventonce.rules.rule import glob
from eventonce.types import Event, Outcome

SHOWN: Final = 200
"""Characters of a type or an id in a sentence: a sender may make them as long as an event."""

KNOWN_TYPES: Final = 4096
"""Event types whose handler is remembered; a source that invents types must not fill the memory."""


class Route(NamedTuple):
    """A handler, and whether it must be awaited."""

    handler: Handler
    asynchronous: bool


class Routes:
    """Handlers in the order they were registered."""

    def __init__(self, fallback: Handler | None = None) -> None:
        self._registered: list[tuple[re.Pattern[str], Route]] = []
        self._fallback = None if fallback is None else route_to(fallback)
        self._known: dict[str, Route | None] = {}
        self.asynchronous = self._fallback is not None and self._fallback.asynchronous
        """Whether some handler must be awaited."""

    def __bool__(self) -> bool:
        return bool(self._registered) or self._fallback is not None

    def add(self, pattern: str, handler: Handler) -> None:
        """Send the types this glob matches to this handler, unless an earlier one takes them."""
        self._add(glob(pattern), handler)

    def _add(self, types: re.Pattern[str], handler: Handler) -> None:
        route = route_to(handler)
        self._registered.append((types, route))
        self._known = {}
        self.asynchronous |= route.asynchronous

    def wrapped(self, around: Callable[[Handler], Handler]) -> Routes:
        """The same routes with something around every handler."""
        routes = Routes()
        for types, route in self._registered:
            routes._add(types, around(route.handler))
        if self._fallback is not None:
            # Given to the constructor, None of an `around` that returns nothing is no handler.
            routes._fallback = route_to(around(self._fallback.handler))
            routes.asynchronous |= routes._fallback.asynchronous
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


def is_async(handler: Handler) -> bool:
    """Whether calling this handler gives something to await."""
    if _is_plain(handler):
        return bool(handler.__code__.co_flags & _COROUTINE)
    from inspect import iscoroutinefunction  # noqa: PLC0415  slow to import, and seldom needed

    return any(map(iscoroutinefunction, _called(handler)))


def is_generator(handler: Handler) -> bool:
    """Whether calling this handler runs nothing of it yet."""
    if _is_plain(handler):
        return bool(handler.__code__.co_flags & (_GENERATOR | _ASYNC_GENERATOR))
    from inspect import isasyncgenfunction, isgeneratorfunction  # noqa: PLC0415  likewise

    return any(isgeneratorfunction(one) or isasyncgenfunction(one) for one in _called(handler))


def _called(handler: Handler) -> tuple[object, object]:
    """The objects that may be the function: the handler, or the `__call__` of its class."""
    return handler, getattr(handler, "__call__", None)  # noqa: B004  its kind is asked


def _is_plain(handler: object) -> TypeGuard[FunctionType]:
    """Whether the handler is a function, and nobody marked it as something else."""
    return type(handler) is FunctionType and not handler.__dict__


_GENERATOR: Final = 0x20
_COROUTINE: Final = 0x80
_ASYNC_GENERATOR: Final = 0x200
"""Flags of a function, as Python's compiler sets them; `inspect` names them."""


def route_to(handler: Handler) -> Route:
    """The route to this handler; raises where it is none."""
    if not callable(handler):
        raise ConfigError(f"expected a handler, a function that takes a job, not {handler!r}")
    if is_generator(handler):
        raise ConfigError(f"{handler!r} is a generator: calling it runs nothing; remove `yield`")
    return Route(handler, is_async(handler))


def ignored(event: Event) -> Outcome:
    """The outcome of an event that no handler takes, unless a policy says otherwise.

    Nobody chose not to handle an object without a type. It may be anything: so it is no event, and
    is kept.
    """
    if event.type:
        reason = f"no handler takes events of type {event.type[:SHOWN]!r}"
        return Outcome(event, "ignored", reason)
    reason = "it has no type, and no handler takes events without one"
    return Outcome(event, "invalid", reason, error=EnvelopeError(reason))
