"""Copies: the lines of a capture with the same fact, and the cause of each copy.

A cause is proved by the differences between a copy and its nearest relative, the earlier line of
the same fact that has most in common with it, and by the time between the two.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, starmap
from operator import itemgetter
from typing import Final, NamedTuple

import msgspec

from eventonce.study.arrivals import Arrival, instant
from eventonce.study.causes import Cause
from eventonce.study.index import Index
from eventonce.types import Event

DOUBLE_EMISSION_GAP: Final = 500
"""Milliseconds, by the source's own clock, within which a source emits the same state twice."""
TWO_RULES_GAP: Final = 30_000
"""Milliseconds between the deliveries of two rules; a retry comes later."""
EMISSIONS_GAP: Final = 61_000
"""Milliseconds between the arrivals of two emissions: either may be delayed."""
SAME_SECOND: Final = 1_000
"""Milliseconds by which the times of two envelopes of the same moment may differ."""
EARLY: Final = 16
"""The first lines of a fact; all later lines are compared with them. Of the lines between, only
those that share a value of `NAME_FIELDS` are compared: or the time would grow with the square."""
NAME_FIELDS: Final = ("message", "id", "content")
PLACES_SHOWN: Final = 3
"""The most types and channels that are named for a cause."""
NAMES_HELD: Final = 50_000
"""The most names of lines of one fact in each of two dicts; older ones are forgotten."""

COPY_ROW: Final = {
    "line": "BIGINT",
    "copy_of": "BIGINT",
    "cause": "VARCHAR",
    "beside": "BIGINT",
    "gap": "BIGINT",
}
"""`copy_of` is the first line of the fact, `beside` the nearest relative, `gap` the milliseconds
between the arrivals of the first line and the copy."""


class Row(NamedTuple):
    """The fields of a line in the index that prove a cause."""

    fact: int
    line: int
    arrived: int | None
    source: int
    channel: int
    message: int
    receives: int
    id: int
    time: int | None
    replay: int
    content: int


def find(index: Index) -> None:
    """Fill the tables `facts` (line, fact) and `copies` of the index."""
    _join_emissions(index)
    index.table("copies", COPY_ROW)
    index.load("copies", COPY_ROW, _copy_rows(_groups(index)))


def _join_emissions(index: Index) -> None:
    """Give lines that emit one state twice the same fact: the same state of a subject, within half
    a second by the source's own clock. A line without a key is a separate fact."""
    index.run(
        """
        CREATE OR REPLACE TABLE facts AS
        WITH stated AS (
          SELECT subject, version, state, min(line) AS line, any_value(key) AS key
          FROM events WHERE subject IS NOT NULL AND key IS NOT NULL
          GROUP BY subject, version, state
        ), steps AS (
          SELECT subject, version, key,
                 state = lag(state) OVER told
                 AND version - lag(version) OVER told <= ? AS again
          FROM stated WINDOW told AS (PARTITION BY subject ORDER BY version, line)
        ), joined AS (
          SELECT key, first_value(key) OVER (PARTITION BY subject, step ORDER BY version) AS fact
          FROM (
            SELECT *, count(*) FILTER (again IS NOT TRUE)
                      OVER (PARTITION BY subject ORDER BY version, key) AS step
            FROM steps
          )
        )
        SELECT line, coalesce(learned.key, joined.fact, events.key, hash(line)) AS fact
        FROM events LEFT JOIN learned USING (line)
        LEFT JOIN (SELECT key, any_value(fact) AS fact FROM joined GROUP BY key) AS joined
          ON joined.key = events.key AND joined.fact <> events.key
        """,
        DOUBLE_EMISSION_GAP,
    )


def _groups(index: Index) -> Iterator[Iterator[Row]]:
    rows = index.rows(
        """
        SELECT fact, line, arrived, source, channel, message, receives, id, time, replay, content
        FROM events JOIN facts USING (line)
        WHERE fact IN (SELECT fact FROM facts GROUP BY fact HAVING count(*) > 1)
        ORDER BY fact, arrived, line
        """
    )
    for _, group in groupby(rows, key=itemgetter(0)):
        yield starmap(Row, group)


def _copy_rows(groups: Iterable[Iterator[Row]]) -> Iterator[bytes]:
    for group in groups:
        first = next(group)
        earlier = _Earlier(first)
        for row in group:
            beside = nearest(row, earlier.like(row))
            gap = gap_between(first, row)
            yield b"%d\t%d\t%b\t%d\t%b\n" % (
                row.line,
                first.line,
                cause(beside, row).encode(),
                beside.line,
                b"" if gap is None else b"%d" % gap,
            )
            earlier.add(row)


