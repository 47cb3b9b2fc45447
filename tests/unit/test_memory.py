"""The memory store judges one call at a time: what it has read still holds when it writes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

import pytest

from eventonce import ledger
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
