"""Whatever arrives, to events: the common envelope without a detour, carriers unwrapped first.

`jsontext` checks the bytes, `forms` knows the other envelopes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from eventonce import forms, jsontext
from eventonce.errors import EnvelopeError
from eventonce.forms import Wrapped, organisation
from eventonce.jsontext import SHALLOW
from eventonce.types import NO_HEADERS, Event

MAX_BYTES: Final = 1 << 20
"""The default limit of one event: the most that SQS and EventBridge carry."""

MAX_LAYERS: Final = 6
"""Carriers around one event: a bus, a topic and a queue are three, and a letter makes it four."""

Source = bytes | bytearray | memoryview | str | Mapping[str, Any] | Event

_BRACE: Final = ord("{")
_NOTHING: Final = msgspec.Raw(b"null")


class _Classic(msgspec.Struct, frozen=True, gc=False):
    """The EventBridge envelope, its detail left as it is."""

    id: str = ""
    type: str = msgspec.field(name="detail-type", default="")
    source: str = ""
    time: str = ""
    detail: msgspec.Raw = _NOTHING
    replay: str = msgspec.field(name="replay-name", default="")


_classic: Final = msgspec.json.Decoder(_Classic).decode


def read(
    source: Source, *, max_bytes: int = MAX_BYTES, headers: Mapping[str, str] = NO_HEADERS
) -> Event:
    """The event in these bytes, this text or this dict; EnvelopeError for anything that is none.

    `raw` of the event is what its carrier (a queue record, a topic's notice) held.
    """
    if type(source) is bytes and headers is NO_HEADERS and len(source) <= max_bytes:
        # The hot path, and once more as `_common` for what comes with headers or in a carrier.
        try:
            envelope = _classic(source)
        except (ValueError, RecursionError):
            pass
        else:
            if (
                envelope.type
                and memoryview(envelope.detail)[0] == _BRACE
                and (source.isascii() or jsontext.is_text(source))
                and (len(source) <= SHALLOW or jsontext.is_shallow(source))
            ):
                return Event(
                    source,
                    envelope.detail,
                    envelope.id,
                    envelope.source,
                    envelope.type,
                    organisation(envelope.source),
                    envelope.time,
                    envelope.replay,
                    "eventbridge",
                )
    lowered = {name.lower(): value for name, value in headers.items()} if headers else NO_HEADERS
    return _read(source, max_bytes, lowered, MAX_LAYERS)


def read_many(
    payload: Source | Sequence[Source],
    *,
    max_bytes: int = MAX_BYTES,
    headers: Mapping[str, str] = NO_HEADERS,
) -> list[Event | EnvelopeError]:
    """The events of a payload in their order, each bad one as its error.

    The payload is one event, a list of them, or a batch of queue records; `max_bytes` is each
    event's limit. The error's `place` begins with the element's.
    """
    try:
        elements = _elements(payload)
    except EnvelopeError as error:
        return [error]
    events: list[Event | EnvelopeError] = []
    for place, element in elements:
        try:
            events.append(read(element, max_bytes=max_bytes, headers=headers))
        except EnvelopeError as error:
            events.append(_within(place, error) if place else error)
    return events


def kept(event: Event) -> bytes:
    """JSON from which `read` makes the same event again, its transport id and headers too."""
    if not event.headers:
        try:
            if read(event.raw, max_bytes=len(event.raw)).id == event.id:
                return event.raw
        except EnvelopeError:
            pass
    return msgspec.json.encode(
        {
            "eventonce": 1,
            "id": event.id,
            "headers": dict(event.headers),
            "event": msgspec.Raw(event.raw),
        }
    )


def _common(raw: bytes, headers: Mapping[str, str]) -> Event | None:
    """The event in the classic envelope; None if it is another, or there is something wrong."""
    try:
        envelope = _classic(raw)
    except (ValueError, RecursionError):
        return None
    if not (
        envelope.type
        and memoryview(envelope.detail)[0] == _BRACE
        and (raw.isascii() or jsontext.is_text(raw))
        and (len(raw) <= SHALLOW or jsontext.is_shallow(raw))
    ):
        return None
    return Event(
        raw,
        envelope.detail,
        envelope.id,
        envelope.source,
        envelope.type,
        organisation(envelope.source),
        envelope.time,
        envelope.replay,
        "eventbridge",
        headers,
    )


def _read(source: Any, max_bytes: int, headers: Mapping[str, str], layers: int) -> Event:
    """The event in any form and any number of carriers."""
    if isinstance(source, Event):
        return source
    if isinstance(source, Mapping):
        wrapped = forms.unwrapped(source)
        if wrapped is not None:
            return _inside(wrapped, None, max_bytes, headers, layers)
    raw = jsontext.as_bytes(source, max_bytes)
    if len(raw) > max_bytes:
        raise jsontext.too_large(len(raw), max_bytes)
    return _common(raw, headers) or _unusual(raw, max_bytes, headers, layers)


def _unusual(raw: bytes, max_bytes: int, headers: Mapping[str, str], layers: int) -> Event:
    raw = raw.removeprefix(jsontext.BYTE_ORDER_MARK)
    jsontext.check(raw)
    start = raw.lstrip()
    if start.startswith(b'"'):
        # Relays that write their JSON as a JSON string; no other string is an event.
        text = jsontext.string(msgspec.Raw(start))
        if layers and text.lstrip().startswith("{"):
            return _read(text, max_bytes, headers, layers - 1)
    if start.startswith(b"["):
        raise EnvelopeError("a list of events, not one event")
    fields = jsontext.top_level(raw)
    wrapped = forms.unwrapped(fields)
    if wrapped is not None:
        return _inside(wrapped, raw, max_bytes, headers, layers)
    return forms.event_of(raw, fields, headers)


def _inside(
    wrapped: Wrapped, raw: bytes | None, max_bytes: int, headers: Mapping[str, str], layers: int
) -> Event:
    """The event inside a carrier, with what only the carrier knows."""
    if not layers:
        raise EnvelopeError("wrapped too many times", place=wrapped.place)
    content = wrapped.content
    if isinstance(content, msgspec.Raw):
        content = jsontext.string(content) if jsontext.begins(content, b'"') else bytes(content)
    try:
        event = _read(content, max_bytes, headers, layers - 1)
    except EnvelopeError as error:
        if wrapped.keep and raw is not None:
            # A bus carries any payload; what is no object is still an event, by what the bus says.
            event = Event(raw, raw, headers=headers)
        else:
            raise _within(wrapped.place, error) from None
    envelope_raw = None
    if wrapped.keep and raw is not None:
        envelope_raw = event.envelope_raw or event.raw
        event = msgspec.structs.replace(event, raw=raw)
    return msgspec.structs.replace(
        event,
        id=event.id or wrapped.id,
        source=event.source or wrapped.source,
        type=event.type or wrapped.type,
        org=event.org or organisation(wrapped.source),
        time=event.time or wrapped.time,
        replay=event.replay or wrapped.replay,
        headers=event.headers or wrapped.headers,
        envelope_raw=envelope_raw or event.envelope_raw,
    )


def _elements(payload: Any) -> list[tuple[str, Any]]:
    """What may be an event each, with its place in the payload."""
    if isinstance(payload, (bytes, bytearray, memoryview, str)):
        raw = jsontext.as_bytes(payload, len(payload))
        start = raw.lstrip()[:1]
        if start == b"[":
            return _listed(jsontext.items(raw), "")
        if start == b"{" and b'"Records"' in raw:
            records = forms.batch(jsontext.top_level(raw))
            return [("", raw)] if records is None else _listed(records, "Records")
        return [("", raw)]
    if isinstance(payload, Mapping):
        records = forms.batch(payload)
        return [("", payload)] if records is None else _listed(records, "Records")
    if isinstance(payload, (list, tuple)):
        return _listed(payload, "")
    return [("", payload)]


def _listed(items: Sequence[Any], name: str) -> list[tuple[str, Any]]:
    return [
        (f"{name}[{number}]", bytes(item) if isinstance(item, msgspec.Raw) else item)
        for number, item in enumerate(items)
    ]


def _within(place: str, error: EnvelopeError) -> EnvelopeError:
    """The same error, seen from outside the element it is about."""
    inner = error.place
    join = " " if inner.startswith(("byte", "character")) else "" if not inner or inner[0] == "[" else "."
    return EnvelopeError(f"{place}: {error}", place=f"{place}{join}{inner}")
