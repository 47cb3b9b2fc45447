"""Live parts: server-sent events that keep a page up to date without a reload."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from eventonce.dashboard.blocking_calls import Unavailable
from eventonce.dashboard.context import Context, context_of
from eventonce.dashboard.layout import health
from eventonce.dashboard.snapshots import SNAPSHOT_INTERVAL

STREAM_HEADERS: Final = {"content-type": "text/event-stream", "cache-control": "no-store"}

MOST_STREAMS: Final = 100
"""The most streams at the same time, so that connections are left for other pages."""

Parts = Callable[[], Awaitable[Mapping[str, str]]]
"""A function that returns the parts of a page by the names of their events, as markup or JSON."""


async def live(request: Request) -> Response:
    """Stream the health, for pages without other live parts."""
    return stream(request, _no_parts)


async def _no_parts() -> Mapping[str, str]:
    return {}


def stream(request: Request, parts: Parts) -> Response:
    """Stream the health and these parts, each when it has changed, until the browser leaves."""
    context = context_of(request)
    if context.streams >= MOST_STREAMS:
        raise HTTPException(503, "Too many live pages are open: this one is not live")
    return StreamingResponse(_events(context, parts), headers=STREAM_HEADERS)


async def _events(context: Context, parts: Parts) -> AsyncIterator[str]:
    context.streams += 1
    try:
        sent: dict[str, str] = {}
        yield "retry: 2000\n\n"
        while not context.snapshots.ended.is_set():
            snapshot = await context.snapshots.latest.get()
            told: dict[str, str] = {"health": health(snapshot), "state": snapshot.health.state}
            with suppress(Unavailable):  # The health names the outage; the parts stay unchanged.
                told |= await parts()
            changed = {name: text for name, text in told.items() if sent.get(name) != text}
            if changed:
                sent |= changed
                yield "".join(event(name, text) for name, text in changed.items())
            with suppress(TimeoutError):
                await asyncio.wait_for(context.snapshots.ended.wait(), SNAPSHOT_INTERVAL)
    finally:
        context.streams -= 1


def event(name: str, text: str) -> str:
    """Return a server-sent event; each line of the text becomes a `data:` line."""
    lines = "\n".join(f"data: {line}" for line in text.splitlines() or [""])
    return f"event: {name}\n{lines}\n\n"
