"""The SQLite store when signals raise exceptions, as for a soft time limit or in a notebook: at
whatever instant they are raised, nothing stays open, and other connections can use the file."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from traceback import extract_tb

import pytest

from eventonce.errors import StoreError
from eventonce.stores.sqlite import SQLiteStore
from eventonce.types import Claim, Letter, Settlement
from tests.unit.interrupts import Interrupt, interrupted_everywhere

# An exception in a finalizer is reported by Python, and goes no further.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

NOW = 1_790_000_000_000
WAIT = 1.0
"""Seconds after which a lock counts as held for ever."""

Act = Callable[[SQLiteStore], object]

numbers = count(1)


def fact(nonce: int = 1) -> Claim:
    return Claim(next(numbers).to_bytes(16, "big"), nonce, 60_000, 864_000_000, 5)


def letter() -> Letter:
    return Letter(str(next(numbers)), "crm", "dead", "why", "rule", b"k", b"{}", NOW)


def settled(store: SQLiteStore) -> None:
    claim = fact()
    (run,) = store.claim([claim])
    store.settle([Settlement(claim, run.token, "complete")])


def judged(store: SQLiteStore) -> None:
    """Claims that the law judges row by row, because some keys are known."""
    claim = fact()
    store.claim([claim, fact()])
    store.claim([claim, fact()])


def written(store: SQLiteStore) -> None:
    claim = fact()
    (run,) = store.claim([claim])
    with store.transaction() as transaction:
        transaction.connection.execute("INSERT INTO effects VALUES (1)")
        rows = transaction.connection.execute("SELECT n FROM effects UNION ALL SELECT 1")
        next(rows)  # and the other rows are not read
        transaction.settle(Settlement(claim, run.token, "complete"))


def failed(store: SQLiteStore) -> None:
    try:
        with store.transaction() as transaction:
            transaction.connection.execute("INSERT INTO effects VALUES (1)")
            raise ZeroDivisionError
    except ZeroDivisionError:
        pass


def letters_put(store: SQLiteStore) -> None:
    kept = letter()
    store.put_letters([kept])
    assert store.letter(kept.id) == kept
    store.drop_letters([it.id for it in store.letters()])


def tidied(store: SQLiteStore) -> None:
    claim = fact()
    store.claim([claim])
    store.show(claim.key)
    store.clear_results([claim.key])
    store.forget([claim.key])
    store.sweep(10)
    store.stats()


def opened(store: SQLiteStore) -> None:
    with closing(SQLiteStore(store._connections.location.path, wait=WAIT)) as another:
        another.claim([fact()])


ACTS: tuple[Act, ...] = (settled, judged, written, failed, letters_put, tidied, opened)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "eventonce.db"


@pytest.fixture
def store(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SQLiteStore]:
    monkeypatch.setattr("eventonce.stores.sqlite.store.TRANSACTION_WAIT", WAIT)
    with closing(SQLiteStore(path, clock=lambda: NOW, wait=WAIT)) as store:
        with store.transaction() as transaction:
            transaction.connection.execute("CREATE TABLE effects (n)")
        yield store


@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.__name__)
def test_an_interruption_at_any_instant_leaves_nothing_open(
    path: Path, store: SQLiteStore, act: Act
) -> None:
    retained: list[BaseException | None] = []
    for came in interrupted_everywhere(lambda: act(store)):
        assert came is None or isinstance(came, Interrupt | StoreError), "it is not itself any more"
        # A debugger or a notebook keeps the exception, with all its frames.
        if act not in (written, failed):
            retained.append(came)
        del came
        with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as another:
            another.execute("BEGIN IMMEDIATE")
            another.execute("ROLLBACK")
        assert not store._connections._readings, "a fork would wait for them"
        settled(store)
        written(store)
        # Otherwise each round would find one more dead letter, and have more instants.
        store.drop_letters([it.id for it in store.letters()])


def test_a_block_whose_exit_was_interrupted_ends_when_it_is_left_again(
    path: Path, store: SQLiteStore
) -> None:
    blocks = [store.transaction()]

    def act() -> None:
        blocks.append(store.transaction())
        blocks[-1].__enter__()
        blocks[-1].connection.execute("INSERT INTO effects VALUES (1)")
        blocks[-1].__exit__(None, None, None)

    for came in interrupted_everywhere(act):
        assert came is not None
        blocks[-1].__exit__(Interrupt, came, None)
        with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as another:
            another.execute("BEGIN IMMEDIATE")
        settled(store)
        written(store)


def test_a_block_whose_end_is_interrupted_again_and_again_is_ended_by_the_next_call(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: object) -> None:
        raise Interrupt

    block = store.transaction()
    block.__enter__().connection.execute("INSERT INTO effects VALUES (1)")
    with monkeypatch.context() as patch:
        patch.setattr("eventonce.stores.sqlite.store.undo", interrupted)
        with pytest.raises(Interrupt):
            block.__exit__(ZeroDivisionError, None, None)
    settled(store)
    with store.transaction() as transaction:
        (effects,) = transaction.connection.execute("SELECT count(*) FROM effects").fetchone()
    assert effects == 0


def test_a_block_whose_entry_was_interrupted_is_not_open(path: Path, store: SQLiteStore) -> None:
    """Even while a variable refers to the block: a caller would not leave such a block."""
    blocks = [store.transaction()]

    def act() -> None:
        blocks.append(store.transaction())
        blocks[-1].__enter__()

    within = 0
    for came in interrupted_everywhere(act):
        assert came is not None
        if "__enter__" in [frame.name for frame in extract_tb(came.__traceback__)]:
            within += 1
            with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as another:
                another.execute("BEGIN IMMEDIATE")
        blocks[-1].__exit__(None, None, None)
        # So that each round begins in the same state.
        written(store)
    blocks[-1].__exit__(None, None, None)
    assert within > 10
