"""The embedded stores are held to the contract, and so is one that was written elsewhere."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from eventonce.stores.memory import MemoryStore
from eventonce.stores.sqlite import SQLiteStore
from eventonce.testing.contract import Opener, StoreContract
from tests.contract.elsewhere import WAIT, TextbookStore


class TestMemory(StoreContract):
    @pytest.fixture
    def opener(self) -> Opener:
        store = MemoryStore()
        return Opener(lambda: store, processes=False)


class TestSQLite(StoreContract):
    @pytest.fixture
    def opener(self, tmp_path: Path) -> Opener:
        return Opener(partial(SQLiteStore, tmp_path / "eventonce.db", wait=WAIT))


class TestTextbook(StoreContract):
    @pytest.fixture
    def opener(self, tmp_path: Path) -> Opener:
        return Opener(partial(TextbookStore, tmp_path / "textbook.db"))
