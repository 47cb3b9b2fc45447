"""Which handler an event runs: globs over event types, the first registered that matches, or the
one for all that no glob takes."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple

from eventonce.errors import ConfigError
from eventonce.ports import Handler
from eventonce.rules.matching import glob
from eventonce.runners import is_async, is_generator

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
