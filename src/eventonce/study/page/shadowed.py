"""The page of shadow mode: what the rules would have dropped, and whether to switch on."""

from __future__ import annotations

from eventonce.study.page.layout import Page, table
from eventonce.study.page.markup import tag
from eventonce.study.shadow import ShadowReport


def shadow_page(found: ShadowReport) -> Page:
    """The page of a report on shadow mode."""
    lead = (
        "It is safe to switch on: take shadow out of the rules."
        if found.safe
        else "Not enough yet to switch on."
    )
    page = Page("Shadow mode", lead, made="Made by eventonce shadow report.")
    if found.missing:
        page.section("What is missing", *found.missing)
    drops = [(one.type, one.rule, one.cause, one.count) for one in found.by_type]
    page.section(
        "What would have been dropped",
        f"{found.drops} of {found.events} events, {found.differing} of them with another content "
        f"than their original; {found.unmatched} could not be compared.",
        table(("type", "rule", "cause", "drops"), drops) if drops else None,
    )
    if found.examples:
        pairs = [list(pair) for pair in found.examples]
        page.section("Drops with another content", table(("original", "drop"), pairs))
    if found.guard is not None:
        guard = found.guard
        rows = [
            ("both run", guard.both_run),
            ("both drop", guard.both_drop),
            ("copies that your guard lets through", guard.only_rules_drop),
            ("events that your guard drops, and no rule takes for copies", guard.only_guard_drops),
        ]
        page.section("Beside your guard", table(("", "events"), rows))
    seconds = [
        ("from the first line to the last", found.span / 1000),
        ("the longest gap between an original and its copy", found.longest_gap / 1000),
        ("the shortest time that a rule remembers", found.remember / 1000),
    ]
    page.section("Times", table(("", "seconds"), seconds), tag("p", _ENOUGH, class_="note"))
    return page


_ENOUGH = (
    "Enough are 3,000 drops, none with another content, and a longest gap that fits twice into "
    "what is remembered and into the time of the record."
)
