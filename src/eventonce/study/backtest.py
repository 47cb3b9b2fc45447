"""Backtest: which events of a capture guards would have run and dropped, and the cost of that.

Every guard gets the same deliveries, crashes and outages. With the truth of a simulated capture,
lost events and copies that ran are counted; without it, only what can be seen from outside.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import msgspec

from eventonce.errors import ConfigError
from eventonce.sources.files import Capture
from eventonce.study import fields
from eventonce.study.arrivals import arrival, instant
from eventonce.study.cost import Cost, cost
from eventonce.study.fields import Sample
from eventonce.study.guards import (
    AGAIN,
    CRASH,
    NO_ORDER,
    OUTAGE,
    REDELIVERY_DELAY,
    DecidedGuard,
    Guard,
    Look,
    RulesGuard,
)
from eventonce.study.index import UINT64_MASK, samples_at
from eventonce.study.learning import MOST_SAMPLES
from eventonce.study.scratch import Scratch
from eventonce.types import Event

IS_DROPPED: Final = "status NOT IN ('run', 'stale', 'unchanged')"
IS_SUPERSEDED: Final = "status IN ('stale', 'unchanged')"
LOOK_ROW: Final = {
    "guard": "UTINYINT",
    "key": "UBIGINT",
    "arrived": "BIGINT",
    "line": "BIGINT",
    "stamp": "BIGINT",
    "version": "BIGINT",
    "remember": "BIGINT",
    "within": "BIGINT",
    "fault": "UTINYINT",
}
LINE_ROW: Final = {"line": "BIGINT", "content": "UBIGINT", "fact": "BIGINT"}
SAID_ROW: Final = {"line": "BIGINT", "said": "UBIGINT"}
STATUS_ROW: Final = {"guard": "UTINYINT", "line": "BIGINT", "status": "VARCHAR", "beside": "BIGINT"}


Form = tuple[str, str]
"""Organisation and type."""


class Faults(msgspec.Struct, frozen=True):
    """The simulated faults, as shares; the same for every guard."""

    crashes: float = 0.001
    """The share of deliveries in which the worker dies during its work."""
    outages: float = 0.001
    """The share of minutes in which the store cannot be reached."""


class Result(msgspec.Struct, frozen=True):
    """The result of one guard on the capture."""

    guard: str
    lines: int
    ran: int
    dropped: int
    superseded: int
    """Versions that a state rule need not run: older than the one applied, or the same state."""
    dead_letters: int
    differing: int
    """Drops whose content differs from the original's in more than the fields that a publication
    writes anew."""
    alike: int
    """Runs with the same content as an earlier run."""
    lost: int | None
    """Facts that arrived and never ran, by the truth; None without it."""
    let_through: int | None
    """Runs beyond the first of a fact, by the truth."""
    examples: tuple[tuple[int, int], ...] = ()
    """Dropped lines, each with its supposed original; their contents differ."""
    copies: int | None = None
    """Lines beyond the first of a fact, by the truth."""
    span: int = 0
    """Milliseconds from the first arrival of the capture to the last."""
    cost: Cost | None = None
    """The cost of eventonce for a month at this rate."""
    written_anew: int = 0
    """Drops that differ only in fields that a publication writes anew, as far as can be seen."""
    anew_examples: tuple[tuple[int, int], ...] = ()
    """Like `examples`, for the drops of `written_anew`."""
    kept: tuple[tuple[int, int], ...] = ()
    """Lines that ran, each with an earlier run of the same content."""

    @property
    def recall(self) -> float | None:
        """The share of copies that were dropped."""
        if self.let_through is None:
            return None
        copies = self.let_through + self.dropped - (self.lost or 0)
        return (self.dropped - (self.lost or 0)) / copies if copies else 1.0

    @property
    def precision(self) -> float | None:
        """The share of drops that were copies."""
        if self.lost is None:
            return None
        return (self.dropped - self.lost) / self.dropped if self.dropped else 1.0


def backtest(
    capture: Capture,
    guards: Sequence[Guard],
    truth: Path | None = None,
    faults: Faults = Faults(),  # noqa: B008  frozen
) -> list[Result]:
    """Return the result of each guard on this capture."""
    with Scratch() as scratch:
        scratch.table("looks", LOOK_ROW)
        scratch.table("lines", LINE_ROW)
        scratch.table("decided", STATUS_ROW)
        facts = None if truth is None else _facts(truth)
        lines = _read(scratch, capture, guards, facts, faults)
        decided = {it.name: it.decisions for it in guards if isinstance(it, DecidedGuard)}
        for name, left in {"the truth": facts or iter(()), **decided}.items():
            # A capture that could not be read to its end leaves something over.
            if not capture.unread and next(left, None) is not None:
                raise ConfigError(
                    f"{name} goes on after line {lines}: it belongs to another capture"
                )
        for number, guard in enumerate(guards):
            scratch.load("decided", STATUS_ROW, _decided(scratch, number, guard))
        scratch.run(
            f"""
            CREATE OR REPLACE TABLE drops AS
            SELECT guard, d.line, d.beside, a.content <> b.content AS changed
            FROM decided d JOIN lines a USING (line) JOIN lines b ON b.line = d.beside
            WHERE {IS_DROPPED}
            """  # noqa: S608  a text of ours
        )
        _compare_contents(scratch, capture)
        return [
            _result(scratch, number, guard, lines, known=truth is not None)
            for number, guard in enumerate(guards)
        ]


def _read(
    scratch: Scratch,
    capture: Capture,
    guards: Sequence[Guard],
    facts: Iterator[int] | None,
    faults: Faults,
) -> int:
    lines = 0
    seen: list[bytes] = []
    contents: list[bytes] = []
    last = 0
    for lines, raw in enumerate(capture, start=1):
        here = arrival(raw)
        event = here.event
        at = here.arrived
        if at is None and isinstance(event, Event):
            at = instant(event.time)
        # A capture without arrivals is used in its order, a millisecond apart.
        last = at = last + 1 if at is None else at
        detail = bytes(event.detail_raw) if isinstance(event, Event) else raw
        fact: int | str = "" if facts is None else next(facts, -1)
        if fact == -1:
            raise ConfigError(f"the truth ends before line {lines}: it belongs to another capture")
        contents.append(f"{lines}\t{hash(detail) & UINT64_MASK}\t{fact}\n".encode())
        fault = _fault(lines, at, faults)
        decoded = _decoded(detail)
        for number, guard in enumerate(guards):
            found = guard.see(here, decoded)
            if found is None:
                continue
            key, *rest = found
            told = "\t".join(map(str, rest))
            seen.append(f"{number}\t{key}\t{at}\t{lines}\t{told}\t{fault}\n".encode())
            if fault:
                seen.append(
                    f"{number}\t{key}\t{at + REDELIVERY_DELAY}\t{lines}\t{told}\t{AGAIN}\n".encode()
                )
        if len(seen) >= 200_000:
            scratch.load("looks", LOOK_ROW, seen)
            scratch.load("lines", LINE_ROW, contents)
            seen.clear()
            contents.clear()
    scratch.load("looks", LOOK_ROW, seen)
    scratch.load("lines", LINE_ROW, contents)
    return lines


def _decoded(detail: bytes) -> Any:
    try:
        return msgspec.json.decode(detail)
    except (ValueError, RecursionError):
        return None


def _fault(line: int, at: int, faults: Faults) -> int:
    """Return the fault of this delivery, drawn by its line and its minute."""
    if _drawn(at // 60_000, OUTAGE) < faults.outages:
        return OUTAGE
    return CRASH if _drawn(line, CRASH) < faults.crashes else 0


def _drawn(number: int, what: int) -> float:
    """Return a pseudo-random share, the same in every run."""
    return hash((number, what)) % 1_000_003 / 1_000_003


class _Truth(msgspec.Struct):
    """The truth about a line: the part that a backtest needs."""

    fact: int


def _facts(truth: Path) -> Iterator[int]:
    decode = msgspec.json.Decoder(_Truth).decode
    with truth.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            try:
                yield decode(line).fact
            except ValueError as error:
                raise ConfigError(f"{truth}:{number}: no truth of a simulation: {error}") from error


def _decided(scratch: Scratch, number: int, guard: Guard) -> Iterator[bytes]:
    rows = scratch.rows(
        "SELECT key, arrived, line, stamp, version, remember, within, fault FROM looks "
        "WHERE guard = ? ORDER BY key, arrived, line",
        number,
    )
    for _, group in groupby((Look(*row) for row in rows), key=lambda look: look.key):
        ran = 0
        for look, status in guard.decide(group):
            yield f"{number}\t{look.line}\t{status}\t{ran or ''}\n".encode()
            if status in ("run", "unchanged"):
                # The next copy is a copy of this version.
                ran = look.line


def _compare_contents(scratch: Scratch, capture: Capture) -> None:
    """Fill the table `said`: the content, without the fields that a publication writes anew, of
    each drop whose bytes differ from its original's, and of that original."""
    scratch.table("said", SAID_ROW)
    scratch.run(
        """
        CREATE OR REPLACE TABLE unlike AS
        SELECT DISTINCT unnest([line, beside]) AS line FROM drops WHERE changed
        """
    )
    volatile = {form: fields.learn(some).volatile for form, some in _samples(scratch, capture)}
    scratch.load("said", SAID_ROW, _content_rows(scratch, capture, volatile))


