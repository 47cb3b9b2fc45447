"""The page of shadow mode: the drops that the rules would have made, and whether they are safe."""

from __future__ import annotations

from typing import Final

from eventonce.markup import (
    Highlight,
    Sentence,
    counted,
    data,
    dotted,
    lead,
    number,
    share,
    tag,
)
from eventonce.study.page import plots
from eventonce.study.page.layout import Page, entries, figure, table
from eventonce.study.page.scales import duration, minute
from eventonce.study.shadow import SAFE_DROPS, Guarded, ShadowReport

ENOUGH_NOTE: Final = (
    f"Enough are {number(SAFE_DROPS)} drops, none with another content, and a longest gap that "
    "fits twice into what is remembered and into the time of the record."
)


def sentence(found: ShadowReport) -> Sentence:
    """Return the first sentence about a record of shadow mode."""
    told: list[str | Highlight] = [
        f"In {duration(found.span)}: " if found.span else "",
        Highlight(counted(found.events, "event")),
        ", of which the rules would drop ",
        Highlight(share(found.drops, found.events)),
        ". ",
    ]
    if found.guard is not None:
        lost, through = found.guard.only_guard_drops, found.guard.only_rules_drop
        told += [
            "Your guard drops ",
            Highlight(number(lost), harm=lost > 0),
            " that no rule takes for ",
        ]
        told += ["copies, and lets ", Highlight(number(through), harm=through > 0), " through. "]
    told.append(
        "It is safe to switch on: take shadow out of the rules."
        if found.safe
        else "Not enough yet to switch on."
    )
    return told


def changes(found: ShadowReport) -> list[str]:
    """Return the rules that were changed within the record, a sentence each."""
    return [
        f"The rule {one.rule} decides as it does now since {minute(one.at)} UTC. "
        f"Its earlier events, which are not counted: {one.events}."
        for one in found.changed
    ]


def shadow_page(found: ShadowReport) -> Page:
    """Return the page of a report on shadow mode."""
    page = Page("Shadow mode", lead(sentence(found)), made="Made by eventonce shadow report.")
    if found.missing:
        wait = (
            f"At the rate so far, wait about {duration(found.wait)}."
            if found.wait is not None
            else None
        )
        # The terminal marks names with backticks; a page has no sign for them.
        missing = [one.replace("`", "") for one in found.missing]
        page.section("What is missing", *missing, wait)
    if found.changed:
        page.section("Rules that were changed", *changes(found))
    drops = [(dotted(one.type), one.count, one.rule, one.why) for one in found.by_type]
    differing = counted(found.differing, "drop has", "drops have")
    page.section(
        "What would have been dropped",
        f"{differing} another content than the original; "
        f"{number(found.unmatched)} could not be compared.",
        table(("type", "drops", "rule", "why"), drops) if drops else None,
    )
    if found.examples:
        pairs = [(data(original), data(drop)) for original, drop in found.examples]
        page.section(
            "Drops with another content",
            "By their transport ids.",
            table(("original", "drop"), pairs),
        )
    if found.guard is not None:
        page.section("Beside your guard", figure(_comparison(found.guard)))
    rows = [
        ("the record", duration(found.span), "From the first line to the last."),
        ("the longest gap", duration(found.longest_gap), "Between an original and its copy."),
        ("remembered", duration(found.remember), "The least of the rules that dropped."),
    ]
    return page.section("Times", entries(rows), tag("p", ENOUGH_NOTE, class_="note"))


def _comparison(guard: Guarded) -> plots.Plot:
    rows = [(words, (many,), place > 1) for place, (many, words) in enumerate(guard.rows)]
    said = f"The two differ in {guard.only_rules_drop + guard.only_guard_drops} events."
    return plots.bars("The rules and your guard", said, rows, ("events",))
