"""The envelopes events come in besides the classic one: which it is, and what it says."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import msgspec

from eventonce.envelope import carriers
from eventonce.envelope.carriers import Fields
from eventonce.envelope.jsontext import begins, check, items, string, top_level, within
from eventonce.envelope.topics import template
from eventonce.errors import EnvelopeError
from eventonce.types import NO_HEADERS, Event

BINARY: Final = "ce-type"
"""The header that every CloudEvent in binary mode has: the body is the data of one event then, and
its attributes are headers."""

_ATTRIBUTES: Final = ("id", "source", "type", "time")
_GUESSED: Final = frozenset(("json", "cxone"))
"""Forms that a body has by its look: the data of a CloudEvent may look like anything."""


class Wrapped(msgspec.Struct, frozen=True):
    """An event inside something that carries it, and what the carrier knows of it."""

    content: Any
    place: str
    id: str = ""
    source: str = ""
    type: str = ""
    time: str = ""
    replay: str = ""
    headers: Mapping[str, str] = NO_HEADERS
    part: str = ""
    keep: bool = False
    """Whether the carrier says something about the event that must not be lost with it."""


def unwrapped(fields: Fields) -> Wrapped | None:
    """The event inside, if these are the fields of a carrier."""
    source = carriers.unread(fields)
    if source:
        raise EnvelopeError(carriers.refusal(source))
    if any(mark in fields for mark in BATCHES):
        found = batch(fields)
        if found is not None:
            name, records = found
            if len(records) == 1:
                return Wrapped(records[0], f"{name}[0]")
            reason = f"a batch of {len(records)} {name.lower()}, not one event"
            raise EnvelopeError(reason, place=name)
        if "Records" in fields:
            return None
    for name, id_names in (("body", ("messageId",)), ("Body", ("MessageId",))):
        if name in fields and any(mark in fields for mark in (*id_names, *_QUEUE_MARKS)):
            return Wrapped(fields[name], name, id=string(fields.get(id_names[0])))
    if "Sns" in fields:
        notice = fields["Sns"]
        inner = notice if isinstance(notice, Mapping) else _object(notice)
        if "Message" in inner:
            return Wrapped(inner["Message"], "Sns.Message", id=string(inner.get("MessageId")))
    if "Message" in fields and string(fields.get("Type")) == "Notification":
        return Wrapped(fields["Message"], "Message", id=string(fields.get("MessageId")))
    if "Data" in fields and ("SystemMetadata" in fields or "Metadata" in fields):
        return _from_bus(fields)
    if "eventonce" in fields and ("event" in fields or "event_base64" in fields):
        headers = _object(fields.get("headers"))
        coded = "event" not in fields
        return Wrapped(
            _decoded(fields["event_base64"]) if coded else fields["event"],
            "event_base64" if coded else "event",
            id=string(fields.get("id")),
            headers={name: string(value) for name, value in headers.items()},
            part=string(fields.get("part")),
        )
    return None


BATCHES: Final = ("Records", "Messages", "awslogs", "logEvents", "deliveryStreamArn")
"""The fields by which a batch may be known; `batch` looks closer."""

_QUEUE_MARKS: Final = ("receiptHandle", "ReceiptHandle", "eventSourceARN")


def batch(fields: Fields) -> tuple[str, list[Any]] | None:
    """A batch of queue or topic messages, with the name it has; None if these are no such fields.

    Lambda calls them `Records`, and `aws sqs receive-message` prints them as `Messages`; CloudWatch
    Logs and Firehose pack theirs.
    """
    records = _list(fields.get("Records"))
    # S3 calls its notifications Records too; those are one event together.
    if records is not None and not any("s3" in _object(record) for record in records):
        return "Records", records
    messages = _list(fields.get("Messages"))
    # Anything may call something messages: these are a queue's.
    if messages and all(_is_message(_object(message)) for message in messages):
        return "Messages", messages
    return carriers.carried(fields)


def _list(value: Any) -> list[Any] | None:
    if isinstance(value, msgspec.Raw):
        value = items(value) if begins(value, b"[") else None
    return list(value) if isinstance(value, (list, tuple)) else None


def _is_message(fields: Fields) -> bool:
    return "Body" in fields and "ReceiptHandle" in fields


def _from_bus(fields: Fields) -> Wrapped | None:
    """The Custom Event Bus: the payload in `Data`, and what the bus says of it beside."""
    if not isinstance(fields["Data"], msgspec.Raw):
        return None
    said = _object(fields.get("Metadata")) | _object(fields.get("SystemMetadata"))
    return Wrapped(
        fields["Data"],
        "Data",
        id=string(said.get("aws:EventId")),
        source=string(said.get("aws:Source")),
        type=string(said.get("aws:DetailType")),
        time=string(said.get("aws:IngestionTime")),
        # A bus that replays gives it no name.
        replay="REPLAY" if string(said.get("aws:DeliveryType")) == "REPLAY" else "",
        keep=True,
    )


def event_of(raw: bytes, fields: dict[str, msgspec.Raw], headers: Mapping[str, str]) -> Event:
    """The event these fields are, in whatever form it is."""
    if "detail" in fields or "detail-type" in fields:
        event = _eventbridge(raw, fields)
    elif "specversion" in fields and "type" in fields:
        event = _cloudevent(raw, fields)
    elif "topicName" in fields:
        event = _notification(raw, fields)
    else:
        event = _cxone(raw, fields) or _plain(raw, fields)
    return headed(event, headers) if headers else event


def structured(raw: bytes, headers: Mapping[str, str], media: str) -> bytes:
    """A CloudEvent whole, from attributes in headers and data that is no object: JSON as it is, a
    text as a string, other bytes as base64, and nothing where there is none. The SDK for Python
    calls any text JSON, unless it is told otherwise."""
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
"""Names that mean something else in a CloudEvent that is whole."""


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
        # What cannot be decoded is a text in another encoding.
        with suppress(UnicodeDecodeError):
            return {"data": raw.decode()}
    return {"data_base64": b64encode(raw).decode()}


def _decoded(value: object) -> bytes:
    from base64 import b64decode  # noqa: PLC0415  slow to import, and few events need it

    try:
        return b64decode(string(value), validate=True)
    except ValueError:
        raise EnvelopeError("this is no base64", place="event_base64") from None


def headed(event: Event, headers: Mapping[str, str]) -> Event:
    """The event with the headers it came with: of a CloudEvent in binary mode they say what it is,
    as far as an envelope around its data does not say that already."""
    if BINARY not in headers:
        return msgspec.structs.replace(event, headers=headers)
    from urllib.parse import unquote  # noqa: PLC0415  slow to import, and few events need it

    said = {name: unquote(headers.get(f"ce-{name}", "")) for name in _ATTRIBUTES}
    enveloped = event.type and event.form not in _GUESSED
    return msgspec.structs.replace(
        event,
        form="cloudevents" if event.form == "json" else event.form,
        headers=headers,
        **{
            name: value
            for name, value in said.items()
            if value and not (enveloped and getattr(event, name))
        },
    )


def _eventbridge(raw: bytes, fields: dict[str, msgspec.Raw]) -> Event:
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


def _cloudevent(raw: bytes, fields: dict[str, msgspec.Raw]) -> Event:
    data, detail = fields.get("data"), None
    with suppress(EnvelopeError):
        # A text that begins like an object and is none is a text.
        detail = data and _object_in(data, "data")
    return Event(
        raw,
        detail or raw,
        id=string(fields.get("id")),
        source=string(fields.get("source")),
        type=string(fields.get("type")),
        time=string(fields.get("time")),
        form="cloudevents",
    )


def _object_in(value: msgspec.Raw, place: str) -> bytes | msgspec.Raw | None:
    """The JSON of an object, also where a relay put it into a string; None for anything else."""
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


def _notification(raw: bytes, fields: dict[str, msgspec.Raw]) -> Event:
    """A Genesys notification, or the detail alone that an input transformer kept."""
    body = _object(fields.get("eventBody"))
    return Event(
        raw,
        raw,
        type=_topic(fields),
        own_org=string(body.get("organizationId")),
        time=string(fields.get("timestamp")),
        form="genesys",
    )


def _cxone(raw: bytes, fields: dict[str, msgspec.Raw]) -> Event | None:
    postback, payload = _object(fields.get("postback")), fields.get("payload")
    id_ = string(fields.get("eventId"))
    type_ = string(fields.get("eventType")) or string(postback.get("eventType"))
    if type_ and (id_ or postback or "data" in fields):
        return Event(
            raw, raw, id=id_, type=type_, time=string(fields.get("createdAt")), form="cxone"
        )
    if payload is not None and begins(payload, b"{"):
        return Event(
            raw,
            payload,
            id=id_ or string(fields.get("id")),
            source=string(fields.get("source")),
            type=type_ or string(fields.get("type")) or string(_object(payload).get("type")),
            time=string(fields.get("timestamp")),
            form="cxone",
        )
    if string(fields.get("Type")):
        return Event(raw, raw, type=string(fields["Type"]), form="cxone")
    return None


def _plain(raw: bytes, fields: dict[str, msgspec.Raw]) -> Event:
    """Any other object: what it calls `id` may be anything's id, so it has no transport id."""
    return Event(
        raw,
        raw,
        source=string(fields.get("source")),
        type=string(fields.get("type")) or string(fields.get("eventType")),
        time=string(fields.get("time")) or string(fields.get("timestamp")),
    )


def _topic(fields: Mapping[str, msgspec.Raw]) -> str:
    topic = string(fields.get("topicName"))
    return template(topic) if topic else ""


def _object(raw: object) -> dict[str, Any]:
    """The fields of an object, none of anything else."""
    if isinstance(raw, Mapping):
        return dict(raw)
    if isinstance(raw, (bytes, msgspec.Raw)) and begins(raw, b"{"):
        return top_level(raw)
    return {}
