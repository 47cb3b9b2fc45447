"""The page of `backtest`: the events that each guard loses and lets through, with examples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from eventonce.markup import (
    THIN,
    Highlight,
    Html,
    Sentence,
    counted,
    lead,
    number,
    share,
    tag,
)
from eventonce.study.backtest import Result
from eventonce.study.cost import ASSUMPTIONS
from eventonce.study.page import plots
from eventonce.study.page.layout import Page, figure, table
from eventonce.study.page.pairs import Pair, side_by_side
from eventonce.study.page.scales import duration

DIFFERS: Final = " whose content is not that of the original"
RAN_BEFORE: Final = " whose content ran before"
KNOWN_HARMS: Final = ("lost", "copies run")
POSSIBLE_HARMS: Final = ("other content", "runs alike")
WRITTEN_ANEW: Final = "written anew"
HARMS_NOTE: Final = (
    "other content: dropped, though the content differs from that of the event it is taken for. "
    "written anew: dropped, and differs only in what a publication writes anew, as far as this "
    "capture tells: a trace, a time of the notice. runs alike: run, though the content is that of "
    "an earlier run. Only the truth says which of them are wrong, and a capture has none."
)


def backtest_page(
    results: Sequence[Result],
    events: Mapping[int, Mapping[str, Any]],
    *,
    values: bool,
    made: str,
) -> Page:
    """Return the page of a backtest; `events` has the fields of the lines of the examples."""
    known = results[0].lost is not None
    ours = [one for one in results if _is_ours(one)]
    page = Page("What each guard would have done", lead(sentence(results)), made=made)
    page.section("Guards compared", _meaning(known=known), figure(guards(results)))
    page.section("All that was counted", *_table(results, known=known))
    costs = [
        (one.guard, cost.events, cost.dollars, *cost.megabytes(THIN))
        for one in results
        if (cost := one.cost)
    ]
    if costs:
        head = ("guard", "events", "DynamoDB", "Redis", "PostgreSQL", "SQLite")
        page.section("What a month costs", table(head, costs), tag("p", ASSUMPTIONS, class_="note"))
    masked = "" if values else " Values are masked."
    for title, chosen in (
        ("Drops of other content", [(one.guard, one.examples) for one in results]),
        (
            "Drops that differ in what is written anew",
            [(it.guard, it.anew_examples) for it in ours],
        ),
    ):
        pairs = _pairs(chosen, events, values=values)
        if pairs:
            page.section(
                title, f"Each was dropped as a copy of the event beside it.{masked}", *pairs
            )
    return page


def sentence(results: Sequence[Result]) -> Sentence:
    """Return the first sentence of a backtest."""
    first = results[0]
    ours = [one for one in results if _is_ours(one)]
    theirs = [one for one in results if not _is_ours(one)]
    said: list[str | Highlight] = [f"In {duration(first.span)}: " if first.span else ""]
    said.append(Highlight(counted(first.lines, "event")))
    if first.copies is not None:
        said += [", ", Highlight(share(first.copies, first.lines)), " of them copies"]
    said.append(". ")
    if theirs:
        lost, through = (max(_faults(one)[place] for one in theirs) for place in (0, 1))
        if len(theirs) == 1:
            drops, runs, loses, lets = "Your guard drops ", "runs ", "Your guard loses ", "lets "
        else:
            drops, runs = "The usual recipes drop up to ", "run up to "
            loses, lets = "The usual recipes lose up to ", "let up to "
        if first.lost is None:
            events = _harm(lost, "event")
            said += [drops, events, f"{DIFFERS}, and {runs}", _harm(through), f"{RAN_BEFORE}; "]
        else:
            copies = _harm(through, "copy", "copies")
            said += [loses, _harm(lost), f" and {lets}", copies, " through; "]
    if ours:
        best = min(ours, key=_faults)
        wrong, again = _faults(best)
        if first.lost is not None:
            said += [best.guard, " loses ", _harm(wrong), " and lets ", _harm(again), " through."]
        else:
            one, other, before = ("", "", "") if theirs else ("event", f"{DIFFERS},", RAN_BEFORE)
            said += [best.guard, " drops ", _harm(wrong, one), f"{other} and runs "]
            said += [_harm(again), f"{before}."]
            if best.written_anew:
                anew = Highlight(number(best.written_anew))
                said += [" In ", anew, " of its drops only what a publication writes anew differs."]
    return said


def _is_ours(one: Result) -> bool:
    # The name of a user's guard may be that of a file, such as eventonce-old.jsonl.
    return one.guard.partition(" ")[0] == "eventonce"


def _harm(value: int, one: str = "", many: str = "") -> Highlight:
    return Highlight(counted(value, one, many) if one else number(value), harm=value > 0)


def _faults(one: Result) -> tuple[int, int]:
    """Return the two faults of a guard: by the truth, or as far as they can be seen without it."""
    if one.lost is None:
        return one.differing, one.alike
    return one.lost, one.let_through or 0


def _meaning(*, known: bool) -> str:
    if known:
        return (
            "A lost event never takes effect; a copy that runs takes effect again. Every guard met "
            "the same deliveries, the same crashes and the same outages."
        )
    return f"{HARMS_NOTE[0].upper()}{HARMS_NOTE[1:]} Every guard met the same deliveries."


def guards(results: Sequence[Result]) -> plots.Plot:
    """Return the plot of what each guard loses and lets through."""
    known = results[0].lost is not None
    best = min(results, key=_faults)
    least = "does least wrong" if known else "has the fewest"
    return plots.bars(
        "What each guard loses and lets through" if known else "What each guard drops and runs",
        f"{best.guard} {least}: {_faults(best)[0]} and {_faults(best)[1]}.",
        [(one.guard, _faults(one), _is_ours(one)) for one in results],
        KNOWN_HARMS if known else POSSIBLE_HARMS,
    )


def _table(results: Sequence[Result], *, known: bool) -> list[Html]:
    """Return the table of all counts, with notes; columns without values are left out."""
    columns: dict[str, list[object]] = {
        "guard": [one.guard for one in results],
        "ran": [one.ran for one in results],
        "dropped": [one.dropped for one in results],
    }
    notes = []
    if any(one.superseded for one in results):
        columns["superseded"] = [one.superseded for one in results]
        notes.append(
            "Superseded are versions that a state rule need not run: older than the one applied, "
            "or the same state."
        )
    for place, name in enumerate(KNOWN_HARMS if known else POSSIBLE_HARMS):
        columns[name] = [_faults(one)[place] for one in results]
    if not known:
        columns[WRITTEN_ANEW] = [one.written_anew for one in results]
    if known:
        columns["recall"] = [_percent(one.recall) for one in results]
        columns["precision"] = [_percent(one.precision) for one in results]
        notes.append(
            "Recall is the share of copies that were dropped, precision the share of drops that "
            "were copies."
        )
    strong = [place for place, one in enumerate(results) if _is_ours(one)]
    rows = list(zip(*columns.values(), strict=True))
    return [
        tag("p", " ".join(notes), class_="note") if notes else Html(""),
        table(tuple(columns), rows, "", strong),
    ]


def _percent(value: float | None) -> str:
    if value is None:
        return ""
    return f"100{THIN}%" if value == 1 else share(value, 1)


def _pairs(
    chosen: Iterable[tuple[str, Iterable[tuple[int, int]]]],
    events: Mapping[int, Mapping[str, Any]],
    *,
    values: bool,
) -> list[Html]:
    """Return for each guard one pair for every set of fields that differs in these drops."""
    found: dict[tuple[str, ...], Html] = {}
    for guard, drops in chosen:
        for line, beside in drops:
            if line in events and beside in events:
                sides = [(f"line {number(at)}", _detail(events[at])) for at in (beside, line)]
                pair = Pair(guard, sides[0], sides[1])
                found.setdefault((guard, *pair.differing), side_by_side(pair, values=values))
    return list(found.values())


def _detail(event: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that decide whether a drop is right: not the envelope or the delivery."""
    return {path: value for path, value in event.items() if path.startswith("detail")}
