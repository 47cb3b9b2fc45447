"""Findings: suspicious things in a capture, each with a count and a sentence."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from eventonce.study import fields
from eventonce.study.fields import Sample
from eventonce.study.index import Index
from eventonce.study.learning import Known
from eventonce.study.sampled import Looked, Shown

EVENT_FIELDS: Final = frozenset(
    ("detail-type", "eventBody", "topicName", "eventType", "specversion", "conversationId")
)
"""Fields by which a text inside an event is recognised as an event."""


class Finding(msgspec.Struct, frozen=True):
    """Something that should be checked."""

    code: str
    type: str
    count: int
    text: str
    lines: tuple[int, ...] = ()


def findings_of(
    index: Index,
    kinds: Mapping[int, Known],
    proposed: set[int],
    shown: Mapping[int, Shown],
    looked: Looked,
) -> tuple[Finding, ...]:
    """Return all findings, by code, in the same order in every run."""
    found = [
        *_merges(kinds, shown, looked.samples),
        *_narrow(kinds, shown, looked),
        *_findings(index, kinds, proposed),
        *_lacking(kinds, shown, looked),
        *_wrapped(kinds, shown, looked.samples),
    ]
    codes = list(dict.fromkeys(one.code for one in found))
    found.sort(key=lambda one: (codes.index(one.code), one.text, -one.count, one.type))
    return tuple(found)


def _findings(index: Index, kinds: Mapping[int, Known], proposed: set[int]) -> Iterator[Finding]:
    for hashed, number, line in index.rows(
        """
        SELECT kind, count(*), min(line) FROM copies JOIN events USING (line)
        WHERE cause = 'double-emission' AND subject IS NOT NULL
          AND key <> (SELECT b.key FROM events b WHERE b.line = copies.beside)
        GROUP BY kind ORDER BY 2 DESC
        """
    ):
        yield Finding(
            "told-twice",
            kinds[hashed].kind.type,
            number,
            "the same state is told twice within 500 ms under another time; the rule in use runs "
            "both, a state rule with unchanged_within (genesys:latest has them) runs one",
            (line,),
        )
    for hashed, known in kinds.items():
        if not known.weak or hashed in proposed:
            continue
        if known.any_type:
            yield Finding(
                "no-rule",
                known.kind.type,
                known.events,
                f"no rule names this type: {known.kind.rule} keys it by {known.strength}",
            )
            continue
        said = {
            "transport id": "a copy under another transport id runs again",
            "none": "the event has neither an id nor a time, and runs at every delivery",
        }.get(known.strength or "", "a copy that was changed on its way runs again")
        yield Finding(
            "weak-key", known.kind.type, known.events, f"the key is {known.strength}: {said}"
        )
    yield from _states(index, kinds)
    for fault, (number, line) in index.names.faults.items():
        yield Finding("no-key", "", number, fault, (line,))


def _merges(
    kinds: Mapping[int, Known], shown: Mapping[int, Shown], samples: Mapping[int, Sample]
) -> Iterator[Finding]:
    """Yield drops by the rule in use that differ in more than a publication writes."""
    for kind, some in shown.items():
        told: Counter[str] = Counter()
        suspected = []
        for line, beside in some.suspected:
            if line in samples and beside in samples:
                differing = fields.differing(samples[line], samples[beside])
                paths = [path for path in differing if not path.startswith(fields.NOTICE_PATHS)]
                told.update(paths)
                if paths:
                    suspected.append(line)
        if suspected:
            named = ", ".join(path for path, _ in told.most_common(4))
            yield Finding(
                "merged",
                kinds[kind].kind.type,
                round(some.differing * len(suspected) / len(some.suspected)),
                f"of {some.dropped} drops by rule {kinds[kind].kind.rule} so many differ in "
                f"{named}: its key may be too wide",
                tuple(suspected[:5]),
            )


def _narrow(
    kinds: Mapping[int, Known], shown: Mapping[int, Shown], looked: Looked
) -> Iterator[Finding]:
    """Yield events that run although an earlier one has the same content."""
    for kind, some in shown.items():
        told: Counter[str] = Counter()
        for lines in some.apart:
            first, other = (looked.explained.get(line) for line in lines)
            if first and other:
                told.update(
                    one.expression
                    for one, two in zip(first.parts, other.parts, strict=False)
                    if one.value != two.value
                )
        if told:
            named = ", ".join(path for path, _ in told.most_common(4))
            yield Finding(
                "apart",
                kinds[kind].kind.type,
                some.kept,
                f"rule {kinds[kind].kind.rule} runs events again whose content is that of an "
                f"earlier one, because {named} differs: its key may be too narrow",
                tuple(other for _, other in some.apart[:5]),
            )


def _lacking(
    kinds: Mapping[int, Known], shown: Mapping[int, Shown], looked: Looked
) -> Iterator[Finding]:
    """Yield events with another key than the rule's own, because a part is missing."""
    for kind, some in shown.items():
        told: Counter[str] = Counter()
        lines = []
        for line in some.lines:
            explained = looked.explained.get(line)
            if explained and explained.lacking:
                # Only the name of the part: its value may be personal.
                told.update(text.partition(" ")[0] for text in explained.lacking)
                lines.append(line)
        if lines:
            named = ", ".join(part for part, _ in told.most_common(4))
            yield Finding(
                "missing-part",
                kinds[kind].kind.type,
                round(kinds[kind].events * len(lines) / len(some.lines)),
                f"{named} is missing: rule {kinds[kind].kind.rule} keys these events in another "
                "way, which tells less",
                tuple(lines[:5]),
            )


