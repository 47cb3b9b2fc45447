"""What becomes of a letter that was run again: dropped, or rewritten with what is newest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from msgspec.structs import replace

from eventonce.engine import LETTERED
from eventonce.errors import StoreError
from eventonce.ports import Shelf
from eventonce.types import Letter, Outcome

SETTLED: Final = frozenset[str](("done", "duplicate", "stale", "unchanged", "unguarded"))
"""The outcomes after which a letter that was run again has nothing left to say."""


def settle(shelf: Shelf, pairs: Iterable[tuple[Letter, Outcome]], now: int) -> None:
    """Drop the letters that are settled; let the others say why they still are none."""
    pairs = list(pairs)
    shelf.drop_letters([letter.id for letter, outcome in pairs if outcome.status in SETTLED])
    _rewrite(shelf, [newest for pair in pairs if (newest := _newest(*pair, now)) is not None])


def _newest(letter: Letter, outcome: Outcome, now: int) -> Letter | None:
    """The letter as it should read now; None if nothing is known that it does not say."""
    failed = outcome.status == "failed" and not isinstance(outcome.error, StoreError)
    if not failed and outcome.status not in LETTERED:
        return None
    return replace(
        letter,
        id=letter.id.rstrip(_SPARE),
        status=letter.status if failed else outcome.status,
        reason=outcome.reason,
        rule=outcome.rule or letter.rule,
        key=outcome.key or letter.key,
        at=now,
        attempt=letter.attempt + (outcome.status != "invalid"),
    )


_SPARE: Final = "~"


def _rewrite(shelf: Shelf, letters: Sequence[Letter]) -> None:
    """A shelf keeps the first letter of an id, so the old ones go first. Spare copies see to it
    that at no moment there is none: a crash leaves one too many, and it is run again like any."""
    if letters:
        ids = [letter.id for letter in letters]
        spares = [replace(letter, id=letter.id + _SPARE) for letter in letters]
        shelf.put_letters(spares)
        shelf.drop_letters(ids)
        shelf.put_letters(letters)
        shelf.drop_letters([spare.id for spare in spares])
