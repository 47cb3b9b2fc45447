"""Windows: for each length of memory, the share of copies that the keys in use would drop, and the
number of genuine events dropped; without labels.

Two events with one key are copies if they have the same transport id, or the same content. Any
other drop is wrong, and is counted. Genuine events that equal an earlier one cannot be told from
copies; their rate (the background) is that of equal keys so far apart that no retry explains them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from itertools import groupby, islice
from operator import itemgetter
from typing import Any, Final

import msgspec

from eventonce.study.copies import EMISSIONS_GAP, SAME_SECOND
from eventonce.study.index import Index
from eventonce.study.units import DAY, HOUR, MINUTE, SECOND

GRID: Final = (
    *(10 * SECOND, 30 * SECOND, MINUTE, 2 * MINUTE, 5 * MINUTE, 15 * MINUTE, HOUR),
    *(6 * HOUR, DAY, 2 * DAY, 4 * DAY, 5 * DAY, 8 * DAY),
)
NO_RETRY_AFTER: Final = 5 * DAY
"""Milliseconds after which no retry comes: a later equal event is a genuine repeat."""
MOST_ROWS: Final = 500_000
"""The most lines that are read: of more, a share of the keys is read, and counts are scaled."""
MOST_OF_A_KEY: Final = 100_000
"""The most lines of one key that are read: of more, the first ones, and counts are scaled."""
PROPOSED_RULES: Final = "proposed rules"
"""The name in place of a rule's, for learned keys."""
RULES_SHOWN: Final = 10
"""The most rules shown separately: those with most wrong drops first, then with most copies."""
COPIES_TO_SHOW: Final = 100
"""Copies that a rule without wrong drops needs to be shown separately: with so many, a share is
known within ten points."""


class Window(msgspec.Struct, frozen=True):
    """The effect of a memory of this length."""

    length: int
    """Milliseconds."""
    caught: int
    """Copies that the window drops."""
    share: float
    """The share of all copies, including copies under other keys."""
    differing: int
    """Drops of events that differ from every run under the key."""
    repeats: float | None
    """Expected drops of genuine events that equal an earlier one; None if the capture is too
    short."""
    at_most: float | None
    """The limit of all wrong drops, with 95 % confidence."""

    @property
    def wrong(self) -> float:
        """The expected wrong drops."""
        return self.differing + (self.repeats or 0)


class Windows(msgspec.Struct, frozen=True):
    """The windows of one rule, or of all rules together."""

    rule: str
    """The name of the rule; empty for all."""
    copies: int
    beyond: int
    """Equal events so far apart that no retry explains them."""
    observed: int
    """Milliseconds of the capture beyond that distance from its beginning."""
    grid: tuple[Window, ...]


class _Counts:
    """The counts of one rule."""

    def __init__(self) -> None:
        self.copies = 0
        self.beyond = 0
        self.caught = [0] * len(GRID)
        self.differing = [0] * len(GRID)
        self.repeats = [0.0] * len(GRID)

    def add(self, other: _Counts, times: float = 1) -> None:
        """Add the counts of the other, multiplied by `times`."""
        self.copies += round(other.copies * times)
        self.beyond += round(other.beyond * times)
        for number in range(len(GRID)):
            self.caught[number] += round(other.caught[number] * times)
            self.differing[number] += round(other.differing[number] * times)
            self.repeats[number] += other.repeats[number] * times


