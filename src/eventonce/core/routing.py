"""The routes from event types to handlers: the first registered glob that matches, or the handler
for all other types; and the outcome of an event that no handler takes."""

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
"""The most characters of a type or an id in a sentence: a sender may send very long ones."""

KNOWN_TYPES: Final = 4096
"""The most event types in the cache: a source that invents types must not fill the memory."""


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
        """Send the types that this glob matches to this handler, unless an earlier glob matches."""
        self._add(glob(pattern), handler)

    def _add(self, types: re.Pattern[str], handler: Handler) -> None:
        route = route_to(handler)
        self._registered.append((types, route))
        self._known = {}
        self.asynchronous |= route.asynchronous

    def wrapped(self, around: Callable[[Handler], Handler]) -> Routes:
        """Return the same routes with `around` applied to every handler."""
        routes = Routes()
        for types, route in self._registered:
            routes._add(types, around(route.handler))
        if self._fallback is not None:
            # Not through the constructor, which accepts None: `route_to` refuses None.
            routes._fallback = route_to(around(self._fallback.handler))
            routes.asynchronous |= routes._fallback.asynchronous
        return routes

    def of(self, type: str) -> Route | None:
        """Return the route of this event type; None if no handler takes it."""
        known = self._known
        if type not in known:
            if len(known) >= KNOWN_TYPES:
                known = self._known = {}
            matching = (route for types, route in self._registered if types.fullmatch(type))
            known[type] = next(matching, self._fallback)
        return known[type]


def is_async(handler: Handler) -> bool:
    """Whether a call of this handler returns an awaitable."""
    if _is_plain(handler):
        return bool(handler.__code__.co_flags & _COROUTINE)
    from inspect import iscoroutinefunction  # noqa: PLC0415  slow to import, and seldom needed

    return any(map(iscoroutinefunction, _called(handler)))


def is_generator(handler: Handler) -> bool:
    """Whether this handler is a generator function, whose call runs none of its code."""
    if _is_plain(handler):
        return bool(handler.__code__.co_flags & (_GENERATOR | _ASYNC_GENERATOR))
    from inspect import isasyncgenfunction, isgeneratorfunction  # noqa: PLC0415  likewise

    return any(isgeneratorfunction(one) or isasyncgenfunction(one) for one in _called(handler))


def _called(handler: Handler) -> tuple[object, object]:
    """Return the objects that may be the function: the handler, or the `__call__` of its class."""
    return handler, getattr(handler, "__call__", None)  # noqa: B004  `callable` is not enough


def _is_plain(handler: object) -> TypeGuard[FunctionType]:
    """Whether the handler is a function without attributes, which may mark it as a coroutine."""
    return type(handler) is FunctionType and not handler.__dict__


def _takes_the_job(handler: Handler) -> bool:
    """Whether a function can be called with one argument; of other callables that is unknown."""
    if type(handler) is not FunctionType:
        return True
    code = handler.__code__
    needed = code.co_argcount - len(handler.__defaults__ or ())
    named = code.co_kwonlyargcount - len(handler.__kwdefaults__ or ())
    return needed <= 1 and not named and bool(code.co_argcount or code.co_flags & _VARIADIC)


_VARIADIC: Final = 0x04
_GENERATOR: Final = 0x20
_COROUTINE: Final = 0x80
_ASYNC_GENERATOR: Final = 0x200
"""Flags that Python's compiler sets on a function; `inspect` has names for them."""


def route_to(handler: Handler) -> Route:
    """Return the route to this handler; raise if the object cannot be a handler."""
    if not callable(handler):
        raise ConfigError(f"expected a handler, a function that takes a job, not {handler!r}")
    if is_generator(handler):
        raise ConfigError(f"{handler!r} is a generator: calling it runs nothing; remove `yield`")
    if not _takes_the_job(handler):
        raise ConfigError(f"{handler!r} is no handler: it is called with one argument, the job")
    return Route(handler, is_async(handler))


def ignored(event: Event) -> Outcome:
    """Return the outcome of an event that no handler takes, unless a policy says otherwise.

    An object without a type may be anything, and no pattern can have left it out on purpose: so it
    is invalid, and is kept as a dead letter.
    """
    if event.type:
        reason = f"no handler takes events of type {event.type[:SHOWN]!r}"
        return Outcome(event, "ignored", reason)
    reason = "it has no type, and no handler takes events without one"
    return Outcome(event, "invalid", reason, error=EnvelopeError(reason))
