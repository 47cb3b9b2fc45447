"""The memory store judges one call at a time: no other thread writes between its read and write."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

import pytest

from eventonce.core import ledger
from eventonce.stores.memory import MemoryStore
from eventonce.types import Action, Claim, Settlement

NOW = 1_764_000_000_000
HEAD_START = 0.2
"""Seconds in which another thread could easily come between; only a store that locks needs them."""

T = TypeVar("T")


def fact(nonce: int) -> Claim:
    return Claim(b"fact", nonce, 60_000, 864_000_000, 5)


def interrupted(decide: Callable[..., T], by: threading.Thread) -> Callable[..., T]:
    """The decision, with another thread started after it is made and before it is written."""

    def decided(*arguments: object) -> T:
        answer = decide(*arguments)
        if by.ident is None:
            by.start()
            by.join(HEAD_START)
        return answer

    return decided


def test_two_claims_at_once_are_one_run(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    kinds: list[str] = []

    def claim(nonce: int) -> None:
        kinds.append(store.claim([fact(nonce)], NOW)[0].kind)

    other = threading.Thread(target=claim, args=(2,))
    monkeypatch.setattr(ledger, "judge", interrupted(ledger.judge, other))
    claim(1)
    other.join()
    assert sorted(kinds) == ["busy", "run"]


def test_a_simultaneous_renewal_does_not_undo_a_completion(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = MemoryStore()
    (run,) = store.claim([fact(1)], NOW)
    complete = Settlement(fact(1), run.token, "complete")
    other = threading.Thread(target=store.settle, args=([complete], NOW))
    monkeypatch.setattr(ledger, "settle", interrupted(ledger.settle, other))
    assert store.settle([Settlement(fact(1), run.token, "extend")], NOW) == ["kept"]
    other.join()
    assert store.claim([fact(2)], NOW)[0].kind == "duplicate"


def test_expired_records_are_deleted_by_later_claims() -> None:
    """The store holds at most twice the living records, for any number of calls, and also if the
    same calls have other claims."""
    store = MemoryStore()
    lasting = fact(1)
    most = 0
    for second in range(50):
        for number in range(100):
            key = second.to_bytes(8, "big") + number.to_bytes(8, "big")
            claim = Claim(key, 1, 60_000, 1_000, 5)
            now = NOW + second * 1_000
            run, _ = store.claim([claim, lasting], now)
            store.settle([Settlement(claim, run.token, "complete")], now)
        most = max(most, store.stats().records)
    assert most <= 300


def test_living_records_are_not_deleted_by_claims() -> None:
    store = MemoryStore()
    kept = [Claim(n.to_bytes(16, "big"), 1, 60_000, 864_000_000, 5) for n in range(100)]
    runs = store.claim(kept, NOW)
    ends = [Settlement(it, run.token, "complete") for it, run in zip(kept, runs, strict=True)]
    store.settle(ends, NOW)
    for n in range(1_000):
        store.claim([Claim(b"other" + n.to_bytes(8, "big"), 1, 1_000, 1_000, 5)], NOW + n)
    kinds = {verdict.kind for verdict in store.claim(kept, NOW + 1_000)}
    assert kinds == {"duplicate"}


def test_a_sweep_skips_forgotten_records_and_uses_the_clock_of_the_store() -> None:
    day = 86_400_000
    clock = iter([NOW, NOW, NOW + 2 * day])
    store = MemoryStore(clock=lambda: next(clock))
    store.claim([Claim(key, 1, 2 * day, 1_000, 5) for key in (b"forgotten", b"leased")])
    assert store.forget([b"forgotten"]) == 1
    assert store.sweep() == 0
    assert (store.sweep(), store.stats().records) == (1, 0)


def test_a_sweep_checks_each_record_once_even_if_it_was_granted_twice() -> None:
    store = MemoryStore()
    for nonce in (1, 2):
        (run,) = store.claim([fact(nonce)], NOW)
        store.settle([Settlement(fact(nonce), run.token, "release")], NOW)
    store.claim([Claim(b"brief", 1, 1_000, 1_000, 5)], NOW)
    assert store.sweep(2, NOW + 86_400_000) == 1


def test_two_items_of_one_key_in_one_call_are_judged_one_after_the_other() -> None:
    store = MemoryStore()
    run, copy = store.claim([fact(1), fact(2)], NOW)
    assert (run.kind, copy.kind) == ("run", "busy")
    actions: tuple[Action, ...] = ("complete", "release")
    ends = [Settlement(fact(1), run.token, action) for action in actions]
    assert store.settle(ends, NOW) == ["kept", "fenced"]
