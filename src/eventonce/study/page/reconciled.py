"""The page of `reconcile`: the expected events that never arrived."""

from __future__ import annotations

from typing import Final

from eventonce.markup import Highlight, Sentence, counted, lead, number, share
from eventonce.study.page import plots
from eventonce.study.page.layout import Page, entries, figure
from eventonce.study.reconcile import Reconciled

UNTYPED: Final = "without a type"


def reconciled_page(found: Reconciled, *, made: str) -> Page:
    """Return the page of two lists that were compared."""
    page = Page("What never arrived", lead(sentence(found)), made=made)
    rows = [
        ("expected", number(found.expected), "Events of the first list."),
        ("seen", number(found.seen), "Events of the second list."),
        ("in both", number(found.both), "Expected, and seen."),
    ]
    page.section(
        "The two lists",
        "Events are compared by their keys, and copies count once.",
        entries(rows),
        neither(found),
    )
    if found.types:
        bars = [
            (kind or UNTYPED, (missing,), False) for kind, missing in list(found.types.items())[:40]
        ]
        told = f"{counted(len(found.types), 'type')} with missing events."
        page.section(
            "What is missing",
            figure(plots.bars("Missing events by type", told, bars, ("missing",))),
        )
    if found.keyless:
        page.section("Not compared", keyless(found))
    return page


def sentence(found: Reconciled) -> Sentence:
    """Return the first sentence of a reconciliation."""
    part = f" ({share(found.missing, found.expected)})" if found.missing else ""
    missing = Highlight(number(found.missing), harm=found.missing > 0)
    return [
        Highlight(counted(found.expected, "event")),
        " expected: ",
        missing,
        part,
        " never arrived.",
    ]


def keyless(found: Reconciled) -> str:
    """Return a sentence about lines without a key."""
    return f"{counted(found.keyless, 'line')} without a key could not be compared."


def neither(found: Reconciled) -> str:
    """Return a sentence about the events that neither list has; empty if they are not known."""
    if found.neither is None:
        return ""
    return (
        f"If both are captures of one bus, about {number(round(found.neither))} events are in "
        "neither (Chapman's estimate: it holds if each list lost its events by chance)."
    )
