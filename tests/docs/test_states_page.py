"""docs/states.md is true: it names all parts of the law, and counts attempts as the law does."""

from __future__ import annotations

from typing import get_args

import pytest
from msgspec.structs import replace

from eventonce.core.ledger import Record, judge, settle
from eventonce.types import Action, Claim, Settlement
from tests.docs.pages import sections
from tests.docs.tables import plain, word

PAGE = sections("states.md")
LEASE = 60_000
(ENDINGS,) = PAGE["Which attempts count"].tables()


def test_every_field_of_a_record_has_its_row() -> None:
    (rows,) = PAGE["The record"].tables()
    assert sorted(plain(row[0]) for row in rows) == sorted(Record.__struct_fields__)


def test_every_settlement_has_its_row() -> None:
    (rows,) = PAGE["What settle believes"].tables()
    said = " ".join(row[1] for row in rows)
    assert not [action for action in get_args(Action) if action not in said]


def ended(how: str, claim: Claim) -> Record | None:
    """The record of a run that ended as a row says."""
    claim = replace(claim, alone="`alone` in it" in how)
    verdict, record = judge(None, claim, 0)
    for action in get_args(Action):
        if f"`{action}`" in how:
            return settle(record, Settlement(claim, verdict.token, action), 0)[1]
    return record


@pytest.mark.parametrize(("how", "counts"), [(row[0], word(row[2])) for row in ENDINGS])
def test_an_attempt_counts_as_its_row_says(how: str, counts: str) -> None:
    only = Claim(b"k" * 16, 1, LEASE, LEASE, attempts=1)
    verdict, _ = judge(ended(how, only), replace(only, nonce=2), LEASE)
    assert verdict.kind == {"yes": "dead", "no": "run"}[counts]
