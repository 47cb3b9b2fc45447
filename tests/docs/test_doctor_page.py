"""docs/doctor.md is true: the table has every fault, as the command shows it."""

from __future__ import annotations

import re

from eventonce.doctor.checks import AREAS, CHECKS, findings
from tests.docs.tables import tables
from tests.unit.test_doctor import FAULTS, SETTINGS

ROWS = next(table.rows for table in tables("doctor.md") if "fault" in table.head)
SHOWN = {
    (row["area"], part) for row in ROWS for part in re.findall(r"`([^`]+)`", row["how it shows"])
}
TEXTS = {
    (area, it.what)
    for facts, *_ in FAULTS.values()
    for area, it in findings(facts, SETTINGS)
    if not it.fine
}


def test_every_fault_of_aws_is_in_the_table() -> None:
    for area, text in TEXTS:
        assert any(part in text for place, part in SHOWN if place == area), text


def test_the_areas_of_the_page_match_the_checks_in_their_order() -> None:
    assert tuple(dict.fromkeys(row["area"] for row in ROWS)) == AREAS
    assert {area for area, _ in CHECKS} <= set(AREAS)