def _samples(scratch: Scratch, capture: Capture) -> Iterator[tuple[Form, Sequence[Sample]]]:
    """Yield events to learn from: drops with their originals, and others, to know rare values."""
    found: dict[Form, list[Sample]] = defaultdict(list)
    chosen = scratch.rows(
        """
        SELECT DISTINCT line FROM (
          (SELECT unnest([line, beside]) AS line FROM drops WHERE changed
           ORDER BY hash(beside), line LIMIT $most)
          UNION ALL
          (SELECT line FROM lines WHERE EXISTS (FROM unlike) ORDER BY hash(line) LIMIT $most)
        ) ORDER BY line
        """.replace("$most", str(MOST_SAMPLES // 2))
    )
    for event, sample in samples_at(capture, (line for (line,) in chosen)):
        # The volatile fields of Genesys are known.
        if not any(path.startswith("detail.eventBody") for path in sample.leaves):
            found[event.org, event.type].append(sample)
    yield from found.items()


def _content_rows(
    scratch: Scratch, capture: Capture, volatile: Mapping[Form, frozenset[str]]
) -> Iterator[bytes]:
    unlike = (line for (line,) in scratch.rows("FROM unlike ORDER BY line"))
    for event, sample in samples_at(capture, unlike):
        anew = volatile.get((event.org, event.type), frozenset())
        notice = {path for path in sample.leaves if path.startswith(fields.NOTICE_PATHS)}
        yield b"%d\t%d\n" % (
            sample.line,
            fields.content_of(sample.leaves, anew | notice) & UINT64_MASK,
        )


_OF_GUARD: Final = {
    "mine": "SELECT * FROM decided WHERE guard = $guard",
    "looked": "SELECT * FROM looks WHERE guard = $guard",
    "changed": """
        SELECT d.line, d.beside, a.said IS NOT DISTINCT FROM b.said AS anew
        FROM drops d LEFT JOIN said a USING (line) LEFT JOIN said b ON b.line = d.beside
        WHERE guard = $guard AND changed
        """,
}
"""The views of one guard: its decisions, what it saw, and its drops of other content."""

_COUNTS: Final = (
    f"""
    SELECT count(*) FILTER (status = 'run') AS ran, count(*) FILTER ({IS_DROPPED}) AS dropped,
           count(*) FILTER ({IS_SUPERSEDED}) AS superseded FROM mine
    """,  # noqa: S608  texts of ours
    """
    SELECT count(*) FILTER (NOT anew) AS differing, count(*) FILTER (anew) AS written_anew
    FROM changed
    """,
    """
    SELECT count(*) - count(DISTINCT content) AS alike FROM mine JOIN lines USING (line)
    WHERE status = 'run'
    """,
    f"""
    SELECT (SELECT count(*) FROM lines) - count(DISTINCT line) AS dead_letters,
           coalesce(max(arrived) - min(arrived), 0) AS span
    FROM looked WHERE fault <> {AGAIN}
    """,  # noqa: S608
)

_BY_TRUTH: Final = f"""
    SELECT (SELECT count(*) - count(DISTINCT fact) FROM lines) AS copies,
           count(*) FILTER (runs = 0 AND superseded = 0) AS lost,
           sum(greatest(runs - 1, 0))::BIGINT AS let_through
    FROM (
      SELECT fact, count(*) FILTER (status = 'run') AS runs,
             count(*) FILTER ({IS_SUPERSEDED}) AS superseded
      FROM lines LEFT JOIN mine USING (line) GROUP BY fact
    )
    """  # noqa: S608

_REMEMBERED: Final = f"""
    SELECT (SELECT count(*) FROM mine JOIN looked USING (line)
            WHERE status = 'run' AND stamp <> {NO_ORDER} AND fault <> {AGAIN}) AS versions,
           coalesce(sum(remember), 0)::BIGINT AS remembered, count(*) AS keys
    FROM (SELECT max(remember) AS remember FROM looked GROUP BY key)
    """  # noqa: S608

_KEPT: Final = """
    SELECT line, first FROM (
      SELECT line, min(line) OVER (PARTITION BY content) AS first
      FROM mine JOIN lines USING (line) WHERE status = 'run'
    ) WHERE line <> first ORDER BY line LIMIT 3
    """


def _result(scratch: Scratch, number: int, guard: Guard, lines: int, *, known: bool) -> Result:
    for name, query in _OF_GUARD.items():
        scratch.run(f"CREATE OR REPLACE VIEW {name} AS {query.replace('$guard', str(number))}")
    counts: dict[str, Any] = {"lost": None, "let_through": None}
    for query in (*_COUNTS, *([_BY_TRUTH] if known else [])):
        counts |= scratch.one(query)
    spent = None
    if isinstance(guard, RulesGuard):
        spent = cost(
            span=counts["span"],
            runs=counts["ran"],
            copies=counts["dropped"] + counts["superseded"],
            **scratch.one(_REMEMBERED),
        )
    pairs = "SELECT line, beside FROM changed WHERE anew = ? ORDER BY ALL LIMIT 3"
    return Result(
        guard.name,
        lines,
        examples=tuple(scratch.rows(pairs, False)),
        cost=spent,
        anew_examples=tuple(scratch.rows(pairs, True)),
        kept=tuple(scratch.rows(_KEPT)),
        **counts,
    )
