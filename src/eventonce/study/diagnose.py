"""Diagnosis of a capture: which lines are copies and why, which fields tell events apart, what is
suspicious, and which rules would serve better.

The production planner makes the keys. Where a source has no business key, its volatile fields and a
key are learned from its events, and tried on all of them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from eventonce.rules.explanation import Strength
from eventonce.study import copies, fields
from eventonce.study.arrivals import arrival
from eventonce.study.fields import Field, Learned, Sample
from eventonce.study.index import MASK, Index, Kind
from eventonce.study.over_time import OverTime, late_bins, let_through, over_time
from eventonce.types import Event

SAMPLES: Final = 20_000
"""Events of a source from which its fields are learned."""
FIRST: Final = 2_000
"""Events that say which values are rare, before the rest is chosen by these values."""
SHOWN: Final = 200
"""Events and pairs of a kind whose fields are looked at for the field map."""
ENOUGH: Final = 30
"""Copies under another id from which a rule is proposed: none wrong among them bounds the share of
wrong drops by a tenth, and the whole capture bounds it further."""
MARKS: Final = (
    (1_000, "1 s"),
    (30_000, "30 s"),
    (60_000, "1 min"),
    (120_000, "2 min"),
    (300_000, "5 min"),
    (3_600_000, "1 h"),
    (86_400_000, "24 h"),
    (4 * 86_400_000, "4 d"),
)
"""The marks of lateness: an at-once copy, a visibility time-out, Lambda's two retries, a FIFO
queue's memory, and the ends of EventBridge's and Genesys' retries."""
BEYOND: Final = 5 * 86_400_000
"""Milliseconds that no retry reaches: an equal key so late is a genuine repeat."""
LEARNED: Final = {"line": "BIGINT", "key": "UBIGINT", "content": "UBIGINT"}


class KindReport(msgspec.Struct, frozen=True):
    """What was found of one type."""

    source: str
    type: str
    rule: str
    strength: Strength | None
    """What proves a copy by the rule's key; None where there is no key."""
    events: int
    copies: int
    causes: dict[str, int]
    fields: tuple[Field, ...] = ()


class Proposal(msgspec.Struct, frozen=True):
    """A rule for a source that has no business key yet, with its evidence."""

    name: str
    sources: tuple[str, ...]
    types: tuple[str, ...]
    key: tuple[str, ...]
    volatile: tuple[str, ...]
    events: int
    copies: int
    """Lines that the rule would drop."""
    under_new_ids: int
    """Those of them that no transport id tells."""
    wrong: int
    """Drops whose content differs outside the volatile fields."""
    enough: bool

    @property
    def bound(self) -> float:
        """The share of wrong drops that 95 % of such captures stay under."""
        return min(1.0, (self.wrong + 3) / max(1, self.copies))


class Finding(msgspec.Struct, frozen=True):
    """Something that deserves a look."""

    code: str
    type: str
    count: int
    text: str
    lines: tuple[int, ...] = ()


class Late(msgspec.Struct, frozen=True):
    """How late copies come."""

    histogram: dict[str, int]
    """Copies that come later than the mark before, up to this one."""
    longest: int
    """Milliseconds."""
    beyond: int
    """Equal keys at a distance that no retry reaches."""
    observed: int
    """Milliseconds of the capture that lie beyond that distance from its beginning."""
    bins: dict[int, int] = {}
    """Copies by lateness in fine steps: bin b begins at 10 ** (b / 8) milliseconds."""


class Diagnosis(msgspec.Struct, frozen=True):
    """What a capture says."""

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


def diagnose(index: Index) -> Diagnosis:
    """Diagnose the capture of this index, which is filled."""
    kinds = _kinds(index)
    index.table("learned", LEARNED)
    pools = _learn(index, {kind: one for kind, one in kinds.items() if one.weak})
    copies.find(index)
    return _counted(index, kinds, pools)


class _Known(NamedTuple):
    """What one event of a kind tells about all."""

    kind: Kind
    events: int
    strength: Strength | None
    paths: frozenset[str]

    @property
    def weak(self) -> bool:
        """Whether the rule knows nothing of the source: a copy under another id may pass."""
        if self.strength is None or self.strength == "business key":
            return False
        return self.strength != "content and time" or self.kind.rule.startswith("auto.")


class _Pool(NamedTuple):
    """Kinds of one form, learned together."""

    kinds: tuple[int, ...]
    learned: Learned


