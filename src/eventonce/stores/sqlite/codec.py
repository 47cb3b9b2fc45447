"""Records as bytes: the body of a row, beside its key, its token and the instant it lives until.

The first byte names the form. The two frequent forms, a completed fact and a fact that is held, are
a few bytes; all others are a MessagePack list of the record's fields.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import msgspec

from eventonce.core.ledger import Record
from eventonce.errors import newer_record

DONE: Final = b"\x01"
"""A fact completed without result and digest: then its `by`."""

HELD: Final = b"\x02"
"""A fact that was granted: then attempt, nonce and `held_until`, then its `by`."""

LISTED: Final = b"\x03"
"""Anything else: then the fields of the record after its token, in their order."""

_LEASE: Final = struct.Struct(">cBqq")
_MAX_ATTEMPT: Final = 255

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final[msgspec.msgpack.Decoder[tuple[Any, ...]]] = msgspec.msgpack.Decoder(
    tuple[tuple(field.type for field in msgspec.structs.fields(Record)[1:])]  # type: ignore[misc]
)


def lives_until(record: Record) -> int:
    """Return the first instant at which the record no longer counts."""
    return max(record.expires, record.held_until)


def pack(record: Record) -> bytes:
    """Return the body of the record's row; OverflowError if a number has more than 64 bits."""
    if record.done:
        if record == Record(token=record.token, expires=record.expires, done=True, by=record.by):
            return DONE + record.by
    elif (
        record.expires >= record.held_until
        and record.attempt <= _MAX_ATTEMPT
        and record
        == Record(
            token=record.token,
            attempt=record.attempt,
            nonce=record.nonce,
            held_until=record.held_until,
            expires=record.expires,
            by=record.by,
        )
    ):
        return held(record.attempt, record.nonce, record.held_until, record.by)
    return LISTED + _encoder.encode(msgspec.structs.astuple(record)[1:])


def held(attempt: int, nonce: int, held_until: int, by: bytes) -> bytes:
    """Return the body of a fact that was granted; OverflowError like `pack`."""
    try:
        return _LEASE.pack(HELD, attempt, nonce, held_until) + by
    except struct.error as error:
        raise OverflowError(*error.args) from None


def unpack(token: int, until: int, body: bytes) -> Record:
    """Return the record of a row."""
    form = body[:1]
    if form == DONE:
        return Record(token=token, expires=until, done=True, by=body[1:])
    if form == HELD:
        _, attempt, nonce, held_until = _LEASE.unpack_from(body)
        return Record(
            token=token,
            attempt=attempt,
            nonce=nonce,
            held_until=held_until,
            expires=until,
            by=body[_LEASE.size :],
        )
    if form == LISTED:
        return Record(token, *_decoder.decode(body[1:]))
    raise newer_record(f"form {form.hex() or 'empty'}")
