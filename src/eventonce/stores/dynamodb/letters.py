"""Dead letters in the table of the records: each is an item with its event packed.

A dead letter too large for one item has several; the item that names the others is written last. An
index lists the dead letters, oldest first; a small table without the index is scanned.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import Any, Final

import msgspec

from eventonce.errors import EventonceError, StoreMismatch
from eventonce.stores.dynamodb.codec import LETTER_PREFIX, PART_PREFIX, Delete, Insert, Item, Write
from eventonce.stores.dynamodb.table import Done, Refused, Table, Written
from eventonce.types import Letter

INDEX: Final = "letters"
INDEX_GROUP: Final = "letter_group"
INDEX_ORDER: Final = "letter_order"
"""The two attributes of the index. Only dead letters have them, so records are not in the index and
cost nothing there. `letter_group` is the same for all; `letter_order` sorts by the instant of the
dead letter, then by its id."""

INDEX_ATTRIBUTES: Final = ("consumer",)

ROOM: Final = 300_000
"""The most bytes of a packed dead letter in one item, which may have 409,600 with its names."""

LETTERS_A_PAGE: Final = 25
"""Dead letters read at once: so many large ones fit into one answer, which has at most 16 MB."""

SCAN_BYTES: Final = 64 * 2**20
"""The most bytes of a table that are scanned if the index is missing: eight thousand read units, a
tenth of a cent. For more, an error asks the user to add the index."""

ID_CHARACTERS: Final = 200
"""Characters of the id that sort dead letters of one instant; an index key has 1,024 bytes."""

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(Letter).decode


def put(table: Table, letters: Iterable[Letter]) -> None:
    """Store these dead letters; one whose id exists already is not changed."""
    first: dict[str, Letter] = {}
    for letter in letters:
        first.setdefault(letter.id, letter)
    heads: list[Write] = []
    parts: list[Write] = []
    spread: dict[int, list[str]] = {}
    for place, letter in enumerate(first.values()):
        packed = zlib.compress(_encode(letter))
        head: Item = {
            table.layout.key: {"S": LETTER_PREFIX + letter.id},
            INDEX_GROUP: {"S": INDEX},
            INDEX_ORDER: {"S": f"{letter.at:016d} {letter.id[:ID_CHARACTERS]}"},
            "consumer": {"S": letter.consumer},
        }
        if len(packed) <= ROOM:
            head["letter"] = {"B": packed}
        else:
            names = _part_names(packed)
            head["parts"] = {"L": [{"S": name} for name in names]}
            spread[place] = names
            parts += [
                Insert(
                    {table.layout.key: {"S": name}, "letter": {"B": packed[start : start + ROOM]}}
                )
                for name, start in zip(names, range(0, len(packed), ROOM), strict=True)
            ]
        heads.append(Insert(head))
    # The parts first: a head is never without its parts. Parts are named by their content, so a
    # part that exists is the same.
    _all_done(table.write(parts))
    outcomes = table.write(heads)
    _all_done(outcomes)
    refused = [place for place, outcome in enumerate(outcomes) if isinstance(outcome, Refused)]
    _drop_spare_parts(table, [heads[place] for place in refused if place in spread])


def _part_names(packed: bytes) -> list[str]:
    digest = blake2b(packed, digest_size=16).hexdigest()
    return [f"{PART_PREFIX}{digest}:{place}" for place in range(-(-len(packed) // ROOM))]


def _drop_spare_parts(table: Table, heads: Sequence[Write]) -> None:
    """Delete the parts of dead letters that were refused because another has the id: no item names
    them."""
    for head in heads:
        assert isinstance(head, Insert)
        name = head.item[table.layout.key]["S"]
        there = table.read([name])[name]
        ours = head.item["parts"]
        if isinstance(there, dict) and there.get("parts") != ours:
            table.write([Delete(part["S"]) for part in ours["L"]])


def read(table: Table, id: str) -> Letter | None:
    """Return the dead letter of this id."""
    name = LETTER_PREFIX + id
    return next(_unpacked(table, [name]), None)


def read_all(table: Table, consumer: str | None) -> Iterator[Letter]:
    """Yield the dead letters of this consumer (None: of all), oldest first."""
    page: list[str] = []
    for name, whose in _names(table):
        if consumer in (None, whose):
            page.append(name)
        if len(page) == LETTERS_A_PAGE:
            yield from _unpacked(table, page)
            page = []
    yield from _unpacked(table, page)


def count(table: Table) -> int:
    """Return how many dead letters there are."""
    return sum(1 for _ in _names(table))


def drop(table: Table, ids: Sequence[str], before: int | None) -> int:
    """Delete these dead letters; with `before`, only those of an earlier instant. Return how many
    were deleted."""
    names = list(dict.fromkeys(LETTER_PREFIX + name for name in ids))
    below = None if before is None else (INDEX_ORDER, f"{before:016d}")
    outcomes = table.write([Delete(name, below) for name in names])
    _all_done(outcomes)
    dropped = [it.item for it in outcomes if isinstance(it, Done) and it.item]
    parts = [part["S"] for item in dropped for part in item.get("parts", {"L": ()})["L"]]
    _all_done(table.write([Delete(part) for part in parts]))
    return len(dropped)


def _all_done(outcomes: Iterable[Written]) -> None:
    for outcome in outcomes:
        if isinstance(outcome, EventonceError):
            raise outcome


def _unpacked(table: Table, names: Sequence[str]) -> Iterator[Letter]:
    """Yield the dead letters of these names that still exist."""
    heads = [item for item in _found(table, names) if item is not None]
    for head in heads:
        if "letter" in head:
            packed = head["letter"]["B"]
        else:
            parts = _found(table, [part["S"] for part in head["parts"]["L"]])
            if None in parts:
                continue  # dropped between the two readings
            packed = b"".join(part["letter"]["B"] for part in parts if part is not None)
        yield _decode(zlib.decompress(packed))


def _found(table: Table, names: Sequence[str]) -> list[Item | None]:
    items = table.read(names) if names else {}
    found: list[Item | None] = []
    for name in names:
        item = items[name]
        if isinstance(item, EventonceError):
            raise item
        found.append(item)
    return found


def _names(table: Table) -> Iterator[tuple[str, str]]:
    """Yield the key and the consumer of every dead letter, oldest first."""
    asked: dict[str, Any] = {
        "TableName": table.ref.table,
        "IndexName": INDEX,
        "KeyConditionExpression": "#group = :letters",
        "ExpressionAttributeNames": {"#group": INDEX_GROUP},
        "ExpressionAttributeValues": {":letters": {"S": INDEX}},
    }
    try:
        page = table.call("query", **asked)
    except StoreMismatch:
        # The index is missing or still being made; if the table is missing, the scan says so.
        yield from _scanned(table)
        return
    while True:
        for item in page["Items"]:
            yield item[table.layout.key]["S"], item["consumer"]["S"]
        if "LastEvaluatedKey" not in page:
            return
        page = table.call("query", ExclusiveStartKey=page["LastEvaluatedKey"], **asked)


def _scanned(table: Table) -> list[tuple[str, str]]:
    described = table.call("describe_table", TableName=table.ref.table)["Table"]
    size = described.get("TableSizeBytes", 0)
    if size > SCAN_BYTES:
        raise StoreMismatch(
            f"{table.ref}: the table has no index of its dead letters: to find them, all "
            f"{size / 2**20:,.0f} MB of it would be read. Add the index, which costs very little: "
            f"{table.ref.command('migrate')}"
        )
    asked: dict[str, Any] = {
        "TableName": table.ref.table,
        "FilterExpression": "begins_with(#key, :letter)",
        "ProjectionExpression": "#key, #order, #consumer",
        "ExpressionAttributeNames": {
            "#key": table.layout.key,
            "#order": INDEX_ORDER,
            "#consumer": "consumer",
        },
        "ExpressionAttributeValues": {":letter": {"S": LETTER_PREFIX}},
        "ConsistentRead": True,
    }
    found: list[Item] = []
    page = table.call("scan", **asked)
    found += page["Items"]
    while "LastEvaluatedKey" in page:
        page = table.call("scan", ExclusiveStartKey=page["LastEvaluatedKey"], **asked)
        found += page["Items"]
    found.sort(key=lambda item: str(item[INDEX_ORDER]["S"]))
    return [(item[table.layout.key]["S"], item["consumer"]["S"]) for item in found]
