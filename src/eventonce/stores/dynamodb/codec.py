"""Records as items and writes as statements: which attribute holds what, and what an item that is
not ours counts as.

Fields that have their default take no room. An update writes the fields that change and leaves the
rest of the item alone, so what a next release adds is kept by this one.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

import msgspec

from eventonce.core.ledger import Record
from eventonce.errors import StoreMismatch
from eventonce.types import MAX_ORDER

FORMAT: Final = 1
"""The format that this release writes; rises only when an older release could no longer work on an
item."""

FORMAT_NAME: Final = "format"
STAMP: Final = "stamp"
"""A number drawn anew for every write: while it is there, the record is still what was read."""

LETTER: Final = "letter:"
PART: Final = "part:"
"""The beginnings of the keys of dead letters, and of the further parts of large ones."""

NAMES: Final = "names"
"""The key of the item that has the names of the consumers as the digests of a record."""

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
    """The attributes that must be unchanged for the item to be the same; None stands for an absent
    one."""


class Layout(msgspec.Struct, frozen=True):
    """The two attribute names that a table may have of its own."""

    key: str = KEY
    expiry: str = EXPIRY

    def values(self, record: Record) -> Item:
        """The attributes of this record, without its key and its stamp."""
        values: Item = {FORMAT_NAME: _FORMAT_VALUE}
        for field, name, kind in _FIELDS:
            value = getattr(record, field)
            if value != _DEFAULTS[field]:
                values[name] = {kind: _TYPES[kind][0](value)}
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
            **{
                field: _TYPES[kind][1](item[name][kind])
                for field, name, kind in _FIELDS
                if name in item
            }
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


_TYPES: Final[Mapping[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]]] = {
    "N": (str, int),
    "BOOL": (bool, bool),
    "B": (bytes, bytes),
    "L": (
        lambda values: [{"B": value} for value in values],
        lambda values: tuple(bytes(value["B"]) for value in values),
    ),
}
"""How a value of each type of DynamoDB's is written and read."""

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
"""The field of the record, its attribute, and that one's type."""

_NAMES: Final = frozenset([FORMAT_NAME, *(name for _, name, _ in _FIELDS)])
_DEFAULTS: Final[Mapping[str, Any]] = {
    field.name: field.default for field in msgspec.structs.fields(Record)
}

OWN_ATTRIBUTES: Final = _NAMES | {
    STAMP,
    "letter_group",
    "letter_order",
    "consumer",
    "letter",
    "parts",
}
"""Names that a table's own key and expiry attribute cannot have."""


class Insert(msgspec.Struct, frozen=True):
    """Write this item, if there is none under its key."""

    item: Item


class Update(msgspec.Struct, frozen=True):
    """Change these attributes of an item, while it is as the guard says."""

    key: str
    put: Item
    remove: tuple[str, ...]
    guard: tuple[tuple[str, Value | None], ...]


class Delete(msgspec.Struct, frozen=True):
    """Drop this item and bring it back as it was; with `below`, only if this attribute of it is a
    text below this one."""

    key: str
    below: tuple[str, str] | None = None


Write = Insert | Update | Delete


def statement(write: Write, table: str, layout: Layout) -> dict[str, Any]:
    """The write as one statement of a BatchExecuteStatement."""
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


# Names stand in these texts as they are: the table's and the layout's were checked by `uri`, the
# others are our own. Values never do, and the same few texts serve every record.


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
