"""Two releases on one table: this release keeps the additions of the next, and both agree."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from eventonce.core.ledger import Record
from eventonce.core.ports import Stats
from eventonce.stores.dynamodb import DynamoDBStore
from eventonce.stores.dynamodb.codec import Item, Layout
from eventonce.testing.cases.steps import play
from eventonce.testing.contract import HOLES
from eventonce.types import Claim, Letter, Settlement, SettleResult, Verdict
from tests.integration.dynamodb.asks import completed, copies, fact, facts
from tests.integration.dynamodb.conftest import Open


@pytest.fixture
def endpoint(on_ministack: str) -> str:
    """One emulator is enough: the tests compare two releases."""
    return on_ministack


class NextLayout(Layout, frozen=True):
    """A possible next release: it writes one attribute more, which changes with the record."""

    def values(self, record: Record) -> Item:
        return {**super().values(record), "colour": {"N": str(record.token % 7)}}


@pytest.fixture
def newer(opening: Open) -> DynamoDBStore:
    store = opening()
    layout = store._table.layout
    store._table.layout = NextLayout(layout.key, layout.expiry)
    return store


class ByTurns:
    """A store whose calls go to its releases by turns."""

    def __init__(self, *stores: DynamoDBStore) -> None:
        self._stores = list(stores)

    def _next(self) -> DynamoDBStore:
        self._stores.append(self._stores.pop(0))
        return self._stores[-1]

    def claim(self, claims: Sequence[Claim], now: int | None = None) -> list[Verdict]:
        return self._next().claim(claims, now)

    def settle(
        self, settlements: Sequence[Settlement], now: int | None = None
    ) -> list[SettleResult]:
        return self._next().settle(settlements, now)

    def show(self, key: bytes) -> Record | None:
        return self._stores[0].show(key)

    def put_letters(self, letters: Sequence[Letter]) -> None:
        self._next().put_letters(letters)

    def letters(self, consumer: str | None = None) -> Iterator[Letter]:
        return self._next().letters(consumer)

    def letter(self, id: str) -> Letter | None:
        return self._next().letter(id)

    def drop_letters(self, ids: Sequence[str], before: int | None = None) -> int:
        return self._next().drop_letters(ids, before)

    def clear_results(self, keys: Sequence[bytes]) -> int:
        return self._next().clear_results(keys)

    def sweep(self, limit: int = 10_000, now: int | None = None) -> int:
        return self._next().sweep(limit, now)

    def forget(self, keys: Sequence[bytes]) -> int:
        return self._next().forget(keys)

    def stats(self) -> Stats:
        return self._next().stats()

    def close(self) -> None:
        for store in self._stores:
            store.close()


def test_an_attribute_that_the_next_release_adds_is_kept_by_this_release(
    store: DynamoDBStore, newer: DynamoDBStore, client: Any, table: str
) -> None:
    claims = facts(3)
    runs = newer.claim(claims)
    assert store.settle(completed(claims, runs)) == ["kept"] * 3
    for claim, run in zip(claims, runs, strict=True):
        item = client.get_item(TableName=table, Key={"eventHash": {"S": claim.key.hex()}})["Item"]
        assert item["colour"] == {"N": str(run.token % 7)}
        assert item["done"] == {"BOOL": True}
    assert [it.kind for it in newer.claim(copies(claims))] == ["duplicate"] * 3


def test_one_release_fences_the_other(store: DynamoDBStore, newer: DynamoDBStore) -> None:
    now = 2_000_000_000_000
    for first, second in ((store, newer), (newer, store)):
        claim = fact(lease=500)
        (run,) = first.claim([claim], now=now)
        other = fact(claim.key)
        (taken,) = second.claim([other], now=now + 500)
        assert (taken.kind, taken.attempt) == ("run", 2)
        assert first.settle(completed([claim], [run]), now=now + 500) == ["fenced"]
        assert second.settle(completed([other], [taken]), now=now + 500) == ["kept"]


@pytest.mark.parametrize("hole", HOLES)
def test_two_releases_by_turns_answer_as_the_law_does(
    hole: str, store: DynamoDBStore, newer: DynamoDBStore
) -> None:
    play(HOLES[hole], ByTurns(store, newer))
