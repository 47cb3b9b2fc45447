"""From whatever arrives to an `Event`."""

from eventonce.envelope.reader import MAX_BYTES, Source, kept, read, read_many

__all__ = ["MAX_BYTES", "Source", "kept", "read", "read_many"]
