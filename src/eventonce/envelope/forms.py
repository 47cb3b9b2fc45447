"""The envelopes of events: how each form is recognised and read.

An envelope is a function from fields to an event, and a line in `FORMS`; `carriers` knows the
carriers around an event, and `reader` has a shortcut for the common envelope.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

import msgspec

from eventonce.envelope.jsontext import begins, check, members, string, top_level, within
from eventonce.envelope.topics import template
from eventonce.envelope.tracing import W3C
from eventonce.errors import EnvelopeError
from eventonce.types import NO_HEADERS, Event

BINARY_HEADER: Final = "ce-type"
"""The header that every CloudEvent in binary mode has: then the body is the data of one event, and
the headers are its attributes."""

Fields = Mapping[str, msgspec.Raw]
"""The fields of an object, each still JSON."""

_ATTRIBUTES: Final = ("id", "source", "type", "time")
_GUESSED: Final = frozenset(("json", "cxone"))
"""Forms that are only guessed from the fields: the data of a CloudEvent may have any fields."""


def event_of(raw: bytes, fields: Fields, headers: Mapping[str, str]) -> Event:
    """Return the event with these fields, of any form."""
    found = (form(raw, fields) for form in FORMS)
    event = next((event for event in found if event is not None), None) or _plain(raw, fields)
    return headed(event, headers) if headers else event


def structured(raw: bytes, headers: Mapping[str, str], media: str) -> bytes:
    """Return a CloudEvent as one JSON object, from attributes in headers and data that is no
    object: JSON unchanged, a text as a string, other bytes as base64, and no data if there is none.
    The SDK for Python sends any text as JSON by default."""
    from urllib.parse import unquote  # noqa: PLC0415  slow to import, and few events need it

    named = {
        name.removeprefix("ce-"): unquote(value)
        for name, value in headers.items()
        if name.startswith("ce-") and name not in _NO_ATTRIBUTES
    }
    if "content-type" in headers:
        named["datacontenttype"] = headers["content-type"]
    return msgspec.json.encode({"specversion": "1.0", **named, **_data(raw, media)})


_NO_ATTRIBUTES: Final = frozenset(("ce-data", "ce-data_base64", "ce-datacontenttype"))
"""Names that have another meaning in a CloudEvent that is one JSON object."""


def _data(raw: bytes, media: str) -> dict[str, object]:
    from base64 import b64encode  # noqa: PLC0415  slow to import, and few events need it

    if not raw:
        return {}
    called_json = not media or media.endswith(("/json", "+json"))
    if called_json:
        with suppress(EnvelopeError):
            check(raw)
            return {"data": msgspec.Raw(raw)}
    if called_json or media.startswith("text/") or media.endswith("xml"):
        # Bytes that cannot be decoded are a text in another encoding.
        with suppress(UnicodeDecodeError):
            return {"data": raw.decode()}
    return {"data_base64": b64encode(raw).decode()}


def headed(event: Event, headers: Mapping[str, str]) -> Event:
    """Return the event with the headers of its request. For a CloudEvent in binary mode they are
    its attributes, unless an envelope around its data has the same ones."""
    if BINARY_HEADER not in headers:
        return msgspec.structs.replace(event, headers=headers)
    from urllib.parse import unquote  # noqa: PLC0415  slow to import, and few events need it

    said = {name: unquote(headers.get(f"ce-{name}", "")) for name in _ATTRIBUTES}
    enveloped = event.type and event.form not in _GUESSED
    return msgspec.structs.replace(
        event,
        form="cloudevents" if event.form == "json" else event.form,
        headers=headers,
        trace=event.trace or _own_trace({name: headers.get(f"ce-{name}", "") for name in W3C}),
        **{
            name: value
            for name, value in said.items()
            if value and not (enveloped and getattr(event, name))
        },
    )


def _eventbridge(raw: bytes, fields: Fields) -> Event | None:
    if "detail" not in fields and "detail-type" not in fields:
        return None
    type_, given = string(fields.get("detail-type")), fields.get("detail")
    detail = raw if given is None else _object_in(given, "detail")
    if detail is None:
        if type_:
            raise EnvelopeError(
                "the detail is not an object, nor a string that holds one", place="detail"
            )
        return _plain(raw, fields)
    if not type_:
        known = top_level(detail)
        type_ = _topic(known) or string(known.get("type"))
    source = string(fields.get("source"))
    return Event(
        raw,
        detail,
        string(fields.get("id")),
        source,
        type_,
        string(fields.get("time")),
        string(fields.get("replay-name")),
        "eventbridge",
    )


def _cloudevent(raw: bytes, fields: Fields) -> Event | None:
    if "specversion" not in fields or "type" not in fields:
        return None
    data, detail = fields.get("data"), None
    with suppress(EnvelopeError):
        # A string that begins like an object and is not valid JSON is only a string.
        detail = data and _object_in(data, "data")
    return Event(
        raw,
        detail or raw,
        id=string(fields.get("id")),
        source=string(fields.get("source")),
        type=string(fields.get("type")),
        time=string(fields.get("time")),
        form="cloudevents",
        trace=_own_trace(fields) if W3C[0] in fields else NO_HEADERS,
    )


def _own_trace(fields: Mapping[str, object]) -> Mapping[str, str]:
    """Return the trace context of a CloudEvent, from its extension attributes."""
    said = {name: string(fields.get(name)) for name in W3C}
    return said if said["traceparent"] else NO_HEADERS


def _object_in(value: msgspec.Raw, place: str) -> bytes | msgspec.Raw | None:
    """Return the JSON of an object, also if a relay put it into a string; else None."""
    if begins(value, b"{"):
        return value
    if begins(value, b'"'):
        text = string(value).strip().encode()
        if text.startswith(b"{"):
            try:
                check(text)
            except EnvelopeError as error:
                raise within(place, error) from None
            return text
    return None


def _genesys(raw: bytes, fields: Fields) -> Event | None:
    """Recognise a Genesys notification, or only the detail, as an input transformer passes it."""
    if "topicName" not in fields:
        return None
    body = members(fields.get("eventBody"))
    return Event(
        raw,
        raw,
        type=_topic(fields),
        own_org=string(body.get("organizationId")),
        time=string(fields.get("timestamp")),
        form="genesys",
    )


def _cxone(raw: bytes, fields: Fields) -> Event | None:
    postback, payload = members(fields.get("postback")), fields.get("payload")
    id_ = string(fields.get("eventId"))
    type_ = string(fields.get("eventType")) or string(postback.get("eventType"))
    if type_ and (id_ or postback or "data" in fields):
        return Event(
            raw, raw, id=id_, type=type_, time=string(fields.get("createdAt")), form="cxone"
        )
    if payload is not None and begins(payload, b"{"):
        # Not the field `id`: it is often the id of an entity, the same in all its events.
        return Event(
            raw,
            payload,
            id=id_,
            source=string(fields.get("source")),
            type=type_ or string(fields.get("type")) or string(members(payload).get("type")),
            time=string(fields.get("timestamp")),
            form="cxone",
        )
    if string(fields.get("Type")):
        return Event(raw, raw, type=string(fields["Type"]), form="cxone")
    return None


def _plain(raw: bytes, fields: Fields) -> Event:
    """Return the event of any other object, without a transport id: its `id` may be any id."""
    return Event(
        raw,
        raw,
        source=string(fields.get("source")),
        type=string(fields.get("type")) or string(fields.get("eventType")),
        time=string(fields.get("time")) or string(fields.get("timestamp")),
    )


def _topic(fields: Fields) -> str:
    topic = string(fields.get("topicName"))
    return template(topic) if topic else ""


FORMS: Final[tuple[Callable[[bytes, Fields], Event | None], ...]] = (
    _eventbridge,
    _cloudevent,
    _genesys,
    _cxone,
)
"""The envelopes, in the order they are tried; an object without one of them is an event, too."""
