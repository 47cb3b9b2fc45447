"""What Lambda gave up: the events of an asynchronous invocation, and why, from a message of the
function's own dead-letter queue or from the record that its on-failure destination is sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec

from eventonce import envelope
from eventonce.errors import EnvelopeError

MOST: Final = 1_000
"""Times that an invocation is ever tried: what says more was not written by Lambda."""


class Discarded(msgspec.Struct, frozen=True):
    """An invocation that Lambda does not try again."""

    event: bytes
    """The event as the function was given it, or all that it was given."""
    reason: str
    attempt: int = 0
    whole: bool = True
    """Whether that is one event: several were given together, and are run together."""


class _Context(msgspec.Struct, frozen=True, rename="camel"):
    condition: str
    function_arn: str = ""
    approximate_invoke_count: Annotated[int, msgspec.Meta(ge=0, le=MOST)] = 0


GIVEN_UP: Final = ("RetriesExhausted", "EventAgeExceeded")
"""The conditions under which Lambda brings an event to nobody any more."""


class _Record(msgspec.Struct, frozen=True, rename="camel"):
    """What a destination is sent, as far as it is needed here."""

    request_context: _Context
    request_payload: msgspec.Raw
    response_payload: Any = None


def discarded(body: str, said: Mapping[str, str]) -> Discarded | None:
    """What this message says of an invocation, if it is Lambda's; `said` are its attributes."""
    if "RequestID" in said and "ErrorCode" in said:
        around = [f"code {said['ErrorCode']}", f"request {said['RequestID']}"]
        reason = _reason(said.get("ErrorMessage", ""), around)
        return _made(body.encode("utf-8", "surrogatepass"), reason)
    if '"requestPayload"' not in body:
        return None
    try:
        record = msgspec.json.decode(body, type=_Record)
    except (ValueError, RecursionError):
        return None
    context = record.request_context
    if context.condition not in GIVEN_UP:
        return None
    times = context.approximate_invoke_count
    around = [context.condition, f"tried {times} times" if times else "", context.function_arn]
    reason = _reason(_error(record.response_payload), around)
    return _made(bytes(record.request_payload), reason, times)


def _error(response: Any) -> str:
    """What the function raised; nothing where it was not even tried."""
    if not isinstance(response, dict):
        return ""
    named = (response.get("errorType"), response.get("errorMessage"))
    return ": ".join(str(part) for part in named if part)


def _reason(why: str, around: list[str]) -> str:
    circumstances = ", ".join(part for part in around if part)
    return f"given up by Lambda: {why or 'it does not say why'} ({circumstances})"


def _made(payload: bytes, reason: str, attempt: int = 0) -> Discarded:
    """Under the id that the event had there: Lambda gave it none of a message's."""
    found = envelope.parts(payload)
    if len(found) != 1:
        reason += f"; {len(found)} events together: invoke the function with them again"
        return Discarded(payload, reason, attempt, whole=False)
    try:
        event = envelope.kept(envelope.read(found[0], max_bytes=len(payload) * 4))
    except EnvelopeError:
        event = payload
    return Discarded(event, reason, attempt)
