"""The dashboard as an ASGI app: its paths, the function of each, and the headers of responses."""

from __future__ import annotations

import logging
import secrets
from typing import Final

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from eventonce.config import DashboardTable
from eventonce.dashboard.access import Guard
from eventonce.dashboard.assets import static
from eventonce.dashboard.blocking_calls import Unavailable
from eventonce.dashboard.context import Context
from eventonce.dashboard.event_stream import live
from eventonce.dashboard.layout import framed
from eventonce.dashboard.pages import (
    letter,
    letter_actions,
    letters,
    overview,
    search,
    shadow,
    store,
    workers,
)
from eventonce.dashboard.resources import Resources
from eventonce.markup import tag

log = logging.getLogger("eventonce.dashboard")

ROUTES: Final = [
    Route("/", overview.page),
    Route("/search", search.page),
    Route("/workers", workers.page),
    Route("/store", store.page),
    Route("/shadow", shadow.page),
    Route("/rates", overview.rates),
    Route("/live/overview", overview.live),
    Route("/live/workers", workers.live),
    Route("/live/store", store.live),
    Route("/letters", letters.page),
    Route("/letters/one", letter.page),
    Route("/letters/{kind}", letter_actions.dry_run),
    Route("/letters/{kind}", letter_actions.act, methods=["POST"]),
    Route("/actions", letter_actions.actions),
    Route("/actions/{id}", letter_actions.action),
    Route("/actions/{id}/stop", letter_actions.stop, methods=["POST"]),
    Route("/actions/{id}/file", letter_actions.download, methods=["POST"]),
    Route("/live/actions/{id}", letter_actions.live),
    Route("/live", live),
    Route("/static/{name}", static),
]
"""The paths. A new page is one line here, and one in `NAVIGATION` of `layout.py`."""

CONTENT_POLICY: Final = (
    "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'self'; img-src data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
FIXED_HEADERS: Final = {
    "x-content-type-options": "nosniff",
    # No referrer to other sites. With `no-referrer`, a form would send the origin "null".
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


def dashboard(resources: Resources, settings: DashboardTable | None = None) -> Starlette:
    """Return the app for these resources; the caller closes them."""
    context = Context(resources, settings or DashboardTable())
    app = Starlette(
        routes=ROUTES,
        middleware=[Middleware(Headers), Middleware(Guard, access=context.access)],
        exception_handlers={Unavailable: _away, HTTPException: _refused, Exception: _broken},
    )
    app.state.context = context
    return app


async def _away(request: Request, error: Exception) -> Response:
    return await framed(request, "Not available now", tag("p", str(error)), status=503)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return await framed(request, error.detail, tag("p"), status=error.status_code)


async def _broken(request: Request, error: Exception) -> Response:
    log.error("a page failed: %s", request.url.path, exc_info=error)
    said = "This page failed; the log of the dashboard says why."
    answer = await framed(request, "Internal error", tag("p", said), status=500)
    # Starlette sends this response without the middleware.
    _add_headers(answer.headers, request.state.nonce)
    return answer


class Headers:
    """The middleware that adds the headers to every response, with a strict content security policy
    and a nonce for scripts; `request.state.nonce` is that nonce."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        nonce = secrets.token_urlsafe(16)
        scope.setdefault("state", {})["nonce"] = nonce

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                _add_headers(MutableHeaders(scope=message), nonce)
            await send(message)

        await self._app(scope, receive, sent)


def _add_headers(headers: MutableHeaders, nonce: str) -> None:
    """Add the headers to a response whose scripts have this nonce."""
    headers.update(FIXED_HEADERS)
    headers["content-security-policy"] = CONTENT_POLICY.format(nonce=nonce)
    headers.setdefault("cache-control", "no-store")
