"""Whether the receiver lives, and whether its store answers; asked by load balancers."""

from __future__ import annotations

import asyncio
import logging
import time
from math import inf
from typing import Final, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from eventonce.consumer import Consumer
from eventonce.errors import StoreError

FRESH: Final = 1.0
"""Seconds for which an answer of the store is passed on: anybody may ask, and each would cost."""

PATIENCE: Final = 2.0
"""Seconds a store may take: a probe waits little longer than that."""

_NOBODY: Final = bytes(16)
"""A key that no event has."""

log = logging.getLogger("eventonce.web")


class Health(msgspec.Struct, frozen=True):
    """What a probe is told; no address and no error, for it asks without credentials."""

    status: Literal["ok", "the store is away"]


async def alive(_: Request) -> Response:
    """The process answers: that is all that is asked."""
    return _told(Health("ok"))


class Readiness:
    """Asks the store, at most once at a time and once a second."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._asking: asyncio.Future[None] | None = None
        self._answered_at = -inf
        self._fine = False

    async def ready(self, _: Request) -> Response:
        """Whether events can be taken now."""
        if self._asking is None and time.monotonic() - self._answered_at > FRESH:
            self._asking = asyncio.ensure_future(self._ask())
        if self._asking is not None:
            await asyncio.wait([self._asking], timeout=PATIENCE)
        fine = self._fine and self._asking is None
        return _told(Health("ok" if fine else "the store is away"))

    async def _ask(self) -> None:
        self._fine = False
        try:
            await asyncio.to_thread(self._consumer.shelf.show, _NOBODY)
            self._fine = True
        except StoreError as error:
            log.warning("not ready: %s", error)
        finally:
            self._answered_at, self._asking = time.monotonic(), None


def _told(health: Health) -> Response:
    status = 200 if health.status == "ok" else 503
    return Response(msgspec.json.encode(health), status, media_type="application/json")
