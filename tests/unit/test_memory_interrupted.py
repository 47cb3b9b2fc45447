"""The memory store when a signal raises an exception, at any instant."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import count

import pytest

from eventonce.stores.memory import MemoryStore
from eventonce.types import Claim, Letter, Settlement
from tests.helpers import PATIENCE
from tests.unit.interrupts import interrupted_everywhere

NOW = 1_764_000_000_000

numbers = count(1)


def fact(nonce: int = 1) -> Claim:
    return Claim(next(numbers).to_bytes(16, "big"), nonce, 60_000, 1_000, 5)


def settled(store: MemoryStore) -> None:
    claims = [fact(), fact()]
    runs = store.claim(claims, NOW)
    store.settle(
        [Settlement(claim, run.token, "complete") for claim, run in zip(claims, runs, strict=True)],
        NOW,
    )


def swept(store: MemoryStore) -> None:
    settled(store)
    store.sweep(10, NOW + 500)
    store.sweep(10, NOW + 1_000)


def letters_put(store: MemoryStore) -> None:
    kept = Letter(str(next(numbers)), "crm", "dead", "why", "rule", b"k", b"{}", NOW)
    store.put_letters([kept])
    assert store.letter(kept.id) == kept
    store.drop_letters([it.id for it in store.letters()])
    store.forget([fact().key])


@pytest.mark.parametrize("act", [settled, swept, letters_put], ids=lambda act: act.__name__)
def test_an_interruption_at_any_instant_leaves_the_store_as_before_or_after(
    act: Callable[[MemoryStore], None],
) -> None:
    store = MemoryStore(clock=lambda: NOW)
    retained = []
    for came in interrupted_everywhere(lambda: act(store)):
        retained.append(came)
        other = threading.Thread(target=settled, args=(store,), daemon=True)
        other.start()
        other.join(PATIENCE)
        assert not other.is_alive(), "the lock is held for ever"
        store.drop_letters([it.id for it in store.letters()])
    later = NOW + 10 * 86_400_000
    store.sweep(10**6, later)
    assert store.stats().records == 0, "a record that no sweep finds"


def test_an_interrupted_batch_is_claimed_whole_or_not_at_all() -> None:
    store = MemoryStore(clock=lambda: NOW)
    batches: list[list[Claim]] = []

    def act() -> None:
        batches.append([fact(), fact(), fact()])
        store.claim(batches[-1])

    for _ in interrupted_everywhere(act):
        known = [store.show(claim.key) is not None for claim in (batches or [[]])[-1]]
        assert len(set(known)) <= 1
