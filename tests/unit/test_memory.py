"""The memory store judges one call at a time: what it has read still holds when it writes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

import pytest

from eventonce.core import ledger
from eventonce.stores.memory import MemoryStore
from eventonce.types import Claim, Settlement

NOW = 1_764_000_000_000
HEAD_START = 0.2
"""Seconds in which another thread could easily come between; only a store that locks needs them."""

T = TypeVar("T")


def fact(nonce: int) -> Claim:
    return Claim(b"fact", nonce, 60_000, 864_000_000, 5)


def interrupted(decide: Callable[..., T], by: threading.Thread) -> Callable[..., T]:
    """The decision, with another thread let in once it is made and before it is written."""

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


def test_a_renewal_at_the_same_moment_does_not_undo_a_completion(
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


def test_what_expired_is_dropped_by_the_claims_that_follow() -> None:
    """No more is held than twice what lives, however long it goes on."""
    store = MemoryStore()
    most = 0
    for second in range(50):
        for number in range(100):
            key = second.to_bytes(8, "big") + number.to_bytes(8, "big")
            claim = Claim(key, 1, 60_000, 1_000, 5)
            now = NOW + second * 1_000
            (run,) = store.claim([claim], now)
            store.settle([Settlement(claim, run.token, "complete")], now)
        most = max(most, store.stats().records)
    assert most <= 300


def test_what_lives_is_not_dropped_by_claims() -> None:
    store = MemoryStore()
    kept = [Claim(n.to_bytes(16, "big"), 1, 60_000, 864_000_000, 5) for n in range(100)]
    runs = store.claim(kept, NOW)
    ends = [Settlement(it, run.token, "complete") for it, run in zip(kept, runs, strict=True)]
    store.settle(ends, NOW)
    for n in range(1_000):
        store.claim([Claim(b"other" + n.to_bytes(8, "big"), 1, 1_000, 1_000, 5)], NOW + n)
    kinds = {verdict.kind for verdict in store.claim(kept, NOW + 1_000)}
    assert kinds == {"duplicate"}
