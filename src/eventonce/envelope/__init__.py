"""The envelopes and carriers of events: bytes, text or an object become an `Event`."""

from eventonce.envelope.bodies import read_body
from eventonce.envelope.jsontext import too_large
from eventonce.envelope.reader import MAX_BYTES, elements, encode, read

__all__ = ["MAX_BYTES", "elements", "encode", "read", "read_body", "too_large"]
