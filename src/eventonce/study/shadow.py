"""The report on shadow mode: which events the rules would have dropped, and whether that is safe.

It reads the lines of `runtime.shadow`, from the files of all workers. A drop is compared with the
latest line of its key that ran before it: its digest, its time, and its transport id. If a clock
was set back and none ran before it, the first that ran is used. A line that is read twice counts
once. If a rule was changed under its name, only the lines of its latest form count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from typing import Final

import msgspec

from eventonce.core.status import COPIES
from eventonce.envelope.captured import own_line
from eventonce.errors import ConfigError
from eventonce.rules.instants import duration_text
from eventonce.runtime.shadow import ShadowLine
from eventonce.study.scratch import Scratch
from eventonce.study.units import DAY, HOUR

_MARK: Final = b'{"shadow":1,'
SAFE_DROPS: Final = 3_000
"""Drops without a difference that are needed: then fewer than one in a thousand is wrong (95 %)."""
GAP_FACTOR: Final = 2
"""How often the longest gap must fit into `remember`, and into the time of the record."""

RECORD_ROW: Final = {
    "decided": "BIGINT",
    "id": "VARCHAR",
    "type": "VARCHAR",
    "rule": "VARCHAR",
    "key": "VARCHAR",
    "remember": "BIGINT",
    "would": "VARCHAR",
    "content": "VARCHAR",
    "guard": "VARCHAR",
    "fingerprint": "VARCHAR",
}
LONGEST_PAUSE: Final = DAY
"""The most milliseconds without a line that count as time of the record; more may be a gap in
it."""
LISTED: Final = 20
"""The most drops with other content in the report."""


class Drops(msgspec.Struct, frozen=True):
    """The drops of one type and reason."""

    type: str
    rule: str
    why: str
    """`same transport id`, `another transport id`, `stale`, `unchanged`, or `unknown`: the original
    is not in the record."""
    count: int


class Guarded(msgspec.Struct, frozen=True):
    """How often the rules and the user's own guard decide alike, and differently."""

    both_run: int = 0
    both_drop: int = 0
    only_rules_drop: int = 0
    """Copies that the guard let through."""
    only_guard_drops: int = 0
    """Events that the guard dropped, and that are copies by no rule."""

    @property
    def rows(self) -> list[tuple[int, str]]:
        """The counts, each in words."""
        return [
            (self.both_run, "both run"),
            (self.both_drop, "both drop"),
            (self.only_rules_drop, "copies that your guard lets through"),
            (self.only_guard_drops, "events that your guard drops, and no rule takes for copies"),
        ]


class Changed(msgspec.Struct, frozen=True):
    """A rule that was changed within the record."""

    rule: str
    at: int
    """The first decision of its latest form, in milliseconds."""
    events: int
    """Lines of its earlier forms, which are not counted."""


class ShadowReport(msgspec.Struct, frozen=True):
    """The effect that rules in shadow mode would have had."""

    events: int
    drops: int
    by_type: list[Drops]
    held_back: dict[str, int]
    """Events that would neither have run nor been dropped at once, by status. `busy` is a copy that
    came while its original ran: it would have waited, and then been dropped."""
    differing: int
    """Drops whose content differs from the original's; conflicts included."""
    examples: list[tuple[str, str]]
    """Examples of these: the transport ids of the original and of the drop."""
    unmatched: int
    """Drops without their original in the record, which could not be compared."""
    span: int
    """Milliseconds from the first to the last line, with at most a day for each pause."""
    longest_gap: int
    """The most milliseconds between an original and its drop, or a copy that ran because the
    original was no longer remembered."""
    remember: int
    """The shortest `remember` of a rule with drops, in milliseconds."""
    guard: Guarded | None
    missing: list[str]
    """The missing evidence, a sentence each; empty if it is safe to switch on."""
    wait: int | None
    """Milliseconds to wait for the missing evidence, at the rate so far; None if waiting does not
    help, or the time is unknown."""
    changed: list[Changed] = []
    broken: int = 0
    """Lines of the record that cannot be read."""

    @property
    def safe(self) -> bool:
        """Whether `shadow` can be removed from the rules."""
        return not self.missing


def shadow_report(lines: Iterable[bytes]) -> ShadowReport:
    """Return the report on these lines; lines of other kinds are skipped."""
    with Scratch() as scratch:
        scratch.table("recorded", RECORD_ROW)
        broken = count()
        scratch.load("recorded", RECORD_ROW, _rows(lines, broken))
        return _report(scratch, next(broken))


