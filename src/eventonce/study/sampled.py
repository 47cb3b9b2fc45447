"""Sample lines of each kind, read in one pass, for the field map and the findings."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from eventonce.rules.explanation import Explanation
from eventonce.study import fields
from eventonce.study.fields import Field, Sample
from eventonce.study.index import Index, samples_at
from eventonce.study.learning import Pool

SAMPLES_OF_A_KIND: Final = 200
"""The most events and pairs of a kind in its field map."""
SAMPLES_IN_ALL: Final = 12_000
"""The most events of all kinds together: a capture may have many organisations."""
FEWEST_SAMPLES: Final = 8


class Shown(NamedTuple):
    """The sample lines of one kind."""

    lines: list[int]
    pairs: list[tuple[int, int]]
    """Copies under another id, each with its nearest relative."""
    suspected: list[tuple[int, int]]
    """Copies by the rule in use whose content differs from their relative's."""
    differing: int
    """The number of all such copies."""
    dropped: int
    """The number of copies by the rule in use."""
    apart: list[tuple[int, int]]
    """Events with equal content and different keys by the rule in use."""
    kept: int
    """The number of all such events."""


class Looked(NamedTuple):
    """The sampled lines, and the explanations of their keys."""

    samples: dict[int, Sample]
    explained: dict[int, Explanation]
    """The explanation of each line's key."""


def shown_of(index: Index, kinds: Collection[int]) -> dict[int, Shown]:
    """Return the sample lines of these kinds."""
    index.run(
        """
        CREATE OR REPLACE TABLE pairs AS
        SELECT e.kind, c.line, c.beside, e.id <> b.id AS fresh, e.content <> b.content AS changed,
               e.key = b.key AS dropped
        FROM copies c JOIN events e USING (line) JOIN events b ON b.line = c.beside
        """
    )
    counts = {
        kind: (differing, dropped)
        for kind, differing, dropped in index.rows(
            "SELECT kind, count(*) FILTER (changed AND dropped), count(*) FILTER (dropped) "
            "FROM pairs GROUP BY kind"
        )
    }
    most = max(FEWEST_SAMPLES, min(SAMPLES_OF_A_KIND, SAMPLES_IN_ALL // max(1, len(kinds))))
    lines, apart = _lines(index, most), _apart(index)
    fresh = _pairs(index, "fresh", "NOT changed, hash(line)", most)
    suspected = _pairs(index, "changed AND dropped", "hash(line)", most // 4)
    found = {}
    for kind in kinds:
        told = apart.get(kind, [])
        differing, dropped = counts.get(kind, (0, 0))
        found[kind] = Shown(
            lines.get(kind, []),
            fresh.get(kind, []),
            suspected.get(kind, []),
            differing,
            dropped,
            [(first, other) for first, other, _ in told],
            told[0][2] if told else 0,
        )
    return found


def merged_of(index: Index, learned: Collection[int]) -> dict[int, Shown]:
    """Return, for kinds with a learned key, drops by the rule in use that are separate facts."""
    if not learned:
        return {}
    index.run(
        """
        CREATE OR REPLACE TABLE pairs AS
        WITH dropped AS (
          SELECT events.kind, events.line, facts.fact,
                 min(events.line) OVER (PARTITION BY events.key) AS beside
          FROM events JOIN learned USING (line) JOIN facts USING (line)
          WHERE events.key IS NOT NULL
        )
        SELECT kind, d.line, beside, d.fact <> b.fact AS changed
        FROM dropped d JOIN facts b ON b.line = beside WHERE d.line <> beside
        """
    )
    suspected = _pairs(index, "changed", "hash(line)", FEWEST_SAMPLES)
    return {
        kind: Shown([], [], suspected[kind], differing, dropped, [], 0)
        for kind, differing, dropped in index.rows(
            "SELECT kind, count(*) FILTER (changed), count(*) FROM pairs GROUP BY kind"
        )
        if kind in suspected
    }


def _pairs(index: Index, which: str, order: str, most: int) -> dict[int, list[tuple[int, int]]]:
    """Return some pairs of each kind, in one query for all kinds."""
    found: dict[int, list[tuple[int, int]]] = {}
    for kind, line, beside in index.rows(
        f"SELECT kind, line, beside FROM pairs WHERE {which} "  # noqa: S608  ours
        f"QUALIFY row_number() OVER (PARTITION BY kind ORDER BY {order}) <= ? "
        f"ORDER BY kind, {order}",
        most,
    ):
        found.setdefault(kind, []).append((line, beside))
    return found


def _lines(index: Index, most: int) -> dict[int, list[int]]:
    """Return some lines of each kind, drawn by their numbers: the same in every run."""
    found: dict[int, list[int]] = {}
    for kind, line in index.rows(
        """
        WITH kinds AS (SELECT kind, count(*) AS events FROM events GROUP BY kind)
        SELECT kind, line FROM events JOIN kinds USING (kind)
        WHERE hash(line) // 4294967296 <= 4294967296 * 4.0 * ? / events
        QUALIFY row_number() OVER (PARTITION BY kind ORDER BY hash(line)) <= ?
        ORDER BY kind, hash(line)
        """,
        *(most, most),
    ):
        found.setdefault(kind, []).append(line)
    return found


def _apart(index: Index) -> dict[int, list[tuple[int, int, int]]]:
    """Return, by kind, some events of equal content and different keys, and their number. States
    that are emitted twice have a separate finding."""
    found: dict[int, list[tuple[int, int, int]]] = {}
    for kind, *pair in index.rows(
        """
        WITH same AS (
          SELECT kind, essence, min(line) AS first, arg_min(key, line) AS own FROM events
          WHERE key IS NOT NULL AND subject IS NULL
          GROUP BY kind, essence HAVING min(key) <> max(key)
        ), others AS (
          SELECT kind, first, min(line) AS other, count(DISTINCT key) AS more FROM events
          JOIN same USING (kind, essence) WHERE key <> own AND subject IS NULL GROUP BY kind, first
        )
        SELECT kind, first, other, (sum(more) OVER (PARTITION BY kind))::BIGINT FROM others
        QUALIFY row_number() OVER (PARTITION BY kind ORDER BY first) <= 20 ORDER BY kind, first
        """
    ):
        found.setdefault(kind, []).append((pair[0], pair[1], pair[2]))
    return found


def field_maps(
    shown: Mapping[int, Shown], samples: Mapping[int, Sample], pools: Sequence[Pool]
) -> dict[int, tuple[Field, ...]]:
    """Return the fields of each kind; kinds that were learned together have the same."""
    found = {kind: pool.learned.fields for pool in pools for kind in pool.kinds}
    for kind, some in shown.items():
        if kind not in found:
            known = fields.profile([samples[line] for line in some.lines if line in samples])
            both = [(samples[a], samples[b]) for a, b in some.pairs if {a, b} <= samples.keys()]
            found[kind] = fields.ordered(fields.agreed(known.values(), both))
    return found


def sampled(index: Index, shown: Iterable[Shown]) -> Looked:
    """Return the events of these lines, read in one pass."""
    lines: set[int] = set()
    explained: set[int] = set()
    for some in shown:
        lines.update(some.lines, *some.pairs, *some.suspected)
        explained.update(some.lines, *some.apart)
    found = Looked({}, {})
    for event, sample in samples_at(index.capture, iter(sorted(lines | explained))):
        found.samples[sample.line] = sample
        if sample.line in explained:
            found.explained[sample.line] = index.planned.rules.explain(event)
    return found
