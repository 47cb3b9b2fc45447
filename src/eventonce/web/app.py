"""The receiver as an ASGI app: its paths, and the part that answers each."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from importlib.resources import files
from typing import Any, Final

import msgspec

import eventonce
from eventonce.arguments import check_function
from eventonce.config import Serve
from eventonce.consumer import Consumer
from eventonce.envelope.captured import Tap
from eventonce.errors import ConfigError
from eventonce.http_report import Answer
from eventonce.metrics.prometheus import scraping
from eventonce.web.admission import Admission, limits
from eventonce.web.authentication import Authenticator
from eventonce.web.events import Events
from eventonce.web.health import Readiness
from eventonce.web.responses import Receive, Scope, Send, in_json, refuse, send_answer

EVENT_PATH: Final = "/events"
OPENAPI_PATH: Final = "/openapi.json"
METRICS_PATH: Final = "/metrics"
_READING: Final = ("GET", "HEAD")

log = logging.getLogger("eventonce.web")


def receiver(
    consumer: Consumer, settings: Serve | None = None, *, tap: Tap | None = None
) -> Receiver:
    """Return an ASGI app, to serve or to mount, that gives the events of requests to this consumer.

    The settings are those of the `[serve]` table; host and port do not apply to an app. The caller
    closes the consumer. `tap` is called with the events as they arrive.
    """
    if not isinstance(consumer, Consumer):
        raise ConfigError(f"receiver: expected a Consumer, not {type(consumer).__name__}")
    if settings is None:
        settings = Serve()
    elif not isinstance(settings, Serve):
        raise ConfigError(
            "receiver: expected settings such as eventonce.config.Serve(api_keys=[…]), not "
            f"{type(settings).__name__}"
        )
    if tap is not None:
        check_function("receiver: tap", tap)
    return Receiver(consumer, settings, tap)


class Receiver:
    """An ASGI app of five paths; a framework would cost more time than the app itself."""

    def __init__(self, consumer: Consumer, settings: Serve, tap: Tap | None = None) -> None:
        authenticator = Authenticator(settings)
        if not authenticator.ways and not settings.anyone_may_send_events:
            raise ConfigError(
                "receiver: no authentication is set, so anyone who reaches it could send events. "
                "Set api_keys, users, sns_topics or the secrets of a webhook; or, if a proxy "
                "in front of it authenticates, anyone_may_send_events"
            )
        bearable = limits(settings)
        admission = Admission(bearable, consumer.runtime.threads)
        readiness = Readiness(consumer, admission)
        key_header = settings.api_key_header
        self._authenticator = authenticator
        self._scrape = scraping(consumer, on=settings.metrics)
        self._scraping: asyncio.Future[Answer] | None = None
        self._events = Events(
            consumer, authenticator, bearable, key_header, admission, readiness.doubt, tap
        )
        self._described = description(settings, authenticator)
        self._read: dict[str, Callable[[str], Awaitable[Answer]]] = {
            "/health": readiness.alive,
            "/ready": readiness.ready,
            OPENAPI_PATH: self._describe,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await _not_http(scope, receive, send)
            return
        # If it is mounted in another app, all paths begin with the path of the mount.
        root = scope.get("root_path", "")
        path = scope["path"].removeprefix(root)
        try:
            if path == EVENT_PATH and scope["method"] == "POST":
                await self._events(scope, receive, send)
            elif path == METRICS_PATH and scope["method"] in _READING:
                await send_answer(await self._metrics(scope), send)
            else:
                await send_answer(await self._other(path, scope["method"], root), send)
        except Exception:
            log.exception("a request failed unexpectedly; its answer is 500")
            await send_answer(refuse(500), send)

    async def _other(self, path: str, method: str, root: str) -> Answer:
        found = self._read.get(path)
        if found is not None and method in _READING:
            return await found(root)
        advice = f"events go to POST {root}{EVENT_PATH}; {root}{OPENAPI_PATH} describes the rest"
        if found is None and path not in (EVENT_PATH, METRICS_PATH):
            # No redirect, not even for a trailing slash: senders of events do not follow one.
            return refuse(404, advice)
        return refuse(405, advice, {"allow": "POST" if path == EVENT_PATH else ", ".join(_READING)})

    async def _metrics(self, scope: Scope) -> Answer:
        """Return the metrics to senders with an API key or as a user: metrics show the traffic."""
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        if not self._authenticator.knows(headers):
            challenge = {"www-authenticate": self._authenticator.challenge}
            return refuse(401, "/metrics needs one of api_keys or users of [serve]", challenge)
        # Concurrent requests share one answer and one thread.
        if self._scraping is None or self._scraping.done():
            self._scraping = asyncio.ensure_future(asyncio.to_thread(self._scrape))
        return await asyncio.shield(self._scraping)

    async def _describe(self, root: str) -> Answer:
        return in_json({**self._described, "servers": [{"url": root or "/"}]})


async def _not_http(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer the server's lifespan messages, and refuse web sockets."""
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1000})
        return
    while scope["type"] == "lifespan":
        said = (await receive())["type"]
        await send({"type": f"{said}.complete"})
        if said == "lifespan.shutdown":
            return


def description(settings: Serve, authenticator: Authenticator) -> dict[str, Any]:
    """Return the OpenAPI document of a receiver with these settings: `openapi.json`, reduced to
    the ways to authenticate that are set."""
    text = files("eventonce.web").joinpath("openapi.json").read_bytes()
    document: dict[str, Any] = msgspec.json.decode(text)
    known = document["components"]["securitySchemes"]
    known["api_key"]["name"] = settings.api_key_header
    schemes = {way.replace(" ", "_"): None for way in authenticator.ways}
    document["components"]["securitySchemes"] = {name: known[name] for name in schemes}
    post = document["paths"][EVENT_PATH]["post"]
    if schemes:
        post["security"] = [{name: []} for name in schemes]
    else:
        del post["security"]
    document["info"]["version"] = eventonce.__version__
    return document