def _rows(lines: Iterable[bytes], broken: count[int]) -> Iterator[bytes]:
    for text in filter(None, map(_text, lines)):
        try:
            yield _row(_decode(text))
        except ValueError:
            next(broken)


class _Logged(msgspec.Struct, gc=False):
    """A line of CloudWatch Logs, as `aws logs filter-log-events` gives it."""

    message: str


_decode: Final = msgspec.json.Decoder(ShadowLine).decode
_logged: Final = msgspec.json.Decoder(_Logged).decode


def _text(line: bytes) -> bytes:
    """Return the recorded line in this line; empty if there is none. A log may write a time before
    it, and an export of a log has it inside a line of its own."""
    if _MARK not in line and b"ingestionTime" not in line:
        return b""
    told = own_line(line)
    if told is not None:
        line = bytes(told.event)
    elif b"ingestionTime" in line:
        try:
            line = _logged(line).message.encode()
        except ValueError:
            return b""
    at = line.find(_MARK)
    return line[at:].rstrip() if at >= 0 else b""


def _row(told: ShadowLine) -> bytes:
    values = (
        told.at, told.id, told.type, told.rule, told.key, told.remember, told.would, told.content,
        told.guard, told.fingerprint,
    )  # fmt: skip
    return "\t".join(" ".join(str(value).split()) for value in values).encode() + b"\n"


_JOINED: Final = """
    CREATE TABLE judged AS
    WITH forms AS (
      SELECT rule, coalesce(arg_max(fingerprint, decided), '') AS latest FROM recorded GROUP BY rule
    ), told AS (
      SELECT DISTINCT decided, id, type, rule, key, remember, coalesce(would, '') AS would,
             coalesce(content, '') AS content, coalesce(guard, '') AS guard
      FROM recorded JOIN forms USING (rule) WHERE coalesce(fingerprint, '') = latest
    ), ran AS (SELECT * FROM told WHERE would = ''),
    kept AS (SELECT * FROM told WHERE would <> ''),
    firsts AS (
      SELECT key, min(decided) AS decided, arg_min(id, decided) AS id,
             arg_min(content, decided) AS content FROM ran GROUP BY key
    ), paired AS (
      SELECT kept.*, coalesce(ran.decided, firsts.decided) AS first_at,
             coalesce(ran.id, firsts.id) AS first_id,
             coalesce(ran.content, firsts.content, '') AS first_content
      FROM kept
      ASOF LEFT JOIN (SELECT decided, id, key, content FROM ran) AS ran
        ON ran.key = kept.key AND kept.decided >= ran.decided
      LEFT JOIN firsts ON firsts.key = kept.key
    )
    SELECT * EXCLUDE (first_content),
           would = 'duplicate' AND content <> '' AND first_content <> ''
             AND content <> first_content AS differs,
           would IN ('duplicate', 'stale', 'unchanged') AS dropped
    FROM paired
    UNION ALL BY NAME
    SELECT *, NULL AS first_at, NULL AS first_id, FALSE AS differs, FALSE AS dropped FROM ran
"""


def _report(scratch: Scratch, broken: int) -> ShadowReport:
    scratch.run(_JOINED)
    ((events, span),) = scratch.rows(
        f"""
        SELECT count(*), sum(least(decided - coalesce(earlier, decided), {LONGEST_PAUSE}))::BIGINT
        FROM (SELECT decided, lag(decided) OVER (ORDER BY decided) AS earlier FROM judged)
        """  # noqa: S608  a number of ours
    )
    if not events:
        raise ConfigError(
            "there is no line of shadow mode: set `shadow_log` in eventonce.toml, and `shadow` in "
            "its rules"
        )
    by_type = [
        Drops(*row)
        for row in scratch.rows(
            """
            SELECT type, rule, CASE WHEN would <> 'duplicate' THEN would
              WHEN first_at IS NULL THEN 'unknown' WHEN first_id = id THEN 'same transport id'
              ELSE 'another transport id' END AS why, count(*) AS drops
            FROM judged WHERE dropped GROUP BY ALL ORDER BY drops DESC, type, why
            """
        )
    ]
    would = Counter(dict(scratch.rows("SELECT would, count(*) FROM judged GROUP BY would")))
    held_back = {kind: many for kind, many in would.items() if kind and kind not in COPIES and many}
    ((drops, differing, unmatched),) = scratch.rows(
        """
        SELECT count(*), count(*) FILTER (differs), count(*) FILTER (first_at IS NULL)
        FROM judged WHERE dropped
        """
    )
    examples = scratch.rows(
        f"SELECT coalesce(first_id, ''), coalesce(id, '') FROM judged WHERE differs LIMIT {LISTED}"  # noqa: S608  a number of ours
    )
    differing += held_back.get("conflict", 0)
    windows = _windows(scratch)
    missing, wait = _missing(drops - unmatched, differing, span, windows)
    return ShadowReport(
        events=events,
        drops=drops,
        by_type=by_type,
        held_back=held_back,
        differing=differing,
        examples=list(examples),
        unmatched=unmatched,
        span=span,
        longest_gap=max((gap for _, gap, _ in windows), default=0),
        remember=min((remember for _, _, remember in windows), default=0),
        guard=_guarded(scratch),
        missing=missing,
        wait=wait,
        changed=_changed(scratch),
        broken=broken,
    )


