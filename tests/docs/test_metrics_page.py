"""docs/metrics.md is true: every metric and every cause is on it, as the code has them."""

from __future__ import annotations

from eventonce.metrics import names
from tests.docs.pages import DOCS, broken_links
from tests.docs.reference import METRICS_PAGE, written_metrics

TEXT = METRICS_PAGE.read_text(encoding="utf-8")


def test_the_tables_match_the_code() -> None:
    assert written_metrics() == TEXT, "run: python -m tests.docs.reference"
    assert TEXT.count("| `eventonce_") == len(names.METRICS)


def test_the_bounds_of_the_labels_match_the_code() -> None:
    assert f"The first {names.MOST_TYPES} types" in TEXT
    assert f"the first {names.MOST_UNHANDLED} types that no handler takes" in TEXT
    assert f"the first {names.MOST_ERRORS} classes" in TEXT


def test_no_link_is_broken() -> None:
    assert broken_links(DOCS / "metrics.md") == []