def _kinds(index: Index) -> dict[int, _Known]:
    first = list(
        index.rows("SELECT min(line), kind, count(*) FROM events GROUP BY kind ORDER BY 1")
    )
    raws = dict(index.read(iter([line for line, *_ in first])))
    found = {}
    for line, hashed, events in first:
        kind = index.names.kinds[hashed]
        event = arrival(raws[line]).event
        strength, paths = None, frozenset[str]()
        if isinstance(event, Event):
            explained = index.planned.rules.explain(event)
            strength = None if explained.missing else explained.strength
            paths = frozenset(fields.leaves_of(bytes(event.detail_raw)))
        found[hashed] = _Known(kind, events, strength, paths)
    return found


def _learn(index: Index, weak: dict[int, _Known]) -> list[_Pool]:
    """Learn the fields of sources without a business key, and the keys of all their events."""
    by_form: dict[tuple[str, frozenset[str]], list[int]] = defaultdict(list)
    for hashed, known in weak.items():
        by_form[known.kind.org, known.paths].append(hashed)
    pools = []
    for members in by_form.values():
        total = sum(weak[hashed].events for hashed in members)
        learned = fields.learn(_samples(index, members, total))
        pools.append(_Pool(tuple(members), learned))
        if learned.key:
            index.load("learned", LEARNED, _keyed(index, members, learned))
    return pools


def _events(index: Index, kinds: Sequence[int]) -> Iterator[tuple[int, Event, int, int]]:
    """Line, event, transport id and arrival of all events of these kinds."""
    chosen = ", ".join(map(str, kinds))
    query = (
        "SELECT line, id, coalesce(arrived, time, 0) FROM events "  # noqa: S608  numbers of ours
        f"WHERE kind IN ({chosen}) ORDER BY line"
    )
    rows: dict[int, tuple[int, int]] = {}

    def lines() -> Iterator[int]:
        for line, *rest in index.rows(query):
            rows[line] = (rest[0], rest[1])
            yield line

    for line, raw in index.read(lines()):
        event = arrival(raw).event
        if isinstance(event, Event):
            yield line, event, *rows.pop(line)