def _changed(scratch: Scratch) -> list[Changed]:
    rows = scratch.rows(
        """
        WITH told AS (SELECT DISTINCT * REPLACE (coalesce(fingerprint, '') AS fingerprint)
                      FROM recorded),
        forms AS (SELECT rule, arg_max(fingerprint, decided) AS latest FROM told GROUP BY rule)
        SELECT rule, min(decided) FILTER (fingerprint = latest),
               count(*) FILTER (fingerprint <> latest) AS others
        FROM told JOIN forms USING (rule) GROUP BY rule HAVING others > 0 ORDER BY rule
        """
    )
    return [Changed(*row) for row in rows]


def _windows(scratch: Scratch) -> list[tuple[str, int, int]]:
    """Return for each rule with copies the longest gap, and the latest `remember`."""
    rows = scratch.rows(
        """
        WITH again AS (
          SELECT rule, decided, remember, decided - lag(decided) OVER (
            PARTITION BY key, content ORDER BY decided) AS gap
          FROM judged WHERE would = '' AND content <> ''
        ), gaps AS (
          SELECT rule, abs(decided - first_at) AS gap FROM judged WHERE dropped
          UNION ALL SELECT rule, gap FROM again WHERE gap IS NOT NULL
        ), latest AS (SELECT rule, arg_max(remember, decided) AS remember FROM judged GROUP BY rule)
        SELECT rule, coalesce(max(gap), 0)::BIGINT, any_value(remember)
        FROM gaps JOIN latest USING (rule) GROUP BY rule ORDER BY rule
        """
    )
    return [(str(rule), int(gap), int(remember)) for rule, gap, remember in rows]


def _missing(
    compared: int, differing: int, span: int, windows: Sequence[tuple[str, int, int]]
) -> tuple[list[str], int | None]:
    """Return the evidence that is missing, and how long to wait for it at the rate so far."""
    missing, waits = [], []
    helps = True
    if differing:
        verb = "differs" if differing == 1 else "differ"
        missing.append(
            f"{differing} of the drops {verb} in content: look at them, and name more parts in the "
            "key, or the fields that change with every publish in `ignore`"
        )
        helps = False
    if compared < SAFE_DROPS:
        have = "drop has its" if compared == 1 else "drops have their"
        missing.append(f"{compared} {have} original in the record, {SAFE_DROPS} are needed")
        if compared and span:
            waits.append((SAFE_DROPS - compared) * span // compared)
        else:
            helps = False
    for rule, gap, remember in windows:
        if GAP_FACTOR * gap > remember:
            missing.append(
                f"the longest gap of rule {rule} does not fit twice into what is remembered: raise "
                f"its `remember` to {duration_text(-(-GAP_FACTOR * gap // HOUR) * HOUR)}"
            )
            helps = False
    longest = max((gap for _, gap, _ in windows), default=0)
    if GAP_FACTOR * longest > span:
        missing.append("the record is not yet twice as long as the longest gap")
        waits.append(GAP_FACTOR * longest - span)
    return missing, max(waits) if helps and waits else None


def _guarded(scratch: Scratch) -> Guarded | None:
    counts = {
        (bool(dropped), guard): many
        for dropped, guard, many in scratch.rows(
            "SELECT dropped, guard, count(*) FROM judged "
            "WHERE guard IN ('ran', 'dropped') GROUP BY ALL"
        )
    }
    if not counts:
        return None
    return Guarded(
        counts.get((False, "ran"), 0),
        counts.get((True, "dropped"), 0),
        counts.get((True, "ran"), 0),
        counts.get((False, "dropped"), 0),
    )
