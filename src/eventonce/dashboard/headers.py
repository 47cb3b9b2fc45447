"""The headers of every response: a strict content security policy, with a nonce for scripts."""

from __future__ import annotations

import secrets
from typing import Final

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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


def add(headers: MutableHeaders, nonce: str) -> None:
    """Add the headers to a response whose scripts have this nonce."""
    headers.update(FIXED_HEADERS)
    headers["content-security-policy"] = CONTENT_POLICY.format(nonce=nonce)
    headers.setdefault("cache-control", "no-store")


class Headers:
    """The middleware that adds the headers; `request.state.nonce` is the nonce of the response."""

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
                add(MutableHeaders(scope=message), nonce)
            await send(message)

        await self._app(scope, receive, sent)
