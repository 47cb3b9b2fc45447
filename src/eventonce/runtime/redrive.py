"""Dead letters after their redrive: dropped, or rewritten with the newest reason."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from os import urandom
from typing import Final

from msgspec.structs import replace

from eventonce.core.ports import StoreAdmin
from eventonce.core.status import DEAD_LETTERS, EFFECTIVE, FAILURES
from eventonce.errors import StoreError
from eventonce.types import Letter, Outcome


def settle(admin: StoreAdmin, pairs: Iterable[tuple[Letter, Outcome]], now: int) -> None:
    """Drop the dead letters whose events are settled; write the newest reason into the others."""
    pairs = list(pairs)
    admin.drop_letters([letter.id for letter, outcome in pairs if outcome.status in EFFECTIVE])
    newest = [(letter.id, _newest(letter, outcome, now)) for letter, outcome in pairs]
    rewritten = [(old, letter) for old, letter in newest if letter is not None]
    left_over = [old for old, _ in rewritten if _SPARE in old]
    rewrite(admin, [letter for _, letter in rewritten], left_over)


def _newest(letter: Letter, outcome: Outcome, now: int) -> Letter | None:
    """Return the dead letter with the newest reason; None if nothing new is known."""
    failed = outcome.status in FAILURES and not isinstance(outcome.error, StoreError)
    if not failed and outcome.status not in DEAD_LETTERS:
        return None
    return replace(
        letter,
        id=letter.id.partition(_SPARE)[0],
        status=letter.status if failed else outcome.status,
        reason=outcome.reason,
        rule=outcome.rule or letter.rule,
        key=outcome.key or letter.key,
        at=now,
        attempt=letter.attempt + (outcome.status != "invalid"),
    )


_SPARE: Final = "~"
"""The mark in the id of a spare copy, before the name of the redrive that put it there."""


def rewrite(
    admin: StoreAdmin,
    letters: Sequence[Letter],
    left_over: Sequence[str] = (),
    *,
    if_there: bool = False,
) -> None:
    """Replace dead letters. A store keeps the first dead letter with an id, so the old ones are
    dropped first. Spare copies are stored meanwhile: a crash leaves a spare, and a redrive runs it
    like any other dead letter. Each redrive has spares with ids of its own, because it drops them.
    With `if_there`, a dead letter that was dropped meanwhile does not come back."""
    if letters:
        suffix = _SPARE + urandom(8).hex()
        spares = [replace(letter, id=letter.id + suffix) for letter in letters]
        admin.put_letters(spares)
        if if_there:
            # One by one, because the store answers how many were there, and not which.
            letters = [letter for letter in letters if admin.drop_letters([letter.id])]
        else:
            admin.drop_letters([letter.id for letter in letters])
        admin.put_letters(letters)
        admin.drop_letters([*(spare.id for spare in spares), *left_over])
