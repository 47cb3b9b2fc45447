"""Redrives at the same time: a dead letter that is still needed is never absent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from eventonce.errors import StoreUnavailable
from eventonce.runtime import redrive
from eventonce.stores.memory import MemoryStore
from eventonce.types import Letter, Outcome

LETTER = Letter("abc", "crm", "dead", "why", "rule", b"key", b"{}", 1_000)
FAILED = Outcome(None, "failed", "not yet", error=ValueError("not yet"))


class CallLog:
    """A store that only logs its calls."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, Sequence[Any]]] = []

    def put_letters(self, letters: Sequence[Letter]) -> None:
        self.steps.append(("put_letters", letters))

    def drop_letters(self, ids: Sequence[str]) -> int:
        if ids:
            self.steps.append(("drop_letters", ids))
        return 0


def _steps() -> list[tuple[str, Sequence[Any]]]:
    log: Any = CallLog()
    redrive.settle(log, [(LETTER, FAILED)], now=2_000)
    return list(log.steps)


def _interleaved(one: Sequence[Any], other: Sequence[Any]) -> Iterator[list[Any]]:
    if not one or not other:
        yield [*one, *other]
        return
    for rest in _interleaved(one[1:], other):
        yield [one[0], *rest]
    for rest in _interleaved(one, other[1:]):
        yield [other[0], *rest]


def test_two_redrives_of_one_dead_letter_keep_it_stored_at_every_moment() -> None:
    for steps in _interleaved(_steps(), _steps()):
        store = MemoryStore()
        store.put_letters([LETTER])
        for name, argument in steps:
            getattr(store, name)(argument)
            assert list(store.letters()), "for a moment there was none"
        assert [letter.id for letter in store.letters()] == ["abc"]


def test_a_spare_dead_letter_after_a_crash_is_stored_under_its_original_id() -> None:
    store = MemoryStore()
    store.put_letters([LETTER])
    for name, argument in _steps()[:2]:
        getattr(store, name)(argument)
    (spare,) = store.letters()
    redrive.settle(store, [(spare, FAILED)], now=3_000)
    assert [letter.id for letter in store.letters()] == ["abc"]


@pytest.mark.parametrize(
    ("outcome", "newest"),
    [
        (FAILED, Letter("abc", "crm", "dead", "not yet", "rule", b"key", b"{}", 2_000, 1)),
        (
            Outcome(None, "conflict", "differs", "new rule", b"new key"),
            Letter("abc", "crm", "conflict", "differs", "new rule", b"new key", b"{}", 2_000, 1),
        ),
        (
            Outcome(None, "invalid", "no key"),
            Letter("abc", "crm", "invalid", "no key", "rule", b"key", b"{}", 2_000, 0),
        ),
        (Outcome(None, "failed", "away", error=StoreUnavailable("away")), LETTER),
        (Outcome(None, "busy", "another run holds the lease"), LETTER),
    ],
    ids=["failed", "given up", "not run", "the store was away", "busy"],
)
def test_a_failed_redrive_updates_the_dead_letter_unless_the_store_failed_or_was_busy(
    outcome: Outcome, newest: Letter
) -> None:
    store = MemoryStore()
    store.put_letters([LETTER])
    redrive.settle(store, [(LETTER, outcome)], now=2_000)
    assert list(store.letters()) == [newest]
