"""The events of an HTTP body: one, a JSON array, or JSON Lines. Invalid parts stay bytes.

Shared by the HTTP receiver and the Lambda entry point's HTTP requests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import lru_cache
from typing import Final

from msgspec.structs import force_setattr, replace

from eventonce.envelope import jsontext, tracing
from eventonce.envelope.forms import BINARY_HEADER, headed, structured
from eventonce.envelope.headers import kept_headers
from eventonce.envelope.reader import (
    MAX_BYTES,
    MAX_LAYERS,
    ReadLimits,
    classic,
    elements,
    read_any,
    refused,
)
from eventonce.errors import EnvelopeError
from eventonce.types import NO_HEADERS, Event

JSON_LINES: Final = frozenset(
    (
        "application/x-ndjson",
        "application/ndjson",
        "application/jsonl",
        "application/x-jsonl",
        "application/jsonlines",
        "application/x-jsonlines",
        "application/json-lines",
        "application/json-seq",
    )
)
"""The content types of JSON Lines. The first is the common one; only the last is registered."""

STRUCTURED: Final = "application/cloudevents"
"""The beginning of the content types of whole CloudEvents, one or a batch."""


@lru_cache(maxsize=64)
def media_type(content_type: str) -> str:
    """Return the media type of a content type, without its parameters."""
    return content_type.partition(";")[0].strip().lower()


def read_body(
    raw: bytes,
    headers: Mapping[str, str] = NO_HEADERS,
    *,
    keep: AbstractSet[str] = frozenset(),
    max_bytes: int = MAX_BYTES,
    max_events: int | None = None,
) -> list[Event | bytes]:
    """Return the events of a body in their order, with the headers of the request.

    An element or a line that is no event is returned as bytes, with the headers that may identify
    it, so that a consumer keeps only this part as a dead letter. A body that is not JSON as a whole
    is read as lines if the first line is an object. Header names are in lower case; those listed in
    `envelope.headers`, and those in `keep`, stay with the events.
    With the headers of a CloudEvent the body is the data of one event, whatever its content.
    EnvelopeError, before any event is read, if there are more than `max_events`.
    """
    found = _found(raw, headers, keep, max_bytes, max_events)
    trace = tracing.of_headers(headers)
    if trace:
        for event in found:
            if isinstance(event, Event) and not event.trace:
                # The event is new, so changing it is safe.
                force_setattr(event, "trace", trace)
    return found


def _found(
    raw: bytes,
    headers: Mapping[str, str],
    keep: AbstractSet[str],
    max_bytes: int,
    max_events: int | None,
) -> list[Event | bytes]:
    kept = kept_headers(headers, keep)
    media = media_type(headers.get("content-type", ""))
    if BINARY_HEADER in headers:
        if is_binary(headers):
            return _told_apart([_binary(raw, kept, media, max_bytes)], kept)
    elif len(raw) <= max_bytes and media not in JSON_LINES:
        event = classic(raw, kept) if raw[:1] == b"{" else None
        if event is not None:
            return [event]
    taken = _lines(raw) if media in JSON_LINES else elements(raw)
    found = _read_all(taken, kept, max_bytes, max_events)
    if found == [raw] and len(lines := _lines(raw)) > 1 and jsontext.is_object(lines[0]):
        found = _read_all(lines, kept, max_bytes, max_events)
    return _told_apart(found, kept)


def is_binary(headers: Mapping[str, str]) -> bool:
    """Whether the headers are the attributes of a CloudEvent, whose data is the body."""
    return BINARY_HEADER in headers and not media_type(headers.get("content-type", "")).startswith(
        STRUCTURED
    )


def _lines(raw: bytes) -> list[bytes]:
    # A JSON text sequence has a record separator before each text.
    stripped = (line.strip(b" \t\r\x1e") for line in raw.split(b"\n"))
    return [line for line in stripped if line]


def _read_all(
    taken: Sequence[bytes], headers: Mapping[str, str], max_bytes: int, max_events: int | None
) -> list[Event | bytes]:
    if max_events is not None and len(taken) > max_events:
        # Before reading, which is slow: a million lines of one byte take seconds.
        raise EnvelopeError(f"{len(taken)} events, and the limit is {max_events}")
    first = 0 if headers and len(taken) > 1 else None
    if BINARY_HEADER in headers:
        return [_read_other(part, headers, max_bytes, first) for part in taken]
    return [
        (classic(part, headers, first) if len(part) <= max_bytes else None)
        or _read_other(part, headers, max_bytes, first)
        for part in taken
    ]


def _told_apart(found: list[Event | bytes], headers: Mapping[str, str]) -> list[Event | bytes]:
    """Return the events of one request, each with its `part` if there are several.

    The events share the headers, so an id there names the request and no single event. The content
    tells the events apart: a sender that sends again may send fewer, or in another order. Equal
    events are numbered, because nothing proves that the second is a copy of the first.
    """
    if len(found) == 1:
        return [one if isinstance(one, Event) else refused(one, headers) for one in found]
    # Equal events have equal ids, and hashing ids is quicker than hashing whole events.
    if len({one.id for one in found if type(one) is Event}) == len(found):
        return found
    seen: dict[bytes, int] = {}
    told: list[Event | bytes] = []
    for one in found:
        raw = one.raw if isinstance(one, Event) else one
        number = seen[raw] = seen.get(raw, -1) + 1
        if not isinstance(one, Event):
            told.append(refused(one, headers, number))
        else:
            told.append(replace(one, _number=number) if number else one)
    return told


def _binary(raw: bytes, headers: Mapping[str, str], media: str, max_bytes: int) -> Event | bytes:
    """Read a CloudEvent whose attributes are headers. If the data is no object, the event is
    rewritten as one JSON object, because only JSON can be kept."""
    event = _read_other(raw, headers, max_bytes)
    if isinstance(event, Event) or len(raw) > max_bytes:
        return event
    event = _read_other(structured(raw, headers, media), headers, max_bytes)
    return event if isinstance(event, Event) else raw


def _read_other(
    part: bytes, headers: Mapping[str, str], max_bytes: int, number: int | None = None
) -> Event | bytes:
    """Return the event in any form, in any carrier, with the headers of the request."""
    try:
        event = read_any(part, ReadLimits(max_bytes, NO_HEADERS, MAX_LAYERS))
    except EnvelopeError:
        return part
    # A dead letter that is sent again has the headers of its first request.
    found = event if event.headers or not headers else headed(event, headers)
    return found if number is None else replace(found, _number=number)
