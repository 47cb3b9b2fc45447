"""Example events of a capture, read again by their line numbers."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, NamedTuple

from eventonce.sources.files import Capture
from eventonce.study import fields
from eventonce.study.arrivals import Arrival, arrival
from eventonce.study.index import Index, lines_at
from eventonce.types import Event


class Example(NamedTuple):
    """A line, and the line that it is a copy of, or was taken for."""

    why: str
    line: int
    beside: int


def of_causes(index: Index) -> list[Example]:
    """Return a copy of each cause, the most frequent cause first; preferably a copy whose content
    was changed, because it shows more."""
    rows = index.rows(
        """
        SELECT cause, arg_min(c.line, (e.content = b.content, c.line)),
               arg_min(c.beside, (e.content = b.content, c.line))
        FROM copies c JOIN events e USING (line) JOIN events b ON b.line = c.beside
        GROUP BY cause ORDER BY count(*) DESC, cause
        """
    )
    return [Example(*row) for row in rows]


def read(capture: Capture, wanted: set[int]) -> dict[int, dict[str, Any]]:
    """Return the fields of these lines, by line."""
    return {line: told(arrival(raw)) for line, raw in lines_at(capture, iter(sorted(wanted)))}


def told(here: Arrival) -> dict[str, Any]:
    """Return the fields of a line's delivery, its envelope and its detail, each under its path."""
    event = here.event
    delivery = {
        "arrived": here.arrived and _iso(here.arrived),
        "channel": here.channel,
        "message": here.message,
        "receives": here.receives,
    }
    said = {name: value for name, value in delivery.items() if value}
    if not isinstance(event, Event):
        return {**said, "error": str(event)}
    envelope = {"id": event.id, "source": event.source, "type": event.type, "time": event.time}
    return {
        **said,
        **{name: value for name, value in envelope.items() if value},
        **fields.leaves_of(bytes(event.detail_raw)),
    }


def _iso(milliseconds: int) -> str:
    try:
        told = datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(milliseconds)
    return told.isoformat(timespec="milliseconds").replace("+00:00", "Z")
