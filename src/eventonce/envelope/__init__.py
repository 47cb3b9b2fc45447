"""From whatever arrives to an `Event`."""

from eventonce.envelope.bodies import read_body
from eventonce.envelope.jsontext import too_large
from eventonce.envelope.reader import MAX_BYTES, EventLike, kept, parts, read, read_many

__all__ = ["MAX_BYTES", "EventLike", "kept", "parts", "read", "read_body", "read_many", "too_large"]
