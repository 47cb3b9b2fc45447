"""Records as items, and writes as statements: the attributes of a record, and the meaning of an
item that eventonce did not write.

A field with its default is not written. An update writes only the fields that change, and so keeps
the attributes that a later release adds.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

import msgspec

from eventonce.core.ledger import Record
from eventonce.errors import newer_record
from eventonce.types import MAX_ORDER

FORMAT: Final = 1
"""The format that this release writes; rises only if older releases could not work on an item."""

FORMAT_NAME: Final = "format"
STAMP: Final = "stamp"
"""A random number, new for every write: while it is the same, the record is unchanged."""

LETTER_PREFIX: Final = "letter:"
PART_PREFIX: Final = "part:"
"""The prefixes of the keys of dead letters, and of the further parts of large ones."""

NAMES_KEY: Final = "names"
"""The key of the item that has the names of the consumers as the digests of a record."""

KEY: Final = "eventHash"
EXPIRY: Final = "expiration"
"""The attribute names of the AWS tutorials, so that a table made after them can be used."""

KEY_BYTES: Final = 16
"""The bytes of a key that a rule makes."""

Value = dict[str, Any]
"""An attribute's value in DynamoDB's own notation, such as `{"N": "5"}`."""
Item = dict[str, Value]


class Seen(msgspec.Struct, frozen=True):
    """A record as it was found or left in the table."""

    record: Record
    values: Item
    """The attributes of the record."""
    guard: tuple[tuple[str, Value | None], ...]
    """The attributes that must be unchanged for a write; None stands for an absent attribute."""


class Layout(msgspec.Struct, frozen=True):
    """The two attribute names that can be chosen for a table."""

    key: str = KEY
    expiry: str = EXPIRY

    def values(self, record: Record) -> Item:
        """Return the attributes of this record, without its key and its stamp."""
        values: Item = {FORMAT_NAME: _FORMAT_VALUE}
        for field, name, kind in _FIELDS:
            value = getattr(record, field)
            if value != _DEFAULTS[field]:
                values[name] = {kind: _TYPES[kind][0](value)}
        # Whole seconds, rounded up: the service must not delete the item earlier.
        values[self.expiry] = {"N": str(-(-max(record.expires, record.held_until) // 1000))}
        return values

    def seen(self, item: Item) -> Seen:
        """Return the record in this item."""
        if FORMAT_NAME not in item:
            return self._foreign(item)
        if int(item[FORMAT_NAME]["N"]) > FORMAT:
            raise newer_record(f"format {item[FORMAT_NAME]['N']}")
        record = Record(
            **{
                field: _TYPES[kind][1](item[name][kind])
                for field, name, kind in _FIELDS
                if name in item
            }
        )
        known = {name: value for name, value in item.items() if name in _OWN_NAMES}
        if self.expiry in item:
            known[self.expiry] = item[self.expiry]
        return Seen(record, known, ((STAMP, item.get(STAMP)),))

    def _foreign(self, item: Item) -> Seen:
        """Return the record of an item of a hand-made table: done, until it expires or for ever."""
        expiry = item.get(self.expiry)
        expires = int(float(expiry["N"]) * 1000) if expiry and "N" in expiry else MAX_ORDER
        known = {self.expiry: expiry} if expiry else {}
        guard = ((FORMAT_NAME, None), (self.expiry, expiry))
        return Seen(Record(done=True, expires=expires), known, guard)


def new_stamp() -> Value:
    """Return a new stamp, from the system's randomness, which a fork does not repeat."""
    return {"N": str(secrets.randbits(53))}


def name_of(key: bytes) -> str:
    """Return the string under which a key is stored; no two keys share one.

    Keys of eventonce are written as in logs and on the command line. A hex digest, the key in a
    hand-made table, is used as it is.
    """
    if len(key) == KEY_BYTES:
        return key.hex()
    if _HEX_DIGEST.fullmatch(key):
        return key.decode("ascii")
    return f"key:{key.hex()}"


_HEX_DIGEST: Final = re.compile(rb"[0-9a-f]{64}")
_FORMAT_VALUE: Final[Value] = {"N": str(FORMAT)}


