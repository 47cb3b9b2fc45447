"""Requests to an ASGI app in this process, with no server between."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any, NamedTuple

import httpx

JSON = {"content-type": "application/json"}


class Answered(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: Any

    @property
    def statuses(self) -> list[str]:
        return [told["status"] for told in self.body["events"]]

    @property
    def reasons(self) -> list[str]:
        return [told.get("reason", "") for told in self.body["events"]]


async def asked(
    app: Any,
    body: Any = None,
    *,
    headers: Mapping[str, str] = JSON,
    path: str = "/events",
    method: str = "POST",
) -> Answered:
    """The answer of the app; a body that is not bytes, nor a stream of them, is sent as JSON."""
    given = isinstance(body, bytes | AsyncIterator) or body is None
    content = body if given else json.dumps(body).encode()
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://receiver") as client:
        response = await client.request(method, path, content=content, headers=dict(headers))
    told = response.json() if "json" in response.headers["content-type"] else response.text
    return Answered(response.status_code, response.headers, told)


def ask(app: Any, body: Any = None, **named: Any) -> Answered:
    return asyncio.run(asked(app, body, **named))
