"""The body of a request: read whole, but no further than the limit and no longer than the time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from starlette.types import Receive

from eventonce.envelope.bodies import JSON_LINES, is_binary, media_type
from eventonce.envelope.headers import SNS_TYPE
from eventonce.http_report import Answer
from eventonce.web.limits import Limits
from eventonce.web.refusals import refuse

CHARSETS: Final = frozenset(("", "utf-8", "utf8", "us-ascii"))


def unreadable(headers: Mapping[str, str], limits: Limits) -> Answer | None:
    """Why a body with these headers need not be read at all, None if it must be.

    A body that says nothing, or says it is a form or plain text, is refused: any web page can make
    a browser send those to a receiver on loopback, and only those.
    """
    media = media_type(headers)
    # No page can make a browser send the attributes of a CloudEvent elsewhere, and its data may be
    # of any type, or of none. Nor the header of SNS, which calls its JSON plain text.
    binary = is_binary(headers)
    named = binary or SNS_TYPE in headers
    if not named and not (media in ("application/json", *JSON_LINES) or media.endswith("+json")):
        said = f"content-type is {media!r}" if media else "there is no content-type"
        return refuse(415, f"{said}; application/json or application/x-ndjson was expected")
    if not binary and _charset(headers) not in CHARSETS:
        return refuse(415, "the charset is not UTF-8, and JSON is nothing else")
    if headers.get("content-encoding", "identity").strip().lower() != "identity":
        return refuse(415, "compressed bodies are not taken")
    return too_large(limits) if declared(headers) > limits.max_body else None


def declared(headers: Mapping[str, str]) -> int:
    """The size of the body as its sender says it, 0 if not."""
    said = headers.get("content-length", "")
    return int(said[:20]) if said.isdecimal() else 0


async def whole(
    receive: Receive, limits: Limits, grow: Callable[[int], Answer | None]
) -> bytes | Answer | None:
    """The body, or why it is not taken; None if the client went away.

    Counted as it comes: what was declared may be a lie, and a chunked body declares nothing. `grow`
    is told how much there is, and may refuse it.
    """
    pieces: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(limits.body_timeout):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    return None
                piece: bytes = message.get("body", b"")
                size += len(piece)
                if size > limits.max_body:
                    return too_large(limits)
                refused = grow(size)
                if refused is not None:
                    return refused
                pieces.append(piece)
                if not message.get("more_body", False):
                    return b"".join(pieces)
    except TimeoutError:
        return refuse(408, f"the body did not arrive within {limits.body_timeout:g} seconds")


def too_large(limits: Limits) -> Answer:
    """The answer to a body beyond the limit."""
    return refuse(413, f"the body is larger than {limits.max_body} bytes")


def _charset(headers: Mapping[str, str]) -> str:
    for parameter in headers.get("content-type", "").split(";")[1:]:
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "charset":
            return value.strip().strip('"').lower()
    return ""
