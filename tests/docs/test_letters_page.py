"""docs/letters.md is true: its table of redrives has every status, and `eventonce audit` prints its
audit lines as the page shows."""

from __future__ import annotations

import re
from pathlib import Path

from eventonce.core.status import MEANINGS
from tests.docs.pages import DOCS
from tests.helpers import Run

TEXT = (DOCS / "letters.md").read_text(encoding="utf-8")


def test_the_audit_lines_are_printed_as_the_page_shows(run: Run) -> None:
    audit = TEXT.partition("## The audit")[2]
    (lines,) = re.findall(r"```json\n(.*?)```", audit, re.DOTALL)
    (told,) = re.findall(r"```\n(2026.*?)```", audit, re.DOTALL)
    Path("audit.jsonl").write_text(lines)
    assert run("audit", "--from", "audit.jsonl").out == told


def test_the_table_of_redrives_has_every_status_once() -> None:
    (table,) = re.findall(r"^\| outcome \|.*\n(?:\|.*\n)+", TEXT, re.MULTILINE)
    named = re.findall(r"`(\w+)`", table)
    assert sorted(named) == sorted(MEANINGS), "docs/letters.md: the statuses of its redrive table"
