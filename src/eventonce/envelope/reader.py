"""The reader: makes events of bytes, text or objects, with a shortcut for the common envelope;
carriers are taken off first.

`jsontext` checks the bytes, `carriers` knows the carriers of an event, `forms` the envelopes.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from struct import Struct
from typing import Any, Final, NamedTuple

import msgspec

from eventonce.envelope import carriers, forms, jsontext
from eventonce.envelope.carriers import Fields, Wrapped
from eventonce.envelope.jsontext import SHALLOW_BYTES, within
from eventonce.errors import EnvelopeError
from eventonce.types import NO_HEADERS, Event, organisation

MAX_BYTES: Final = 1 << 20
"""The default limit of one event: the most that SQS and EventBridge carry."""

MAX_LAYERS: Final = 6
"""The most carriers around one event: a bus, a topic, a queue and a dead letter are four."""

EventLike = bytes | bytearray | memoryview | str | Mapping[str, Any] | Event

_first: Final = Struct("c").unpack_from
_BRACE: Final = (b"{",)
_NO_DETAIL: Final = msgspec.Raw(b"null")


class _Classic(msgspec.Struct, frozen=True, gc=False):
    """The EventBridge envelope, with its detail still JSON."""

    id: str = ""
    type: str = msgspec.field(name="detail-type", default="")
    source: str = ""
    time: str = ""
    detail: msgspec.Raw = _NO_DETAIL
    replay: str = msgspec.field(name="replay-name", default="")


_classic: Final = msgspec.json.Decoder(_Classic).decode


def read(
    source: EventLike,
    max_bytes: int = MAX_BYTES,
    headers: Mapping[str, str] = NO_HEADERS,
    layers: int = MAX_LAYERS,
) -> Event:
    """Return the event in these bytes, this text or this dict; EnvelopeError if there is none.

    Up to `layers` carriers (queue records, notices of a topic) are taken off first; the `raw` of
    the event is the content of the innermost carrier.
    """
    if headers is not NO_HEADERS:
        headers = {name.lower(): value for name, value in headers.items()}
    if type(source) is bytes and len(source) <= max_bytes:
        event = classic(source, headers)
        if event is not None:
            return event
    return read_any(source, ReadLimits(max_bytes, headers, layers))


def classic(source: bytes, headers: Mapping[str, str], number: int | None = None) -> Event | None:
    """Return the event if it has EventBridge's own envelope, as most have: this is the quickest
    way. `number` is for one of several events of a request."""
    try:
        envelope = _classic(source)
        if (
            envelope.type
            and _first(envelope.detail) == _BRACE
            and (source.isascii() or jsontext.is_text(source))
            and (len(source) <= SHALLOW_BYTES or jsontext.is_shallow(source))
        ):
            return Event(
                source,
                envelope.detail,
                envelope.id,
                envelope.source,
                envelope.type,
                envelope.time,
                envelope.replay,
                "eventbridge",
                headers,
                number,
            )
    except (ValueError, RecursionError):
        # Another envelope, or invalid: `read_any` decides, more slowly.
        pass
    return None


def elements(payload: Any) -> list[Any]:
    """Return the elements of a payload, each of which may be an event, in order and not yet read:
    an invalid element affects no other.

    The only element is the payload itself if it cannot be split.
    """
    try:
        return _split(payload)
    except EnvelopeError:
        return [payload]


def encode(event: Event) -> bytes:
    """Return JSON of which `read` makes the same event, with transport id, headers and part."""
    if not event.headers and not event.part:
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
            **({"part": event.part} if event.part else {}),
            "event": msgspec.Raw(event.raw),
        }
    )


class NoEvent(bytes):
    """Bytes that are no event, as they came."""

    with_headers: bytes
    """The same bytes with the headers of their request, as a dead letter keeps them."""


def refused(raw: bytes, headers: Mapping[str, str], number: int = 0) -> bytes:
    """Return invalid bytes with the headers of their request: two requests are two dead letters,
    and a corrected event gets its key. The number tells equal bytes of one request apart."""
    if not number and all(name == "content-type" for name in headers):
        return raw
    carrier: dict[str, object] = {"eventonce": 1, "headers": dict(headers)}
    if number:
        carrier["part"] = Event(raw, raw, _number=number).part
    try:
        carrier["event"] = raw.decode()
    except UnicodeDecodeError:
        from base64 import b64encode  # noqa: PLC0415  slow to import, and few bytes are no text

        carrier["event_base64"] = b64encode(raw).decode()
    found = NoEvent(raw)
    found.with_headers = msgspec.json.encode(carrier)
    return found


class ReadLimits(NamedTuple):
    """The arguments of `read` that are passed from carrier to carrier."""

    max_bytes: int
    headers: Mapping[str, str]
    layers: int


def read_any(source: Any, limits: ReadLimits) -> Event:
    """Return the event in any form, in any carrier."""
    if isinstance(source, Event):
        return source
    if isinstance(source, Mapping):
        wrapped = carriers.unwrapped(source)
        if wrapped is not None:
            return _inside(wrapped, None, limits)
    raw = jsontext.as_bytes(source, limits.max_bytes)
    if len(raw) > limits.max_bytes:
        raise jsontext.too_large(len(raw), limits.max_bytes)
    if type(source) is not bytes:
        return read(raw, **limits._asdict())
    raw = raw.removeprefix(jsontext.BYTE_ORDER_MARK)
    jsontext.check(raw)
    start = raw.lstrip()
    if start.startswith(b'"'):
        # Some relays write their JSON as a JSON string; no other string is an event.
        text = jsontext.string(msgspec.Raw(start))
        if text.lstrip().startswith("{"):
            return _inside(Wrapped(text, ""), None, limits)
    if start.startswith(b"["):
        place = f"byte {len(raw) - len(start)}"
        raise EnvelopeError("a list of events, not one event", place=place)
    fields = jsontext.top_level(raw)
    wrapped = carriers.unwrapped(fields)
    if wrapped is not None:
        return _inside(wrapped, raw, limits)
    return forms.event_of(raw, fields, limits.headers)


def _inside(wrapped: Wrapped, carrier: bytes | None, limits: ReadLimits) -> Event:
    """Return the event inside a carrier, with the fields that only the carrier has."""
    if not limits.layers:
        raise EnvelopeError("wrapped too many times", place=wrapped.place)
    content = wrapped.content
    if isinstance(content, msgspec.Raw):
        content = jsontext.string(content) if jsontext.begins(content, b'"') else bytes(content)
    if wrapped.keep and carrier is not None and content.lstrip()[:1] not in ("{", b"{"):
        # A bus carries any payload: if it is no object, the fields of the bus make the event.
        event = Event(carrier, carrier, headers=limits.headers)
    else:
        try:
            event = read(content, **limits._replace(layers=limits.layers - 1)._asdict())
        except EnvelopeError as error:
            raise within(wrapped.place, error) from None
    # A blank id does not count; the id inside an event of `cxone` may be that of an entity.
    own = "" if event.form == "cxone" else event.id.strip()
    if not wrapped.keep:
        if (own or not wrapped.id) and not wrapped.headers:
            # The event is new, so changing it is safe.
            if wrapped.channel:
                msgspec.structs.force_setattr(event, "channel", wrapped.channel)
            if wrapped.receives:
                msgspec.structs.force_setattr(event, "receives", wrapped.receives)
            if wrapped.trace and not event.trace:
                msgspec.structs.force_setattr(event, "trace", wrapped.trace)
            return event
        carrier = None
    found = msgspec.structs.replace(
        event,
        raw=carrier or event.raw,
        envelope_raw=event.envelope_raw or (event.raw if carrier else None),
        id=event.id if own else wrapped.id or event.id,
        source=event.source or wrapped.source,
        type=event.type or wrapped.type,
        own_org=event.org or organisation(wrapped.source),
        time=event.time or wrapped.time,
        replay=event.replay or wrapped.replay,
        channel=wrapped.channel or event.channel,
        receives=wrapped.receives or event.receives,
        trace=event.trace or wrapped.trace,
        _part=event.part or wrapped.part,
    )
    headers = event.headers or wrapped.headers
    return forms.headed(found, headers) if headers else found


def _split(payload: Any) -> list[Any]:
    if isinstance(payload, (bytes, bytearray, memoryview, str)):
        raw = jsontext.as_bytes(payload, sys.maxsize)
        start = raw.lstrip()[:1]
        if start == b"[":
            return [bytes(item) for item in jsontext.items(raw)]
        fields = jsontext.fields_or_none(raw) if start == b"{" else None
        return _batched(fields, raw) if fields is not None else [raw]
    if isinstance(payload, Mapping):
        return _batched(payload, payload)
    return list(payload) if isinstance(payload, (list, tuple)) else [payload]


def _batched(fields: Fields, payload: Any) -> list[Any]:
    found = carriers.batch(fields)
    if found is None:
        return [payload]
    return [bytes(it) if isinstance(it, msgspec.Raw) else it for it in found[1]]
