"""Writes under a condition, as values and as the PartiQL that one batch carries."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec

from eventonce.stores.dynamodb.codec import Item, Layout, Value


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
    """Drop this item and bring it back as it was."""

    key: str


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
        case Delete(name):
            return {"Statement": _delete(table, layout.key), "Parameters": [{"S": name}]}


# Names stand in these texts as they are: the table's and the layout's were vetted by `address`, the
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


def _delete(table: str, key: str) -> str:
    return f'DELETE FROM "{table}" WHERE "{key}" = ? RETURNING ALL OLD *'  # noqa: S608  see above