def windows_of(
    index: Index,
    timed: Collection[int],
    rules: dict[int, str],
    span: int,
    missed: int,
) -> tuple[Windows, ...]:
    """Return the windows of all rules together, and of each rule that drops genuine events or has
    enough copies.

    `timed` are the kinds whose content has the time of the event, so that equal content is a copy
    however late it comes; `rules` has the rule of each kind; `missed` are the copies that no window
    drops, because they have another key.
    """
    total = _Counts()
    counts: dict[str, _Counts] = {"": total}
    rows, one_in = _rows(index, "events")
    for lines, weight in _groups(rows):
        told = counts.setdefault(rules.get(lines[0][1], ""), _Counts())
        _count(lines, weight, told, span, timed=lines[0][1] in timed)
    for rule in [*counts][1:]:
        total.add(counts[rule])
    enough = -(-COPIES_TO_SHOW // one_in)
    told_apart = sorted(
        (
            rule
            for rule, it in counts.items()
            if rule and (it.differing[-1] or it.beyond or it.copies >= enough)
        ),
        key=lambda rule: (
            *(-counts[rule].differing[-1], -counts[rule].beyond, -counts[rule].copies),
            rule,
        ),
    )
    found = [
        _windows(rule, counts[rule], one_in, span, missed if not rule else 0)
        for rule in ("", *told_apart[:RULES_SHOWN])
    ]
    rows, one_in = _rows(index, "learned")
    proposed = _Counts()
    for lines, weight in _groups(rows):
        _count(lines, weight, proposed, span, timed=lines[0][1] in timed)
    if proposed.copies:
        found.append(_windows(PROPOSED_RULES, proposed, one_in, span, 0))
    return tuple(found)


def _groups(rows: Iterator[tuple[Any, ...]]) -> Iterator[tuple[list[tuple[Any, ...]], float]]:
    """Yield the lines of each key that are read, and the factor to all its lines."""
    for _, group in groupby(rows, key=itemgetter(0)):
        lines = list(islice(group, MOST_OF_A_KEY))
        yield lines, 1 + sum(1 for _ in group) / len(lines)  # noqa: B031  the rest of it


def _rows(index: Index, table: str) -> tuple[Iterator[tuple[Any, ...]], int]:
    """Return key, kind, arrival, transport id, content and essence of lines with a shared key, by
    key; and n, if only one in n keys is read. `table` has the keys."""
    share = f"FROM {table} WHERE hash(key) % ? = 0 GROUP BY key HAVING count(*) > 1"
    (number,) = next(index.rows(f"SELECT count(key) FROM {table}"))  # noqa: S608  one of ours
    one_in = max(1, number // MOST_ROWS)
    if one_in > 1:
        # Most keys have one line; a share of the keys shows how many have more.
        shared = f"SELECT sum(least(count(*), {MOST_OF_A_KEY})) OVER () {share} LIMIT 1"
        (some,) = next(index.rows(shared, one_in), (0,))
        one_in = max(1, -(-int(some) * one_in // MOST_ROWS))
    key = f"{table[0]}.key"
    rows = index.rows(
        f"""
        SELECT {key} AS key, e.kind, coalesce(e.arrived, e.time) AS came, e.id,
               coalesce(l.content, e.content) AS content, e.essence, e.time
        FROM events e LEFT JOIN learned l USING (line)
        WHERE replay = 0 AND coalesce(arrived, time) IS NOT NULL AND {key} IN (SELECT key {share})
        ORDER BY key, came
        """,  # noqa: S608  one of ours
        one_in,
    )
    return rows, one_in


def _count(
    lines: Sequence[tuple[Any, ...]], weight: float, told: _Counts, span: int, *, timed: bool
) -> None:
    """Count the lines of one key, multiplied by `weight`."""
    if weight > 1:
        some = _Counts()
        _count(lines, 1, some, span, timed=timed)
        told.add(some, weight)
        return
    first = lines[0][2]
    latest = lines[-1][2]
    facts = _facts(lines, timed=timed)
    told.copies += len(lines) - len(set(facts))
    if latest - first > NO_RETRY_AFTER:
        _count_repeats(lines, facts, told, span)
    times = [line[2] for line in lines]
    caught = lost = 0
    for number, length in enumerate(GRID):
        # A window longer than the whole time has the result of the one before it.
        if not number or latest - first >= GRID[number - 1]:
            caught, lost = _dropped(times, facts, length)
        told.caught[number] += caught
        told.differing[number] += lost


def _count_repeats(
    lines: Sequence[tuple[Any, ...]], facts: Sequence[int], told: _Counts, span: int
) -> None:
    """Count pairs of equal events so far apart that no retry explains them. If events repeat at
    random, pairs are as frequent at each shorter distance: with a mean of q repeats in a window,
    each run is followed by q drops."""
    sent: dict[int, dict[int, int]] = {}
    for line, fact in zip(lines, facts, strict=True):
        # A redelivery of the same message is no repeat.
        sent.setdefault(fact, {}).setdefault(line[3] or line[2], line[2])
    for by_id in sent.values():
        times = sorted(by_id.values())
        pairs = sum(bisect_left(times, at - NO_RETRY_AFTER) for at in times)
        if not pairs:
            continue
        told.beyond += pairs
        rate = pairs / len(times) / _exposure(NO_RETRY_AFTER, span, span)
        for number, length in enumerate(GRID):
            mean = rate * _exposure(0, min(length, span), span)
            told.repeats[number] += len(times) * mean / (1 + mean)


def _dropped(times: Sequence[int], facts: Sequence[int], length: int) -> tuple[int, int]:
    """Return how many copies such a window drops, and how many facts it never runs."""
    until, caught = -1, 0
    ran, dropped = set[int](), set[int]()
    for at, fact in zip(times, facts, strict=True):
        if at >= until:
            until = at + length
            ran.add(fact)
        else:
            caught += fact in ran or fact in dropped
            dropped.add(fact)
    return caught, len(dropped - ran)


def _facts(lines: Sequence[tuple[Any, ...]], *, timed: bool) -> list[int]:
    """Return for each line the number of its fact, by id and content."""
    known: dict[tuple[str, int], tuple[int, int, int | None]] = {}
    facts: list[int] = []
    for number, (_, _, at, transport, content, essence, sent) in enumerate(lines):
        names = [("content", content), ("essence", essence)]
        if transport:
            names.append(("id", transport))
        fact = number
        for name in names:
            before = known.get(name)
            if before and (name[0] != "essence" or timed or _at_once(before, at, sent)):
                fact = before[0]
                break
        for name in names:
            known[name] = (fact, at, sent)
        facts.append(fact)
    return facts


def _at_once(before: tuple[int, int, int | None], at: int, sent: int | None) -> bool:
    """Return whether the source emitted the same twice at once, with another time of the notice."""
    _, earlier, sent_before = before
    if sent is None or sent_before is None:
        return at - earlier <= SAME_SECOND
    return at - earlier <= EMISSIONS_GAP and abs(sent - sent_before) <= SAME_SECOND


def _windows(rule: str, told: _Counts, one_in: int, span: int, missed: int) -> Windows:
    observed = max(0, span - NO_RETRY_AFTER)
    copies = told.copies * one_in + missed
    grid = []
    counted = zip(GRID, told.caught, told.differing, told.repeats, strict=True)
    for length, caught, differing, expected in counted:
        repeats = at_most = None
        if observed:
            repeats = expected * one_in
            bound = _exposure(0, min(length, span), span) / _exposure(NO_RETRY_AFTER, span, span)
            bound = expected / told.beyond if told.beyond else bound
            at_most = (_upper(differing) + _upper(told.beyond) * bound) * one_in
        share = caught * one_in / copies if copies else 1.0
        grid.append(Window(length, caught * one_in, share, differing * one_in, repeats, at_most))
    return Windows(rule, copies, told.beyond * one_in, observed, tuple(grid))


def _exposure(begin: int, end: int, span: int) -> float:
    """Return how much of a capture can show two events at distances from begin to end: the longer
    the distance, the fewer pairs are within the capture."""
    return (end - begin) - (end**2 - begin**2) / (2 * span)


def _upper(count: int) -> float:
    """Return the mean for which a Poisson count is as low as this in only 5 % of cases (Wilson and
    Hilferty's approximation: 3.0 for a count of 0)."""
    n = count + 1
    return float(n * (1 - 1 / (9 * n) + 1.645 / (3 * n**0.5)) ** 3)
