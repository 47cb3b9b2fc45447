"""Arrivals: the events of a capture, each with the data of its delivery.

A line of our own form, as `simulate` writes it, has the event in `event` and the arrival beside it.
Messages of a queue and lines of a log have some of these data, and any other capture that `filter`
reads is read too.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec

from eventonce import envelope
from eventonce.envelope.captured import Line, own_line
from eventonce.envelope.reader import classic
from eventonce.errors import EnvelopeError
from eventonce.rules.instants import event_instant
from eventonce.types import NO_HEADERS, Event

LONGEST_EVENT: Final = 16 << 20
EARLIEST_INSTANT: Final = -2_208_988_800_000
LATEST_INSTANT: Final = 32_503_680_000_000
"""Milliseconds from 1900 to 3000: an instant before or after is a default or a mistake, and is
ignored."""
MOST_RECEIVES: Final = 65_535
"""Receives are counted up to this number."""
INSTANT_DIGITS: Final = 18


class _Attributes(msgspec.Struct, frozen=True, gc=False, rename="pascal"):
    """The attributes that SQS adds to a message, if the receiver asked for them."""

    sent_timestamp: str = ""
    approximate_receive_count: str = ""


class _Carried(msgspec.Struct, gc=False):
    """The fields of a queue's message or a log line, beside the event."""

    received_id: str = msgspec.field(name="MessageId", default="")
    message_id: str = msgspec.field(name="messageId", default="")
    received: _Attributes = msgspec.field(name="Attributes", default=_Attributes())
    attributes: _Attributes = _Attributes()
    queue: str = msgspec.field(name="eventSourceARN", default="")
    logged_id: str = msgspec.field(name="eventId", default="")
    timestamp: int | None = None
    logged: Any = msgspec.field(name="message", default="")


class Arrival(NamedTuple):
    """One delivery of an event."""

    event: Event | EnvelopeError
    arrived: int | None = None
    """Milliseconds; None if the capture does not have it."""
    channel: str = ""
    message: str = ""
    """The id of the message or the invocation that delivered the event."""
    receives: int = 0
    """How often the queue has delivered the message; 0 if the channel does not count."""


_carried: Final = msgspec.json.Decoder(_Carried).decode
_MARKS: Final = (b'"ReceiptHandle"', b'"receiptHandle"', b'"ingestionTime"')
"""Marks of a queue's message, and of a line of a log."""


def arrival(raw: bytes) -> Arrival:
    """Return the arrival in these bytes, which are one event or a line around it."""
    told = own_line(raw)
    if told is None:
        return _with_delivery(raw) if any(mark in raw for mark in _MARKS) else Arrival(_read(raw))
    inner = bytes(told.event)
    event = classic(inner, NO_HEADERS) if inner.startswith(b"{") else None
    # An event without an id has the id of its carrier, for which the whole line is read.
    found = event if event is not None and event.id else _read(raw)
    return _of_line(found, told)


def _of_line(event: Event | EnvelopeError, line: Line) -> Arrival:
    return _bounded(event, line.arrived, line.channel, line.id, line.receives)


def _bounded(
    event: Event | EnvelopeError, arrived: int | None, channel: str, message: str, receives: int
) -> Arrival:
    times = min(max(receives, 0), MOST_RECEIVES)
    return Arrival(event, _likely(arrived), channel, message, times)


def _likely(at: int | None) -> int | None:
    return at if at is not None and EARLIEST_INSTANT <= at < LATEST_INSTANT else None


def _with_delivery(raw: bytes) -> Arrival:
    event = _read(raw)
    try:
        told = _carried(raw)
    except ValueError:
        return Arrival(event)
    tapped = own_line(told.logged.encode()) if isinstance(told.logged, str) else None
    if tapped is not None and tapped.tells:
        return _of_line(event, tapped)
    attributes = told.received if told.received_id else told.attributes
    sent, receives = attributes.sent_timestamp, attributes.approximate_receive_count
    return _bounded(
        event,
        told.timestamp if _number(sent) is None else _number(sent),
        told.queue,
        told.received_id or told.message_id or told.logged_id,
        _number(receives) or 0,
    )


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() and len(text) <= INSTANT_DIGITS else None


def _read(raw: bytes) -> Event | EnvelopeError:
    try:
        return envelope.read(raw, max_bytes=LONGEST_EVENT)
    except EnvelopeError as error:
        return error


@lru_cache(maxsize=4096)
def instant(text: str) -> int | None:
    """Return the time of an envelope in milliseconds; None if it is no instant. Also in a spelling
    that no key has: a database writes the offset `+00`."""
    at = event_instant(text)
    if at is None:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            return None
        at = int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
    return _likely(at)
