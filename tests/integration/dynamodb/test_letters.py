"""Dead letters of any size, in the same table."""

from __future__ import annotations

import secrets
from typing import Any

import pytest
from msgspec.structs import replace

from eventonce.errors import StoreUnavailable
from eventonce.stores.dynamodb import DynamoDBStore
from eventonce.types import Letter
from tests.helpers import until
from tests.integration.dynamodb.asks import completed, fact
from tests.integration.dynamodb.between import Between, refuse

MEBIBYTE = 2**20


def _letter(event: bytes, id: str = "l-1", at: int = 1) -> Letter:
    return Letter(id, "crm", "dead", "why", "r@1", b"key", event, at)


def _items(client: Any, table: str) -> list[str]:
    pages = client.get_paginator("scan").paginate(
        TableName=table, ProjectionExpression="eventHash", ConsistentRead=True
    )
    return sorted(item["eventHash"]["S"] for page in pages for item in page["Items"])


@pytest.mark.parametrize("size", [0, 300_000, 400_000, 3 * MEBIBYTE])
def test_a_dead_letter_of_any_size_is_read_whole_and_dropped_without_a_trace(
    size: int, store: DynamoDBStore, client: Any, table: str
) -> None:
    """Random bytes, which no packing makes smaller."""
    letter = _letter(secrets.token_bytes(size))
    store.put_letters([letter])
    store.put_letters([letter])
    assert store.letter("l-1") == letter
    assert list(store.letters()) == [letter]
    assert len(_items(client, table)) == 1 + (0 if size < 300_000 else size // 300_000 + 1)
    assert store.drop_letters(["l-1"]) == 1
    assert store.letter("l-1") is None
    assert _items(client, table) == []


def test_a_second_large_dead_letter_with_the_same_id_stores_nothing(
    store: DynamoDBStore, client: Any, table: str
) -> None:
    first, second = (_letter(secrets.token_bytes(MEBIBYTE)) for _ in range(2))
    store.put_letters([first])
    before = _items(client, table)
    store.put_letters([second])
    assert store.letter("l-1") == first
    assert _items(client, table) == before


def test_a_large_event_of_the_usual_kind_is_one_item(
    store: DynamoDBStore, client: Any, table: str
) -> None:
    store.put_letters([_letter(b'{"conversationId": "c", "state": "connected"}' * 20_000)])
    assert _items(client, table) == ["letter:l-1"]


def test_a_crash_between_the_parts_and_the_head_leaves_no_half_dead_letter(
    store: DynamoDBStore, between: Between
) -> None:
    letter = _letter(secrets.token_bytes(MEBIBYTE))
    # The head is written alone, by PutItem, after its parts.
    between.spoil("PutItem", *[refuse("ThrottlingException")] * 3)
    with pytest.raises(StoreUnavailable):
        store.put_letters([letter])
    assert store.letter("l-1") is None
    assert list(store.letters()) == []
    store.put_letters([letter])
    assert list(store.letters()) == [letter]


def test_dead_letters_have_no_expiry_and_are_no_records(
    store: DynamoDBStore, client: Any, table: str
) -> None:
    store.put_letters([_letter(b"{}"), replace(_letter(b"{}"), id="l-2", consumer="erp")])
    for item in client.scan(TableName=table)["Items"]:
        assert "expiration" not in item
    stats = store.stats()
    assert (stats.letters, stats.records) == (2, 0)
    claim = fact()
    store.settle(completed([claim], store.claim([claim])))
    until(lambda: store.stats().records == 1, store.stats)
    assert store.stats().letters == 2
