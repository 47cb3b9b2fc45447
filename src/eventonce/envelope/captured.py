"""The line of a capture: an event as it came, with the time and the way of its arrival.

`capture` and the taps write such lines, and every command that reads events reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from eventonce.envelope import jsontext
from eventonce.envelope.reader import NoEvent, encode
from eventonce.types import Event

OWN_LINE: Final = b'{"eventonce":'
"""The beginning of a line that eventonce wrote."""
_MARK: Final = b'"eventonce"'
"""A mark in lines that another tool has rewritten, with spaces or with the fields in another
order."""
_BEFORE: Final = b"\xef\xbb\xbf \t\r\n"

_NO_EVENT: Final = msgspec.Raw(b"")
_LINE_BREAKS: Final = bytes.maketrans(b"\r\n", b"  ")


class Line(msgspec.Struct, gc=False, omit_defaults=True):
    """A line of a capture."""

    eventonce: int = 0
    id: str = ""
    """The id of the message that brought the event, or of the invocation."""
    arrived: int | None = None
    """The arrival in milliseconds; None if it is not known."""
    channel: str = ""
    receives: int = 0
    """The number of deliveries of the message by its queue; 0 if the channel does not count."""
    event: msgspec.Raw = _NO_EVENT
    event_base64: str = ""
    """Bytes that are no text, in place of the event."""

    @property
    def tells(self) -> bool:
        """Whether the line is that of an arrival: the line of a dead letter has the same form, but
        no arrival."""
        return self.arrived is not None or bool(self.channel)


class Arrived(NamedTuple):
    """An event at its arrival, before it is read: it may be invalid."""

    body: Event | bytes | str | Mapping[str, Any]
    channel: str
    id: str = ""
    arrived: int | None = None
    receives: int = 0


Tap = Callable[[Sequence[Arrived]], None]
"""Takes events as they arrive, before they are processed. A tap neither waits nor raises."""

_decode: Final = msgspec.json.Decoder(Line).decode
_encode: Final = msgspec.json.Encoder().encode


def own_line(raw: bytes) -> Line | None:
    """Return the line in these bytes; None if they have another form."""
    if not raw.startswith(OWN_LINE) and _MARK not in raw:
        return None
    try:
        line = _decode(raw.lstrip(_BEFORE))
    except ValueError:
        return None
    return line if line.eventonce == 1 else None


def written_line(raw: bytes) -> bytes | None:
    """Return the bytes of a line of an arrival, on one line; None for any other bytes."""
    line = own_line(raw)
    if line is None or not line.tells:
        return None
    if raw.startswith(OWN_LINE) and b"\n" not in raw and b"\r" not in raw:
        return raw
    if bytes(line.event):
        line.event = msgspec.Raw(bytes(line.event).translate(_LINE_BREAKS))
    return _encode(line)


def line_of(arrived: Arrived) -> bytes:
    """Return the line, without its newline; a body that is no JSON object is kept as a text."""
    body = bytes_of(arrived.body)
    line = Line(1, arrived.id, arrived.arrived, arrived.channel, arrived.receives)
    if jsontext.is_object(body):
        # A JSON string cannot contain a raw line break, so these are between the values.
        line.event = msgspec.Raw(body.translate(_LINE_BREAKS))
    elif jsontext.is_text(body):
        line.event = msgspec.Raw(_encode(body.decode()))
    else:
        from base64 import b64encode  # noqa: PLC0415  slow to import, and few bodies are no text

        line.event_base64 = b64encode(body).decode()
    return _encode(line)


def bytes_of(body: Event | bytes | str | Mapping[str, Any]) -> bytes:
    """Return the bytes that are kept of a body."""
    if isinstance(body, Event):
        return encode(body)
    if isinstance(body, NoEvent):
        return body.with_headers
    if isinstance(body, str):
        return body.encode("utf-8", "surrogatepass")
    return body if isinstance(body, bytes) else _encode(body)
