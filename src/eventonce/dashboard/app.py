"""The dashboard as an ASGI app: its paths, and the function of each."""

from __future__ import annotations

import logging
from typing import Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from eventonce.config import DashboardTable
from eventonce.dashboard import headers
from eventonce.dashboard.access import Guard
from eventonce.dashboard.assets import static
from eventonce.dashboard.blocking_calls import Unavailable
from eventonce.dashboard.context import Context
from eventonce.dashboard.event_stream import live
from eventonce.dashboard.layout import View, framed
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


def dashboard(resources: Resources, settings: DashboardTable | None = None) -> Starlette:
    """Return the app for these resources; the caller closes them."""
    context = Context(resources, settings or DashboardTable())
    app = Starlette(
        routes=ROUTES,
        middleware=[Middleware(headers.Headers), Middleware(Guard, access=context.access)],
        exception_handlers={Unavailable: _away, HTTPException: _refused, Exception: _broken},
    )
    app.state.context = context
    return app


async def _away(request: Request, error: Exception) -> Response:
    return await framed(request, _message("Not available now", str(error)), status=503)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return await framed(request, _message(error.detail, ""), status=error.status_code)


async def _broken(request: Request, error: Exception) -> Response:
    log.error("a page failed: %s", request.url.path, exc_info=error)
    said = "This page failed; the log of the dashboard says why."
    answer = await framed(request, _message("Internal error", said), status=500)
    # Starlette sends this response without the middleware.
    headers.add(answer.headers, request.state.nonce)
    return answer


def _message(title: str, said: str) -> View:
    return View(title, tag("p", said) if said else tag("p"), live="/live")