def _samples(index: Index, kinds: Sequence[int], total: int) -> list[Sample]:
    """Events of these kinds. Of many, the first ones and all that share a rare value with others
    that were chosen by it, so that copies stay together."""
    samples: list[Sample] = []
    rare: list[str] = []
    one_in = max(1, 4 * total // SAMPLES)
    for line, event, transport, arrived in _events(index, kinds):
        leaves = {"type": event.type, **fields.leaves_of(bytes(event.detail_raw))}
        if len(samples) == FIRST:
            rare = [
                path for path, field in fields.profile(samples).items() if field.u < fields.RARE
            ]
        if len(samples) < FIRST or any(hash(leaves.get(path)) % one_in == 0 for path in rare):
            samples.append(Sample(line, transport, arrived, leaves))
    return samples


def _keyed(index: Index, kinds: Sequence[int], learned: Learned) -> Iterator[bytes]:
    for line, event, _, _ in _events(index, kinds):
        leaves = fields.leaves_of(bytes(event.detail_raw))
        content = hash(frozenset(it for it in leaves.items() if it[0] not in learned.volatile))
        leaves[fields.WHOLE] = content
        if all(leaves.get(path) is not None for path in learned.key):
            key = hash((event.type, *(leaves[path] for path in learned.key))) & MASK
            yield b"%d\t%d\t%d\n" % (line, key, content & MASK)


def _counted(index: Index, kinds: dict[int, _Known], pools: Sequence[_Pool]) -> Diagnosis:
    causes: dict[int, Counter[str]] = defaultdict(Counter)
    query = "SELECT kind, cause, count(*) FROM copies JOIN events USING (line) GROUP BY ALL"
    for hashed, cause, number in index.rows(f"{query} ORDER BY 3 DESC, 2"):
        causes[hashed][cause] += number
    sources = {
        hashed: index.names.sources.get(source, "")
        for hashed, source in index.rows("SELECT kind, mode(source) FROM events GROUP BY kind")
    }
    learned = {kind for pool in pools if pool.learned.key for kind in pool.kinds}
    shown = _shown(index, [kind for kind in kinds if kinds[kind].kind.rule and kind not in learned])
    samples = _sampled(index, shown.values())
    maps = _field_maps(shown, samples, pools)
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
    return Diagnosis(
        index.lines,
        total.total(),
        began,
        ended,
        dict(total.most_common()),
        tuple(reports),
        _late(index, began, ended),
        tuple(_sorted([*_merges(kinds, shown, samples), *_findings(index, kinds, learned)])),
        tuple(_proposals(index, kinds, pools)),
        let_through(index),
        over_time(index, began, ended),
    )


def _sorted(found: Sequence[Finding]) -> list[Finding]:
    """By what it is, most first: the same for every run."""
    codes = list(dict.fromkeys(one.code for one in found))
    return sorted(found, key=lambda one: (codes.index(one.code), one.text, -one.count, one.type))


def _late(index: Index, began: int | None, ended: int | None) -> Late:
    histogram = {}
    before = -1
    for mark, name in (*MARKS, (1 << 62, "more")):
        (number,) = next(
            index.rows("SELECT count(*) FROM copies WHERE gap > ? AND gap <= ?", before, mark)
        )
        histogram[name] = number
        before = mark
    longest, beyond = next(
        index.rows("SELECT max(gap), count(*) FILTER (gap > ?) FROM copies", BEYOND)
    )
    span = 0 if began is None or ended is None else ended - began
    return Late(histogram, longest or 0, beyond, max(0, span - BEYOND), late_bins(index))


class _Shown(NamedTuple):
    """The lines of one kind whose fields are looked at."""

    lines: list[int]
    pairs: list[tuple[int, int]]
    """Copies under another id, each with its relative."""
    suspected: list[tuple[int, int]]
    """Copies by the rule in use whose content differs from their relative's."""
    differing: int
    """How many of these there are in all."""


def _shown(index: Index, kinds: Iterable[int]) -> dict[int, _Shown]:
    """The lines to look at of these kinds."""
    pairs = """
        SELECT c.line, c.beside FROM copies c JOIN events e USING (line)
        JOIN events b ON b.line = c.beside WHERE e.kind = ? AND"""
    found = {}
    for kind in kinds:
        lines = index.rows(
            "SELECT line FROM events WHERE kind = ? ORDER BY hash(line) LIMIT ?", kind, SHOWN
        )
        fresh = index.rows(
            f"{pairs} e.id <> b.id ORDER BY e.content = b.content, hash(c.line) LIMIT ?",
            kind,
            SHOWN,
        )
        changed = f"{pairs} e.content <> b.content AND e.key = b.key"
        suspected = list(index.rows(f"{changed} ORDER BY hash(c.line) LIMIT 50", kind))
        (number,) = next(index.rows(f"SELECT count(*) FROM ({changed})", kind))  # noqa: S608  ours
        found[kind] = _Shown([line for (line,) in lines], [*fresh], suspected, number)
    return found


def _field_maps(
    shown: Mapping[int, _Shown], samples: Mapping[int, Sample], pools: Sequence[_Pool]
) -> dict[int, tuple[Field, ...]]:
    """How each field behaves, by kind: of those learned together the same."""
    found = {kind: pool.learned.fields for pool in pools for kind in pool.kinds}
    for kind, some in shown.items():
        if kind not in found:
            known = fields.profile([samples[line] for line in some.lines if line in samples])
            both = [(samples[a], samples[b]) for a, b in some.pairs if {a, b} <= samples.keys()]
            found[kind] = fields.ordered(
                field._replace(m=fields.agreement(both, path)) for path, field in known.items()
            )
    return found


def _sampled(index: Index, shown: Iterable[_Shown]) -> dict[int, Sample]:
    """The events of these lines, read in one pass."""
    lines = {
        line
        for some in shown
        for group in (some.lines, *some.pairs, *some.suspected)
        for line in group
    }
    found = {}
    for line, raw in index.read(iter(sorted(lines))):
        event, arrived, *_ = arrival(raw)
        if isinstance(event, Event):
            leaves = fields.leaves_of(bytes(event.detail_raw))
            found[line] = Sample(line, hash(event.id), arrived or 0, leaves)
    return found


def _proposals(
    index: Index, kinds: dict[int, _Known], pools: Sequence[_Pool]
) -> Iterator[Proposal]:
    for kinds_of_pool, learned in pools:
        if not learned.key:
            continue
        chosen = ", ".join(map(str, kinds_of_pool))
        (events, dropped, fresh, wrong) = next(
            index.rows(
                f"""
                SELECT (SELECT count(*) FROM events WHERE kind IN ({chosen})),
                       count(*), count(*) FILTER (e.id <> b.id),
                       count(*) FILTER (l.content <> k.content)
                FROM copies c JOIN events e USING (line) JOIN learned l USING (line)
                JOIN events b ON b.line = c.beside JOIN learned k ON k.line = c.beside
                WHERE e.kind IN ({chosen})
                """  # noqa: S608  numbers of ours
            )
        )
        by_source = (
            "SELECT source FROM events "  # noqa: S608  likewise
            f"WHERE kind IN ({chosen}) GROUP BY 1 ORDER BY count(*) DESC"
        )
        sources = [index.names.sources[source] for (source,) in index.rows(by_source)]
        types = tuple(sorted({kinds[hashed].kind.type for hashed in kinds_of_pool}))
        yield Proposal(
            name=sources[0] or types[0],
            sources=tuple(sources),
            types=types,
            key=learned.key,
            volatile=tuple(sorted(learned.volatile)),
            events=events,
            copies=dropped,
            under_new_ids=fresh,
            wrong=wrong,
            enough=fresh >= ENOUGH and not wrong,
        )


def _findings(index: Index, kinds: dict[int, _Known], proposed: set[int]) -> Iterator[Finding]:
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
        said = {
            "transport id": "a copy under another transport id runs again",
            "none": "the event has neither an id nor a time, and runs at every delivery",
        }.get(known.strength or "", "a copy that was changed on its way runs again")
        yield Finding(
            "weak-key", known.kind.type, known.events, f"the key is {known.strength}: {said}"
        )
    yield from _states(index, kinds)
    for fault, number in sorted(index.names.faults.items(), key=lambda item: -item[1])[:20]:
        yield Finding("no-key", "", number, fault)


def _merges(
    kinds: dict[int, _Known], shown: Mapping[int, _Shown], samples: Mapping[int, Sample]
) -> Iterator[Finding]:
    """Copies by the rule in use that differ in more than a publication writes."""
    for kind, some in shown.items():
        told: Counter[str] = Counter()
        suspected = []
        for line, beside in some.suspected:
            if line in samples and beside in samples:
                differing = fields.differing(samples[line], samples[beside])
                paths = [path for path in differing if not path.startswith(TRANSPORT)]
                told.update(paths)
                if paths:
                    suspected.append(line)
        if suspected:
            named = ", ".join(path for path, _ in told.most_common(4))
            yield Finding(
                "merged",
                kinds[kind].kind.type,
                round(some.differing * len(suspected) / len(some.suspected)),
                f"rule {kinds[kind].kind.rule} takes events for copies that differ in {named}: "
                "its key may be too wide",
                tuple(suspected[:5]),
            )


TRANSPORT: Final = ("detail.metadata", "detail.timestamp")
"""What Genesys writes anew with each notice: no part of what happened."""


def _states(index: Index, kinds: dict[int, _Known]) -> Iterator[Finding]:
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


def lines_of(index: Index) -> Iterator[dict[str, Any]]:
    """For each line of the capture, of which line it is a copy, and for which cause."""
    query = "SELECT line, copy_of, cause FROM events LEFT JOIN copies USING (line) ORDER BY line"
    for line, copy_of, cause in index.rows(query):
        yield {"line": line, "copy_of": copy_of, "cause": cause}


def toml(proposals: Iterable[Proposal]) -> str:
    """The proposed rules, each with its evidence; one that has not enough is commented out."""
    rules = [_rule(proposal) for proposal in proposals]
    return "\n\n".join(rules or ["# Nothing to propose: see the report of diagnose."]) + "\n"


def _rule(proposal: Proposal) -> str:
    quoted = msgspec.json.encode
    match = {"source": list(proposal.sources), "type": list(proposal.types)}
    matched = ", ".join(f"{name} = {quoted(value).decode()}" for name, value in match.items())
    rule = [
        "[[rule]]",
        f"name = {quoted(proposal.name).decode()}",
        f"match = {{ {matched} }}",
        f"key = {quoted(list(proposal.key)).decode()}",
    ]
    text = f"""\
# Of {proposal.events} events it drops {proposal.copies}, {proposal.under_new_ids} of them under \
another transport id.
# {proposal.wrong or "None"} of these drops differ outside of what a publication writes \
({", ".join(proposal.volatile) or "nothing"}):
# fewer than {proposal.bound:.2%} of drops are wrong (95 %, as far as this capture tells)."""
    evidence = text.splitlines()
    if proposal.enough:
        return "\n".join([*evidence, *rule])
    note = f"# Not enough yet: {ENOUGH} copies under another transport id are needed."
    return "\n".join([note, *evidence, *(f"# {line}" for line in rule)])
