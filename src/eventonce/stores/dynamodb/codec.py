"""Records as items: which attribute holds what, and what an item that is not ours counts as.

Fields that have their default take no room. An update writes the fields that change and leaves the
rest of the item alone, so what a next release adds is kept by this one.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from eventonce.core.ledger import Record
from eventonce.errors import StoreMismatch
from eventonce.types import MAX_ORDER

FORMAT: Final = 1
"""What this release writes; rises only when an older release could no longer work on an item."""

FORMAT_NAME: Final = "format"
STAMP: Final = "stamp"
"""A number drawn anew for every write: while it is there, the record is still what was read."""

LETTER: Final = "letter:"
PART: Final = "part:"
"""What the keys of letters, and of the further parts of large ones, begin with."""

KEY: Final = "eventHash"
EXPIRY: Final = "expiration"
"""The names in the table that the tutorials make, so that it can be used as it is."""

OWN_KEY: Final = 16
"""Bytes of the keys that rules make."""

Value = dict[str, Any]
"""An attribute's value in DynamoDB's own notation, such as `{"N": "5"}`."""
Item = dict[str, Value]


class Seen(msgspec.Struct, frozen=True):
    """A record as it was found or left in the table."""

    record: Record
    values: Item
    """The attributes that hold it."""
    guard: tuple[tuple[str, Value | None], ...]
    """What must still be so for it to be the same; None stands for an attribute that is absent."""


class Layout(msgspec.Struct, frozen=True):
    """The two attribute names that a table may have of its own."""

    key: str = KEY
    expiry: str = EXPIRY

    def values(self, record: Record) -> Item:
        """The attributes of this record, without its key and its stamp."""
        values: Item = {FORMAT_NAME: _FORMAT_VALUE}
        for field, name, pack, _ in _FIELDS:
            value = getattr(record, field)
            if value != _DEFAULTS[field]:
                values[name] = pack(value)
        # Whole seconds, rounded up: the service may drop the item then, and not before.
        values[self.expiry] = {"N": str(-(-max(record.expires, record.held_until) // 1000))}
        return values

    def seen(self, item: Item) -> Seen:
        """The record in this item."""
        if FORMAT_NAME not in item:
            return self._foreign(item)
        if int(item[FORMAT_NAME]["N"]) > FORMAT:
            raise StoreMismatch(
                f"an item has format {item[FORMAT_NAME]['N']}, made by a newer eventonce; this "
                f"release reads up to format {FORMAT}. Install the newer release here too."
            )
        record = Record(
            **{field: unpack(item[name]) for field, name, _, unpack in _FIELDS if name in item}
        )
        known = {name: value for name, value in item.items() if name in _NAMES}
        if self.expiry in item:
            known[self.expiry] = item[self.expiry]
        return Seen(record, known, ((STAMP, item.get(STAMP)),))

    def _foreign(self, item: Item) -> Seen:
        """An item that a hand-made table holds: done, until it expires or for ever."""
        expiry = item.get(self.expiry)
        expires = int(float(expiry["N"]) * 1000) if expiry and "N" in expiry else MAX_ORDER
        known = {self.expiry: expiry} if expiry else {}
        guard = ((FORMAT_NAME, None), (self.expiry, expiry))
        return Seen(Record(done=True, expires=expires), known, guard)


def new_stamp() -> Value:
    """From the system's randomness, which a fork does not repeat."""
    return {"N": str(secrets.randbits(53))}


def name_of(key: bytes) -> str:
    """The string a key is stored under; no two keys share one.

    Our own keys are written as in logs and on the command line. The hex digest that a hand-made
    table has for a key stands for itself.
    """
    if len(key) == OWN_KEY:
        return key.hex()
    if _HEX_DIGEST.fullmatch(key):
        return key.decode("ascii")
    return f"key:{key.hex()}"


_HEX_DIGEST: Final = re.compile(rb"[0-9a-f]{64}")
_FORMAT_VALUE: Final[Value] = {"N": str(FORMAT)}


def _number(value: int) -> Value:
    return {"N": str(value)}


def _truth(value: bool) -> Value:  # noqa: FBT001  the value itself
    return {"BOOL": value}


def _bytes(value: bytes) -> Value:
    return {"B": value}


def _list(value: tuple[bytes, ...]) -> Value:
    return {"L": [{"B": item} for item in value]}


def _as_number(value: Value) -> int:
    return int(value["N"])


def _as_truth(value: Value) -> bool:
    return bool(value["BOOL"])


def _as_bytes(value: Value) -> bytes:
    return bytes(value["B"])


def _as_list(value: Value) -> tuple[bytes, ...]:
    return tuple(bytes(item["B"]) for item in value["L"])


_Field = tuple[str, str, Callable[[Any], Value], Callable[[Value], Any]]

_FIELDS: Final[tuple[_Field, ...]] = (
    ("token", "token", _number, _as_number),
    ("attempt", "attempt", _number, _as_number),
    ("nonce", "nonce", _number, _as_number),
    ("held_until", "held_until_ms", _number, _as_number),
    ("expires", "expires_ms", _number, _as_number),
    ("done", "done", _truth, _as_truth),
    ("by", "by", _bytes, _as_bytes),
    ("result", "result", _bytes, _as_bytes),
    ("digests", "digests", _list, _as_list),
    ("dead", "dead", _list, _as_list),
    ("order", "order", _number, _as_number),
    ("at", "at_ms", _number, _as_number),
    ("tried", "tried", _number, _as_number),
    ("trying", "trying", _bytes, _as_bytes),
    ("dirty", "dirty", _truth, _as_truth),
    ("alone", "alone", _truth, _as_truth),
    ("spared", "spared", _number, _as_number),
)
"""The field of the record, its attribute, and how its value is written and read."""

_NAMES: Final = frozenset([FORMAT_NAME, *(name for _, name, _, _ in _FIELDS)])
_DEFAULTS: Final[Mapping[str, Any]] = {
    field.name: field.default for field in msgspec.structs.fields(Record)
}

OURS: Final = _NAMES | {STAMP, "shelf", "shelved", "consumer", "letter", "parts"}
"""Names that a table's own key and expiry attribute cannot have."""
