"""Answers as ASGI messages, and refusals: answers to requests that do not become events."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Final, NamedTuple

import msgspec

from eventonce.http_report import JSON, SOONEST_RETRY, Answer

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class ErrorResponse(msgspec.Struct, frozen=True):
    """The refusal of a request; nothing of the request is kept."""

    reason: str


class Kind(NamedTuple):
    """One kind of refusal: its text if there is no other reason, and its headers."""

    means: str
    headers: Mapping[str, str] = {}


STATUS_KINDS: Final[Mapping[int, Kind]] = {
    401: Kind("No credentials that this receiver knows."),
    404: Kind("There is nothing at this path."),
    405: Kind("The path does not take this method."),
    # Closed, because the rest of the body would be read as the next request.
    408: Kind("The body did not arrive in time.", {"connection": "close"}),
    413: Kind("The body is too large, or holds too many events."),
    415: Kind(
        "The body is neither JSON nor JSON Lines, or it is compressed.",
        {"accept-encoding": "identity"},
    ),
    500: Kind("Something went wrong here; the log says what."),
    503: Kind(
        "Too much is under way, or the store is away: send again.",
        {"retry-after": str(SOONEST_RETRY)},
    ),
}


def refuse(status: int, reason: str = "", headers: Mapping[str, str] | None = None) -> Answer:
    """Return the answer to a request that is refused."""
    kind = STATUS_KINDS[status]
    said = msgspec.json.encode(ErrorResponse(reason or kind.means))
    return Answer(status, {**JSON, **kind.headers, **(headers or {})}, said)


def in_json(document: object, status: int = 200) -> Answer:
    """Return the document as an answer."""
    return Answer(status, JSON, msgspec.json.encode(document))


_JSON: Final = (b"content-type", b"application/json")


WHOLE: Final = "eventonce.whole"
"""The mark on the head of an answer whose whole body follows at once: `server` writes both in one
call. Other servers ignore the mark, and write twice."""


async def send_answer(answer: Answer, send: Send) -> None:
    """Send the head and the body of this answer."""
    if answer.headers is JSON:
        headers = [_JSON]
    else:
        headers = [
            (name.encode("latin-1"), value.encode("latin-1"))
            for name, value in answer.headers.items()
        ]
    headers.append((b"content-length", b"%d" % len(answer.body)))
    start = {"type": "http.response.start", "status": answer.status, "headers": headers}
    await send({**start, WHOLE: True})
    await send({"type": "http.response.body", "body": answer.body})
