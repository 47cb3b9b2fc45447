"""Which handler an event runs: globs over event types, the first registered that matches."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple

from eventonce.ports import Handler
from eventonce.rules.matching import glob
from eventonce.runners import is_async

KNOWN_TYPES: Final = 4096
"""Event types whose handler is remembered; a source that invents types must not fill the memory."""


class Route(NamedTuple):
    """A handler, and whether it must be awaited."""

    handler: Handler
    asynchronous: bool


class Routes:
    """Handlers in the order they were registered."""

    def __init__(self) -> None:
        self._registered: list[tuple[re.Pattern[str], Route]] = []
        self._known: dict[str, Route | None] = {}

    def __bool__(self) -> bool:
        return bool(self._registered)

    def add(self, pattern: str, handler: Handler) -> None:
        """Send the types this glob matches to this handler, unless an earlier one takes them."""
        self._registered.append((glob(pattern), Route(handler, is_async(handler))))
        self._known = {}

    def wrapped(self, around: Callable[[Handler], Handler]) -> Routes:
        """The same routes with something around every handler."""
        routes = Routes()
        for types, route in self._registered:
            handler = around(route.handler)
            routes._registered.append((types, Route(handler, is_async(handler))))
        return routes

    def of(self, type: str) -> Route | None:
        """The route of this event type, None if nobody takes it."""
        known = self._known
        if type not in known:
            if len(known) >= KNOWN_TYPES:
                known = self._known = {}
            matching = (route for types, route in self._registered if types.fullmatch(type))
            known[type] = next(matching, None)
        return known[type]
