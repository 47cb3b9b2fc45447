"""The embedded stores are held to the contract, and so is a store written elsewhere."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from eventonce import Consumer, Job, Rule
from eventonce.privacy import SealedStore, Sealer
from eventonce.stores import ADAPTERS, Adapter, check_uri, open_store
from eventonce.stores.memory import MemoryStore
from eventonce.stores.sqlite import SQLiteStore
from eventonce.testing.contract import CASES, Case, StoreContract, StoreFactory
from tests.contract.elsewhere import WAIT, TextbookStore


class TestMemory(StoreContract):
    @pytest.fixture
    def factory(self) -> StoreFactory:
        store = MemoryStore()
        return StoreFactory(lambda: store, processes=False)


class TestSQLite(StoreContract):
    @pytest.fixture
    def factory(self, tmp_path: Path) -> StoreFactory:
        return StoreFactory(partial(SQLiteStore, tmp_path / "eventonce.db", wait=WAIT))


class TestTextbook(StoreContract):
    @pytest.fixture
    def factory(self, tmp_path: Path) -> StoreFactory:
        return StoreFactory(partial(TextbookStore, tmp_path / "textbook.db"))


QUICK = [
    case for case in CASES if case.__module__.rpartition(".")[2] in ("batches", "letters", "admin")
]
IN_TRANSACTIONS = [case for case in CASES if case.__module__.endswith(".transactions")]


@pytest.fixture
def uri(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A store that is written in one file, and added by one line."""
    monkeypatch.setitem(ADAPTERS, "textbook", Adapter("tests.contract.elsewhere:TextbookStore"))
    return f"textbook://{tmp_path}/mine.db"


def test_a_store_that_was_added_is_opened_by_its_uri(uri: str) -> None:
    check_uri(uri)
    ran: list[Job] = []
    rule = Rule(name="call", match="call", key=["detail.call"])
    event = {"id": "1", "source": "s", "detail-type": "call", "detail": {"call": 7}}
    for expected in ("done", "duplicate"):
        consumer = Consumer(uri, name="crm", rules=[rule], handler=ran.append)
        assert [outcome.status for outcome in consumer.process([event])] == [expected]
        consumer.close()
    assert len(ran) == 1


@pytest.mark.parametrize("case", QUICK, ids=lambda case: case.__name__)
def test_a_store_that_was_added_keeps_the_contract(uri: str, case: Case) -> None:
    case(StoreFactory(partial(open_store, uri), processes=False))


@pytest.mark.parametrize("case", [*QUICK, *IN_TRANSACTIONS], ids=lambda case: case.__name__)
def test_a_store_behind_a_seal_keeps_the_contract(tmp_path: Path, case: Case) -> None:
    sealer = Sealer(["00" * 32])

    def sealed() -> SealedStore:
        return SealedStore(SQLiteStore(tmp_path / "eventonce.db", wait=WAIT), sealer)

    case(StoreFactory(sealed, processes=False))
