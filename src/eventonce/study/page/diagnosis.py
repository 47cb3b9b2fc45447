"""The page of `diagnose`: the causes of the copies, their lateness, and what to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, Final

from eventonce.markup import (
    Highlight,
    Html,
    Sentence,
    counted,
    dotted,
    joined,
    lead,
    number,
    share,
    tag,
)
from eventonce.study.causes import REMEDIES
from eventonce.study.copies import Where
from eventonce.study.diagnose import LATENESS_MARKS, Diagnosis, KindReport, Late
from eventonce.study.examples import Example
from eventonce.study.findings import Finding
from eventonce.study.over_time import BINS_PER_DECADE, OverTime
from eventonce.study.page import plots
from eventonce.study.page.layout import Page, entries, figure, folded, listing, table
from eventonce.study.page.pairs import Pair, side_by_side
from eventonce.study.page.scales import duration, minute
from eventonce.study.page.scatter import Point, scatter
from eventonce.study.proposals import toml
from eventonce.study.units import DAY, HOUR, MINUTE
from eventonce.study.windows import GRID, Windows

MOST_MAPS: Final = 3
"""The number of types with a field map."""
LATENESS_RANGE: Final = (100, 10 * DAY)
"""The drawn range of lateness, in milliseconds; values outside are at the edge."""
TIMES_NOTE: Final = "When the copies of each cause arrive, in UTC. Each row has a scale of its own."
LATE_NOTE: Final = (
    "30 s is the visibility time-out of a queue, 1 and 2 minutes are Lambda's retries, 5 minutes "
    "the memory of a FIFO queue, 24 hours the end of EventBridge's retries, and 4 days the end of "
    "Genesys'. The numbers above count the copies between two marks."
)
WINDOWS_NOTE: Final = (
    "The share is of all copies, also of those that the rules in use give another key. The broken "
    "line is what is expected, the other what 95 of 100 such captures stay under."
)
RULES_NOTE: Final = (
    "Each rule by itself; the share is of the copies that have its key. Open a rule to see it "
    "against the window."
)
ROLE_CLASS: Final = {"identity": "accent", "order": "accent", "time": "accent", "volatile": "harm"}


def diagnosis_page(
    found: Diagnosis,
    examples: Sequence[Example],
    events: Mapping[int, Mapping[str, Any]],
    *,
    values: bool,
    made: str,
) -> Page:
    """Return the page of a diagnosis; `events` has the fields of the lines of the examples."""
    page = Page("What the copies of a capture are", lead(sentence(found)), made=made)
    if found.copies:
        _copies(page, found)
    if found.proposals:
        page.section(
            "Proposed rules",
            "For sources that no rule in use knows, learned from their own events and tried on all "
            "of them. Each stands here with its evidence.",
            listing(toml(found.proposals)),
        )
    if found.findings:
        groups = groupby(found.findings, key=lambda one: one.text)
        page.section("Worth a look", *(_finding(text, list(some)) for text, some in groups))
    maps = [kind for kind in found.kinds if kind.copies and any(_mapped(kind))][:MOST_MAPS]
    if maps:
        page.section(
            "Which fields tell events apart",
            "A field in which copies agree and other events do not can be part of a key. One in "
            "which copies differ must not be.",
            *(joined(tag("h3", dotted(kind.type)), figure(field_map(kind))) for kind in maps),
        )
    pairs = [
        side_by_side(
            Pair(one.why, _side(one.beside, events), _side(one.line, events)), values=values
        )
        for one in examples
        if one.line in events and one.beside in events
    ]
    if pairs:
        page.section(
            "Copies beside their originals",
            "An example of each cause." + ("" if values else " Values are masked."),
            *pairs,
        )
    return page


def _side(line: int, events: Mapping[int, Mapping[str, Any]]) -> tuple[str, Mapping[str, Any]]:
    return f"line {number(line)}", events[line]


def sentence(found: Diagnosis) -> Sentence:
    """Return the first sentence of a diagnosis."""
    span = (found.ended or 0) - (found.began or 0)
    began = f"In {duration(span)}: " if span else ""
    keyless = sum(one.count for one in found.findings if one.code == "no-key")
    lines = counted(found.lines, "line" if keyless else "event")
    told: list[str | Highlight] = [began, Highlight(lines)]
    if keyless:
        told += [", ", Highlight(number(keyless), harm=True), " of them without a key"]
    if not found.copies:
        return [*told, ", and no copy was found among them."]
    copies = Highlight(share(found.copies, found.lines))
    told += [", ", copies, " of them copies. The rules in use "]
    if found.let_through:
        told += ["let ", Highlight(number(found.let_through), harm=True), " of them through"]
    else:
        told.append("recognise every one")
    wrong = round(found.windows[0].grid[-1].wrong) if found.windows else 0
    merged = sum(one.count for one in found.findings if one.code == "merged")
    if wrong:
        told += [", and drop about ", Highlight(counted(wrong, "genuine event"), harm=True)]
    elif merged:
        told += [", and drop about ", Highlight(counted(merged, "event"), harm=True)]
        told.append(" whose content is not that of the original")
    return [*told, "."]


def covering(late: Late) -> str:
    """Return a sentence about the latest copy, and the window that covers it."""
    # Not a window into which the latest copy only just fits.
    cover = next((length for length in GRID if length > 1.1 * late.longest), 2 * late.longest)
    return (
        f"The latest copy comes {duration(late.longest)} after the first: a window of "
        f"{duration(cover)} covers all of them."
    )


def untold(found: Diagnosis) -> str:
    """Return a sentence about copies with unknown lateness."""
    copies = found.copies - sum(found.late.histogram.values())
    if not copies:
        return ""
    return (
        f"Not counted here: {counted(copies, 'copy', 'copies')} whose arrival the capture does not "
        "tell. Windows are tried on them by the times of the events, which copies share: every "
        "window seems to drop them."
    )


def _copies(page: Page, found: Diagnosis) -> None:
    page.section(
        "Why the copies are there",
        by_cause(found.causes, found.where),
        figure(causes_over_time(found.over_time), TIMES_NOTE) if found.over_time else None,
    )
    page.section(
        "How late copies come",
        covering(found.late) if found.late.bins else None,
        untold(found),
        figure(lateness(found.late), LATE_NOTE) if found.late.bins else None,
    )
    if found.windows:
        whole = found.windows[0]
        page.section(
            "Which window to choose",
            repeats(whole),
            figure(windows_plot(whole), WINDOWS_NOTE),
            *_by_rule(found.windows[1:]),
        )
    types = [
        (dotted(kind.type), kind.events, kind.copies, kind.rule, _most(kind))
        for kind in found.kinds
        if kind.copies
    ]
    head = ("type", "events", "copies", "rule", "causes")
    page.section(
        "Types with copies",
        folded(f"{counted(len(types), 'type')}", table(head, types), opened=len(types) <= 12),
    )


def by_cause(causes: Mapping[str, int], where: Mapping[str, Where]) -> Html:
    """Return the number of copies of each cause, the remedy, and the places."""
    total = sum(causes.values())
    return entries(
        [
            (
                cause,
                joined(number(copies), tag("small", share(copies, total))),
                joined(
                    _sentence(REMEDIES[cause]),
                    tag("small", place(where[cause])) if cause in where else None,
                ),
            )
            for cause, copies in causes.items()
        ]
    )


def place(where: Where) -> str:
    """Return types, channels and times."""
    more = f" and {counted(where.more_types, 'more type')}" if where.more_types else ""
    text = ", ".join(where.types) + more
    if where.channels:
        text += f", through {', '.join(where.channels)}"
    if where.began is not None and where.ended is not None:
        text += f", from {minute(where.began)} to {minute(where.ended)}"
    return text


def _most(kind: KindReport) -> str:
    return ", ".join(f"{number(copies)} {cause}" for cause, copies in kind.causes.items())


def repeats(windows: Windows) -> str:
    """Return a sentence about genuine events that repeat."""
    if not windows.observed:
        return (
            "Not enough yet to see events that repeat by themselves: the capture must be longer "
            "than 5 days."
        )
    if not windows.beyond:
        return (
            "No two equal events are further apart than any retry reaches, 5 days: events do not "
            "seem to repeat by themselves."
        )
    equal = counted(windows.beyond, "pair of equal events is", "pairs of equal events are")
    return (
        f"{equal} further apart than any retry reaches, 5 days: so often events repeat by "
        "themselves, and would be dropped wrongly."
    )


def _by_rule(rules: Sequence[Windows]) -> list[Html]:
    """Return the windows of each rule, folded below a summary of its longest window."""
    said = [tag("p", RULES_NOTE)] if rules else []
    for one in rules:
        last = one.grid[-1]
        wrong = _rounded(last.wrong)
        most = "or more" if last.at_most is None else f"to {_rounded(last.at_most)}"
        words = (
            f"{one.rule}: {counted(one.copies, 'copy', 'copies')}; {duration(last.length)} drop "
            f"{share(last.share, 1)} of them, and {wrong} {most} genuine events"
        )
        said.append(folded(words, figure(windows_plot(one))))
    return said


def windows_plot(windows: Windows) -> plots.Plot:
    """Return the plot of the copies and the genuine events dropped by each length of memory."""
    last = windows.grid[-1]
    bounds = [(one.length, one.at_most) for one in windows.grid if one.at_most is not None]
    expected = [(one.length, one.wrong) for one in windows.grid]
    name = "genuine events dropped"
    return plots.curves(
        f"What windows would do{f': {windows.rule}' if windows.rule else ''}",
        f"A window of {duration(last.length)} drops {share(last.share, 1)} of the copies.",
        [
            plots.Curve(
                "copies dropped",
                [(one.length, one.share) for one in windows.grid],
                "accent",
                lambda value: share(value, 1),
                1.0,
            ),
            plots.Curve(f"{name}, at most (95 %)", bounds, "harm", _rounded, None, expected)
            if bounds
            else plots.Curve(f"{name}, at least", expected, "harm", _rounded),
        ],
        [mark for mark in LATENESS_MARKS if mark[0] > windows.grid[0].length],
        (windows.grid[0].length, last.length),
        duration,
    )


def _rounded(value: float) -> str:
    return number(round(value))


def causes_over_time(counted_: OverTime) -> plots.Plot:
    """Return the plot of the arrival times of copies by cause."""
    first = next(iter(counted_.causes), "")
    step = {MINUTE: "a minute", HOUR: "an hour", DAY: "a day"}.get(
        counted_.step, f"in {duration(counted_.step)}"
    )
    return plots.timelines(
        "Copies by cause over time",
        f"Most copies are of the cause {first}.",
        counted_.causes,
        counted_.began,
        counted_.step,
        step,
    )


def lateness(late: Late) -> plots.Plot:
    """Return the plot of lateness, with the marks of transports."""
    bins = [
        (10 ** (place / BINS_PER_DECADE), 10 ** ((place + 1) / BINS_PER_DECADE), copies)
        for place, copies in late.bins.items()
    ]
    return plots.histogram(
        "How late copies come",
        f"The latest comes after {duration(late.longest)}.",
        _clipped(bins),
        LATENESS_MARKS,
        tuple(late.histogram.values()),
        LATENESS_RANGE,
    )


def _clipped(bins: Sequence[tuple[float, float, int]]) -> list[tuple[float, float, int]]:
    """Return the bins that are drawn; earlier ones are added to the first."""
    low = LATENESS_RANGE[0]
    shown = [one for one in bins if one[0] >= low]
    early = sum(copies for begin, _, copies in bins if begin < low)
    width: float = 10 ** (1 / BINS_PER_DECADE)
    begin, end, copies = shown[0] if shown and shown[0][0] < low * 1.01 else (low, low * width, 0)
    rest = shown[1:] if copies else shown
    return [(begin, end, copies + early), *rest] if early else shown


def _mapped(kind: KindReport) -> list[Point]:
    return [
        Point(
            field.path.removeprefix("detail.").removeprefix("eventBody."),
            max(field.u, 1e-4),
            field.m,
            ROLE_CLASS.get(field.role, ""),
        )
        for field in kind.fields
        if field.m is not None
    ]


def field_map(kind: KindReport) -> plots.Plot:
    """Return the plot of the fields of a type: m against u."""
    by_role = groupby(kind.fields, key=lambda field: field.role)
    said = "; ".join(
        f"{role}: {', '.join(field.path for field in fields)}" for role, fields in by_role
    )
    return scatter(
        kind.type,
        said,
        _mapped(kind),
        ("u: how often random events agree", "m: how often copies agree"),
        [
            (1e-4, 0.6, "may be part of a key"),
            (1, 0.6, "too common for a key"),
            (1, 0.2, "must not be in a key"),
        ],
        1e-4,
    )


def _sentence(text: str) -> str:
    first = text.partition(" ")[0]
    return f"{text[:1].upper() if first.isalpha() else text[:1]}{text[1:]}."


def _finding(text: str, some: Sequence[Finding]) -> Html:
    rows = [
        (dotted(one.type), one.count, f"line {number(one.lines[0])}" if one.lines else "")
        for one in some
    ]
    head = ("type", "events", "such as")
    total = sum(one.count for one in some)
    return joined(
        tag("p", _sentence(text)),
        folded(f"{counted(total, 'event')} of {counted(len(rows), 'type')}", table(head, rows)),
    )
