"""The line of a capture: an event as it came, and beside it when and how it arrived.

`capture` and the taps write it, and every command that reads events reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from eventonce.envelope import jsontext
from eventonce.envelope.reader import NoEvent, kept
from eventonce.errors import EnvelopeError
from eventonce.types import Event

OWN: Final = b'{"eventonce":'
"""The beginning of a line that eventonce wrote."""
_MARK: Final = b'"eventonce"'
"""A mark in lines that another tool wrote anew: with spaces, or with their fields in another
order."""
_BEFORE: Final = b"\xef\xbb\xbf \t\r\n"

_NOTHING: Final = msgspec.Raw(b"")
_LINE_BREAKS: Final = bytes.maketrans(b"\r\n", b"  ")


class Line(msgspec.Struct, gc=False, omit_defaults=True):
    """A line of a capture."""

    eventonce: int = 0
    id: str = ""
    """The id of the message that brought the event, or of the invocation."""
    arrived: int | None = None
    """In milliseconds; None where nobody knows."""
    channel: str = ""
    receives: int = 0
    """How often the queue had delivered the message; 0 where the channel does not count."""
    event: msgspec.Raw = _NOTHING
    event_base64: str = ""
    """Instead of the event: bytes that are no text."""

    @property
    def tells(self) -> bool:
        """Whether the line tells of an arrival: the line of a dead letter has the same form, and
        does not."""
        return self.arrived is not None or bool(self.channel)


class Arrived(NamedTuple):
    """An event at its arrival: nobody has read it yet, and it may be none."""

    body: Event | bytes | str | Mapping[str, Any]
    channel: str
    id: str = ""
    arrived: int | None = None
    receives: int = 0


Tap = Callable[[Sequence[Arrived]], None]
"""Told of events as they arrive, before anything is done with them. It neither waits nor raises."""

_decode: Final = msgspec.json.Decoder(Line).decode
_encode: Final = msgspec.json.Encoder().encode


def own_line(raw: bytes) -> Line | None:
    """The line, if this has the form of one."""
    if not raw.startswith(OWN) and _MARK not in raw:
        return None
    try:
        line = _decode(raw.lstrip(_BEFORE))
    except ValueError:
        return None
    return line if line.eventonce == 1 else None


def written_line(raw: bytes) -> bytes | None:
    """The bytes of a line that tells of an arrival, on one line; None for anything else."""
    line = own_line(raw)
    if line is None or not line.tells:
        return None
    if raw.startswith(OWN) and b"\n" not in raw and b"\r" not in raw:
        return raw
    line.event = msgspec.Raw(bytes(line.event).translate(_LINE_BREAKS))
    return _encode(line)


def line_of(arrived: Arrived) -> bytes:
    """The line, without its newline; a body that is no JSON object is kept as a text."""
    body = bytes_of(arrived.body)
    line = Line(1, arrived.id, arrived.arrived, arrived.channel, arrived.receives)
    if _is_object(body):
        # No string of JSON holds a line break as it is: these stand between its parts.
        line.event = msgspec.Raw(body.translate(_LINE_BREAKS))
    elif jsontext.is_text(body):
        line.event = msgspec.Raw(_encode(body.decode()))
    else:
        from base64 import b64encode  # noqa: PLC0415  slow to import, and few bodies are no text

        line.event_base64 = b64encode(body).decode()
    return _encode(line)


def bytes_of(body: Event | bytes | str | Mapping[str, Any]) -> bytes:
    """The bytes that are kept of a body."""
    if isinstance(body, Event):
        return kept(body)
    if isinstance(body, NoEvent):
        return body.kept
    if isinstance(body, str):
        return body.encode("utf-8", "surrogatepass")
    return body if isinstance(body, bytes) else _encode(body)


def _is_object(body: bytes) -> bool:
    try:
        jsontext.check(body)
    except EnvelopeError:
        return False
    return body.lstrip().startswith(b"{")
