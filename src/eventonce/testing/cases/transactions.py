"""Completion inside the caller's own transaction, for stores that have transactions."""
# ruff: noqa: S608  the name of the table is made by the suite

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from unittest import SkipTest

from eventonce.core.ports import Store, Transactional, offers
from eventonce.testing.cases.samples import HOUR, fact, new_keys
from eventonce.testing.factory import StoreFactory, opened
from eventonce.testing.workers import Log, Task, worker_to_kill
from eventonce.types import Settlement


class _Stumble(Exception):
    """The handler fails."""


def a_completion_commits_with_the_callers_writes(factory: StoreFactory) -> None:
    """Both are visible, for this handle and the next one."""
    (key,) = new_keys(1)
    with opened(factory) as store:
        table = _table(store)
        claim = fact(key, lease=HOUR)
        (run,) = store.claim([claim])
        with _transactional(store).transaction() as transaction:
            transaction.connection.execute(f"INSERT INTO {table} VALUES (1)")
            settlement = Settlement(claim, run.token, "complete", b"result")
            assert transaction.settle(settlement) == "kept"
        assert _rows(store, table) == 1
    with opened(factory) as store:
        (copy,) = store.claim([fact(key)])
        assert (copy.kind, copy.result) == ("duplicate", b"result")
        assert _rows(store, table) == 1


def neither_is_there_if_the_handler_fails(factory: StoreFactory) -> None:
    """The handler's exception is raised; the run is still held, and another attempt can complete
    it."""
    with opened(factory) as store:
        table = _table(store)
        (key,) = new_keys(1)
        claim = fact(key, lease=HOUR)
        (run,) = store.claim([claim])
        settlement = Settlement(claim, run.token, "complete")
        stumbled = False
        try:
            with _transactional(store).transaction() as transaction:
                transaction.connection.execute(f"INSERT INTO {table} VALUES (1)")
                assert transaction.settle(settlement) == "kept"
                raise _Stumble
        except _Stumble:
            stumbled = True
        assert stumbled
        assert _rows(store, table) == 0
        assert store.claim([fact(key)])[0].kind == "busy"
        assert store.settle([settlement]) == ["kept"]


def a_run_that_was_overtaken_is_told_in_its_transaction(factory: StoreFactory) -> None:
    """The run learns it in time to undo its writes: fenced, or unknown if there is no record."""
    with opened(factory) as store:
        (key, other) = new_keys(2)
        claim = fact(key, lease=HOUR)
        (run,) = store.claim([claim])
        with _transactional(store).transaction() as transaction:
            late = Settlement(claim, run.token - 1, "complete")
            assert transaction.settle(late) == "fenced"
            assert transaction.settle(Settlement(fact(other), 1, "complete")) == "unknown"
        assert store.claim([fact(key)])[0].kind == "busy"


def a_worker_killed_in_its_transaction_leaves_neither(factory: StoreFactory) -> None:
    """Writes and settlement without a commit have no effect."""
    with opened(factory) as store:
        table = _table(store)
    keys = new_keys(1)
    # The name of the table is passed as a key: a task has no other field for it.
    with worker_to_kill(factory, _write_and_hang, Task(0, (*keys, table.encode()), 0)) as worker:
        next(worker.said())
    with opened(factory) as store:
        assert _rows(store, table) == 0
        assert store.claim([fact(keys[0])])[0].kind == "busy"


def _write_and_hang(store: Store, task: Task) -> Iterator[Log]:
    key, table = task.keys
    claim = fact(key, lease=HOUR)
    (run,) = store.claim([claim])
    with _transactional(store).transaction() as transaction:
        transaction.connection.execute(f"INSERT INTO {table.decode()} VALUES (1)")
        settlement = Settlement(claim, run.token, "complete")
        yield Log(settled=((settlement, transaction.settle(settlement)),))
        time.sleep(3_600)


def _transactional(store: Store) -> Transactional:
    if not offers(store, Transactional):
        raise SkipTest("the store has no transactions")
    return store


def _table(store: Store) -> str:
    """Return a new table for the caller's writes, in the store's own database."""
    name = f"effects_{secrets.token_hex(4)}"
    with _transactional(store).transaction() as transaction:
        transaction.connection.execute(f"CREATE TABLE {name} (n integer)")
    return name


def _rows(store: Store, table: str) -> int:
    with _transactional(store).transaction() as transaction:
        (count,) = transaction.connection.execute(f"SELECT count(*) FROM {table}").fetchone()
    return int(count)
