"""Requests that never become events: which there are, and how they are answered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec
from starlette.responses import Response

from eventonce.http_report import SOONEST_RETRY, Answer


class Refusal(msgspec.Struct, frozen=True):
    """Why a request was not taken; nothing of it was kept."""

    reason: str


class Kind(NamedTuple):
    """One way to refuse: what the page says of it, and the headers that go with it."""

    means: str
    headers: Mapping[str, str] = {}


KINDS: Final[Mapping[int, Kind]] = {
    401: Kind("No credentials that this receiver knows."),
    404: Kind("There is nothing at this path."),
    405: Kind("The path does not take this method."),
    # What is still to come of the body would be taken for the next request.
    408: Kind("The body did not arrive in time.", {"connection": "close"}),
    413: Kind("The body is too large, or holds too many events."),
    415: Kind("Neither JSON nor JSON Lines, or compressed.", {"accept-encoding": "identity"}),
    500: Kind("Something went wrong here; the log says what."),
    503: Kind(
        "Too much is under way, or the store is away: send again.",
        {"retry-after": str(SOONEST_RETRY)},
    ),
}


def refuse(status: int, reason: str = "", headers: Mapping[str, str] | None = None) -> Answer:
    """The answer to a request that is not taken."""
    kind = KINDS[status]
    said = msgspec.json.encode(Refusal(reason or kind.means))
    known = {"content-type": "application/json", **kind.headers}
    return Answer(status, {**known, **(headers or {})}, said)


def response(answer: Answer) -> Response:
    """The answer as Starlette sends it."""
    return Response(answer.body, answer.status, dict(answer.headers))