def _wrapped(
    kinds: Mapping[int, Known], shown: Mapping[int, Shown], samples: Mapping[int, Sample]
) -> Iterator[Finding]:
    """Yield events that contain another event."""
    for kind, some in shown.items():
        found: dict[str, list[int]] = defaultdict(list)
        for line in some.lines:
            for path, value in samples[line].leaves.items() if line in samples else ():
                if type(value) is str and value.startswith("{") and _is_event(value):
                    found[path].append(line)
                elif path.rpartition(".")[2] == "detail-type":
                    found[path.rpartition(".")[0]].append(line)
        for path, lines in found.items():
            yield Finding(
                "wrapped",
                kinds[kind].kind.type,
                round(kinds[kind].events * len(lines) / len(some.lines)),
                f"{path} holds an event that nobody unpacked: the key should be that event's",
                tuple(lines[:5]),
            )


def _is_event(text: str) -> bool:
    try:
        fields = msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(fields, dict) and bool(fields.keys() & EVENT_FIELDS)


def _states(index: Index, kinds: Mapping[int, Known]) -> Iterator[Finding]:
    for hashed, returns in index.rows(
        """
        SELECT kind, count(*) FROM (
          SELECT kind, state = lag(state, 2) OVER told AND state <> lag(state) OVER told AS back
          FROM (SELECT any_value(kind) AS kind, subject, version, state FROM events
                WHERE subject IS NOT NULL GROUP BY subject, version, state)
          WINDOW told AS (PARTITION BY subject ORDER BY version)
        ) WHERE back GROUP BY kind ORDER BY 2 DESC
        """
    ):
        yield Finding(
            "returns",
            kinds[hashed].kind.type,
            returns,
            "a state is left and taken again (A, B, A): a key of the content alone drops it",
        )
    for hashed, late in index.rows(
        """
        SELECT kind, count(*) FROM (
          SELECT kind, version < max(version) OVER (
            PARTITION BY subject ORDER BY line ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
          ) AS late
          FROM events ANTI JOIN copies USING (line) WHERE subject IS NOT NULL
        ) WHERE late GROUP BY kind ORDER BY 2 DESC
        """
    ):
        yield Finding(
            "out-of-order",
            kinds[hashed].kind.type,
            late,
            "an older version of its subject arrives after a newer one: without a state rule it "
            "overwrites the newer",
        )
