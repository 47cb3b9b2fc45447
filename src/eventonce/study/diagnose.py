"""The diagnosis of a capture: its copies and their causes, the fields that tell events apart,
suspicious events, and better rules.

The production planner makes the keys. For a source without a business key, volatile fields and a
key are learned from its events, and tried on all of them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from eventonce.rules.explanation import Strength
from eventonce.study import copies
from eventonce.study.copies import Where
from eventonce.study.fields import NOTICE_PATHS, Field
from eventonce.study.findings import Finding, findings_of
from eventonce.study.index import Index
from eventonce.study.learning import LEARNED_ROW, Known, Pool, kinds_of, learn
from eventonce.study.over_time import OverTime, late_bins, let_through, over_time
from eventonce.study.proposals import Proposal, proposals_of
from eventonce.study.sampled import field_maps, merged_of, sampled, shown_of
from eventonce.study.windows import Windows, windows_of

LATENESS_MARKS: Final = (
    (1_000, "1 s"),
    (30_000, "30 s"),
    (60_000, "1 min"),
    (120_000, "2 min"),
    (300_000, "5 min"),
    (3_600_000, "1 h"),
    (86_400_000, "24 h"),
    (4 * 86_400_000, "4 d"),
)
"""The marks of lateness: an immediate copy, a visibility time-out, Lambda's two retries, the memory
of a FIFO queue, and the ends of EventBridge's and Genesys' retries."""


class KindReport(msgspec.Struct, frozen=True):
    """The findings about one type."""

    source: str
    type: str
    rule: str
    strength: Strength | None
    """The strength of the rule's key; None if there is no key."""
    events: int
    copies: int
    causes: dict[str, int]
    fields: tuple[Field, ...] = ()


class Late(msgspec.Struct, frozen=True):
    """The lateness of copies."""

    histogram: dict[str, int]
    """Copies later than the mark before, up to this one."""
    longest: int
    """The latest copy, in milliseconds."""
    beyond: int
    """Equal events so far apart that no retry explains them."""
    observed: int
    """Milliseconds of the capture beyond that distance from its beginning."""
    bins: dict[int, int] = {}
    """Copies by lateness in fine steps: bin b begins at 10 ** (b / 8) milliseconds."""


class Diagnosis(msgspec.Struct, frozen=True):
    """The findings about a capture."""

    lines: int
    copies: int
    began: int | None
    ended: int | None
    causes: dict[str, int]
    kinds: tuple[KindReport, ...]
    late: Late
    findings: tuple[Finding, ...]
    proposals: tuple[Proposal, ...]
    let_through: int = 0
    """Copies that the rules in use do not recognise."""
    over_time: OverTime | None = None
    where: dict[str, Where] = {}
    """The places of the copies by cause."""
    windows: tuple[Windows, ...] = ()
    """The windows of all rules together, then of each rule with genuine drops or enough copies."""


def diagnose(index: Index) -> Diagnosis:
    """Return the diagnosis of the capture in this filled index."""
    kinds = kinds_of(index)
    index.table("learned", LEARNED_ROW)
    pools = learn(index, {kind: one for kind, one in kinds.items() if one.weak})
    copies.find(index)
    return _counted(index, kinds, pools)


def _counted(index: Index, kinds: dict[int, Known], pools: Sequence[Pool]) -> Diagnosis:
    causes: dict[int, Counter[str]] = defaultdict(Counter)
    query = "SELECT kind, cause, count(*) FROM copies JOIN events USING (line) GROUP BY ALL"
    for hashed, cause, number in index.rows(f"{query} ORDER BY 3 DESC, 2"):
        causes[hashed][cause] += number
    sources = {
        hashed: index.names.sources.get(source, "")
        for hashed, source in index.rows("SELECT kind, mode(source) FROM events GROUP BY kind")
    }
    learned = {kind for pool in pools if pool.learned.key for kind in pool.kinds}
    shown = shown_of(
        index, [kind for kind in kinds if kinds[kind].kind.rule and kind not in learned]
    )
    merged = merged_of(index, learned)
    looked = sampled(index, [*shown.values(), *merged.values()])
    maps = field_maps(shown, looked.samples, pools)
    reports = [
        KindReport(
            sources.get(hashed, ""),
            known.kind.type,
            known.kind.rule,
            known.strength,
            known.events,
            causes[hashed].total(),
            dict(causes[hashed].most_common()),
            maps.get(hashed, ()),
        )
        for hashed, known in kinds.items()
    ]
    reports.sort(key=lambda report: (-report.copies, -report.events, report.type))
    total: Counter[str] = Counter()
    for counted in causes.values():
        total.update(counted)
    began, ended = next(
        index.rows("SELECT min(coalesce(arrived, time)), max(coalesce(arrived, time)) FROM events")
    )
    span = 0 if began is None else ended - began
    missed = let_through(index)
    timed = {kind for kind, found in maps.items() if any(_tells_when(field) for field in found)}
    rules = {kind: one.kind.rule for kind, one in kinds.items()}
    windows = windows_of(index, timed, rules, span, missed)
    return Diagnosis(
        index.lines,
        total.total(),
        began,
        ended,
        dict(total.most_common()),
        tuple(reports),
        _late(index, windows[0]),
        findings_of(index, kinds, learned, shown | merged, looked),
        tuple(proposals_of(index, kinds, pools)),
        missed,
        over_time(index, began, ended),
        copies.where(index),
        windows,
    )


def _tells_when(field: Field) -> bool:
    """Return whether this field is the time of the event, or its number."""
    return (field.happened or field.counter) and not field.path.startswith(NOTICE_PATHS)


def _late(index: Index, windows: Windows) -> Late:
    histogram = {}
    before = -1
    for mark, name in (*LATENESS_MARKS, (1 << 62, "more")):
        (number,) = next(
            index.rows("SELECT count(*) FROM copies WHERE gap > ? AND gap <= ?", before, mark)
        )
        histogram[name] = number
        before = mark
    (longest,) = next(index.rows("SELECT max(gap) FROM copies"))
    return Late(histogram, longest or 0, windows.beyond, windows.observed, late_bins(index))


def lines_of(index: Index) -> Iterator[dict[str, Any]]:
    """Yield for each line of the capture the line that it is a copy of, and the cause."""
    query = "SELECT line, copy_of, cause FROM events LEFT JOIN copies USING (line) ORDER BY line"
    for line, copy_of, cause in index.rows(query):
        yield {"line": line, "copy_of": copy_of, "cause": cause}
