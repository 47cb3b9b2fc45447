"""The receiver as an ASGI app: its paths, and what stands behind each."""

from __future__ import annotations

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from eventonce.config import Serve
from eventonce.consumer import Consumer
from eventonce.errors import ConfigError
from eventonce.web import openapi
from eventonce.web.admission import Admission
from eventonce.web.authentication import Gate
from eventonce.web.events import Events
from eventonce.web.health import Readiness
from eventonce.web.limits import limits
from eventonce.web.refusals import KINDS, refuse, response


def receiver(consumer: Consumer, settings: Serve | None = None) -> Starlette:
    """An app that gives the events it is sent to this consumer, to serve or to mount.

    The settings are those of the `[serve]` table; where it listens is the server's business. The
    consumer stays the caller's, who closes it.
    """
    given = settings or Serve()
    gate = Gate(given)
    if not gate.ways and not given.anyone_may_send_events:
        raise ConfigError(
            "receiver: no authentication is set, so anyone who reaches it could send events. Set "
            "api_keys, users, sns_topics or the secrets of a webhook; or, where something before "
            "it authenticates, anyone_may_send_events"
        )
    described = openapi.description(given, gate)
    bearable = limits(given)
    admission = Admission(bearable, consumer.threads)

    readiness = Readiness(consumer, admission)

    async def describe(request: Request) -> Response:
        servers = [{"url": _path(request) or "/"}]
        document = msgspec.json.encode({**described, "servers": servers})
        return Response(document, media_type="application/json")

    app = Starlette(
        routes=[
            Route(
                openapi.EVENTS,
                Events(consumer, gate, bearable, given.api_key_header, admission),
                methods=["POST"],
            ),
            Route(openapi.HEALTH, readiness.alive),
            Route(openapi.READY, readiness.ready),
            Route(openapi.DESCRIPTION, describe),
        ],
        exception_handlers={HTTPException: _refused, Exception: _broken},
    )
    # A sender of events follows no redirect.
    app.router.redirect_slashes = False
    return app


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    status = error.status_code if error.status_code in KINDS else 404
    events, rest = (_path(request, path) for path in (openapi.EVENTS, openapi.DESCRIPTION))
    return response(
        refuse(status, f"events go to POST {events}; {rest} describes the rest", error.headers)
    )


async def _broken(_: Request, __: Exception) -> Response:
    return response(refuse(500))


def _path(request: Request, path: str = "") -> str:
    """As the sender has to write it: mounted, all paths begin with where that is."""
    return f"{request.scope.get('root_path', '')}{path}"