class _Earlier:
    """The earlier lines of one fact, up to a limit."""

    def __init__(self, first: Row) -> None:
        self._early = [first]
        self._late: dict[tuple[str, int], Row] = {}
        self._before = self._late

    def like(self, row: Row) -> list[Row]:
        """Return the lines that may be the nearest relative."""
        if not self._late:
            return self._early
        named = [(name, getattr(row, name)) for name in NAME_FIELDS]
        late = [self._late.get(name) or self._before.get(name) for name in named]
        return [*self._early, *filter(None, late)]

    def add(self, row: Row) -> None:
        if len(self._early) < EARLY:
            self._early.append(row)
            return
        if len(self._late) >= NAMES_HELD:
            self._before, self._late = self._late, {}
        for name in NAME_FIELDS:
            self._late.setdefault((name, getattr(row, name)), row)


def nearest(row: Row, earlier: Sequence[Row]) -> Row:
    """Return the earlier line of the fact that has most in common with this line."""
    return max(earlier, key=lambda other: _likeness(row, other))


def _likeness(row: Row, other: Row) -> tuple[bool, ...]:
    """Return what two lines of one fact have in common, the strongest evidence first."""
    return (
        row.message == other.message != 0,
        row.id == other.id != 0 and row.replay == other.replay,
        row.id == other.id != 0,
        row.content == other.content,
        row.source == other.source,
        row.time == other.time is not None,
        row.channel == other.channel,
    )


def cause(first: Row, copy: Row) -> Cause:
    """Return the cause of the copy, compared with this earlier line of the same fact."""
    gap = gap_between(first, copy)
    if first.message == copy.message != 0:
        # Lambda keeps the id of the request when it retries, and has no receive count.
        return "redelivery" if copy.receives else "target-retry"
    if first.replay != copy.replay:
        return "replay"
    if first.id == copy.id != 0:
        if gap is None:
            return "unknown"
        return "overlapping-rules" if gap < TWO_RULES_GAP else "target-retry"
    if first.source != copy.source:
        return "second-integration"
    # A capture without channels cannot show that both came through the same one.
    elsewhere = first.channel != copy.channel or not copy.channel or gap is None
    if first.content == copy.content and elsewhere and _near(first.time, copy.time, 0):
        return "cross-region"
    if _near(first.time, copy.time, SAME_SECOND) and (gap is None or gap <= EMISSIONS_GAP):
        return "double-emission"
    return "re-publish"


class Where(msgspec.Struct, frozen=True):
    """Where and when the copies of one cause arrive."""

    types: dict[str, int]
    """The types with the most copies."""
    more_types: int
    channels: tuple[str, ...]
    began: int | None
    ended: int | None
    """The instants of the first and the last copy, in milliseconds."""


def where(index: Index) -> dict[str, Where]:
    """Return where the copies of each cause arrive, to find and remove the cause."""
    types: dict[str, dict[str, int]] = {}
    for cause, kind, number in index.rows(
        "SELECT cause, kind, count(*) FROM copies JOIN events USING (line) "
        "GROUP BY ALL ORDER BY 3 DESC, min(line)"
    ):
        name = index.names.kinds[kind].type
        told = types.setdefault(cause, {})
        told[name] = told.get(name, 0) + number
    found = {}
    for cause, channels, began, ended in index.rows(
        "SELECT cause, list(DISTINCT channel), min(coalesce(arrived, time)), "
        "max(coalesce(arrived, time)) FROM copies JOIN events USING (line) GROUP BY cause"
    ):
        named = sorted(filter(None, (index.names.channels.get(one, "") for one in channels)))
        first = dict(list(types[cause].items())[:PLACES_SHOWN])
        more = len(types[cause]) - len(first)
        found[cause] = Where(first, more, tuple(named[:PLACES_SHOWN]), began, ended)
    return found


def row_of(arrival: Arrival, line: int) -> Row | None:
    """Return the fields of an arrival that prove a cause; None if it is no event."""
    event = arrival.event
    if not isinstance(event, Event):
        return None
    return Row(
        fact=0,
        line=line,
        arrived=arrival.arrived,
        source=hash(event.source),
        channel=hash(arrival.channel),
        message=hash(arrival.message) if arrival.message else 0,
        receives=arrival.receives,
        id=hash(event.id) if event.id else 0,
        time=instant(event.time),
        replay=1 if event.replay else 0,
        content=hash(bytes(event.detail_raw)),
    )


def gap_between(first: Row, copy: Row) -> int | None:
    """Return the milliseconds between the arrivals; None if the capture does not have both."""
    if first.arrived is None or copy.arrived is None:
        return None
    return copy.arrived - first.arrived


def _near(one: int | None, other: int | None, most: int) -> bool:
    return one is not None and other is not None and abs(one - other) <= most