_TYPES: Final[Mapping[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]]] = {
    "N": (str, int),
    "BOOL": (bool, bool),
    "B": (bytes, bytes),
    "L": (
        lambda values: [{"B": value} for value in values],
        lambda values: tuple(bytes(value["B"]) for value in values),
    ),
}
"""The functions that write and read a value of each type of DynamoDB."""

_FIELDS: Final = (
    ("token", "token", "N"),
    ("attempt", "attempt", "N"),
    ("nonce", "nonce", "N"),
    ("held_until", "held_until_ms", "N"),
    ("expires", "expires_ms", "N"),
    ("done", "done", "BOOL"),
    ("by", "by", "B"),
    ("result", "result", "B"),
    ("digests", "digests", "L"),
    ("dead", "dead", "L"),
    ("order", "order", "N"),
    ("at", "at_ms", "N"),
    ("tried", "tried", "N"),
    ("trying", "trying", "B"),
    ("dirty", "dirty", "BOOL"),
    ("alone", "alone", "BOOL"),
    ("spared", "spared", "N"),
)
"""The field of the record, its attribute, and the type of the attribute."""

_OWN_NAMES: Final = frozenset([FORMAT_NAME, *(name for _, name, _ in _FIELDS)])
_DEFAULTS: Final[Mapping[str, Any]] = {
    field.name: field.default for field in msgspec.structs.fields(Record)
}

OWN_ATTRIBUTES: Final = _OWN_NAMES | {
    STAMP,
    "letter_group",
    "letter_order",
    "consumer",
    "letter",
    "parts",
}
"""Names that the key and the expiry attribute of a table must not have."""


class Insert(msgspec.Struct, frozen=True):
    """Write this item, if no item has its key."""

    item: Item


class Update(msgspec.Struct, frozen=True):
    """Change these attributes of an item, if it matches the guard."""

    key: str
    put: Item
    remove: tuple[str, ...]
    guard: tuple[tuple[str, Value | None], ...]


class Delete(msgspec.Struct, frozen=True):
    """Delete this item and return it; with `below` (attribute, text), only if the attribute of the
    item is less than the text."""

    key: str
    below: tuple[str, str] | None = None


Write = Insert | Update | Delete


def statement(write: Write, table: str, layout: Layout) -> dict[str, Any]:
    """Return the write as one statement of a BatchExecuteStatement."""
    match write:
        case Insert(item):
            return {
                "Statement": _insert(table, tuple(item)),
                "Parameters": list(item.values()),
                "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
            }
        case Update(name, put, remove, guard):
            absent = tuple((attribute, value is None) for attribute, value in guard)
            return {
                "Statement": _update(table, layout.key, tuple(put), remove, absent),
                "Parameters": [
                    *put.values(),
                    {"S": name},
                    *(value for _, value in guard if value is not None),
                ],
                "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
            }
        case Delete(name, below):
            attribute, *bound = below or ("",)
            return {
                "Statement": _delete(table, layout.key, attribute),
                "Parameters": [{"S": name}, *({"S": text} for text in bound)],
            }


# Names are part of these texts: the table's and the layout's were checked by `uri`, the others are
# constants here. Values are parameters, so the same few texts serve every record.


@lru_cache(1_000)
def _insert(table: str, names: tuple[str, ...]) -> str:
    attributes = ", ".join(f"'{name}': ?" for name in names)
    return f'INSERT INTO "{table}" VALUE {{{attributes}}}'


@lru_cache(1_000)
def _update(
    table: str,
    key: str,
    put: tuple[str, ...],
    remove: tuple[str, ...],
    guard: tuple[tuple[str, bool], ...],
) -> str:
    changes = [*(f'SET "{name}" = ?' for name in put), *(f'REMOVE "{name}"' for name in remove)]
    holds = [f'"{name}" IS MISSING' if absent else f'"{name}" = ?' for name, absent in guard]
    where = " AND ".join([f'"{key}" = ?', *holds])
    return f'UPDATE "{table}" {" ".join(changes)} WHERE {where}'


def _delete(table: str, key: str, below: str = "") -> str:
    where = f'"{key}" = ?' + (f' AND "{below}" < ?' if below else "")
    return f'DELETE FROM "{table}" WHERE {where} RETURNING ALL OLD *'  # noqa: S608  see above
