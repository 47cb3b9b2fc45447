"""Some lines of each kind, read once: what the field map and the suspicions look at."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from eventonce.study import fields
from eventonce.study.arrivals import arrival
from eventonce.study.fields import Field, Sample
from eventonce.study.index import Index
from eventonce.study.learning import Pool
from eventonce.types import Event

SHOWN: Final = 200
"""Events and pairs of a kind whose fields are looked at for the field map."""


class Shown(NamedTuple):
    """The lines of one kind whose fields are looked at."""

    lines: list[int]
    pairs: list[tuple[int, int]]
    """Copies under another id, each with its relative."""
    suspected: list[tuple[int, int]]
    """Copies by the rule in use whose content differs from their relative's."""
    differing: int
    """How many of these there are in all."""


def shown_of(index: Index, kinds: Iterable[int]) -> dict[int, Shown]:
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
        found[kind] = Shown([line for (line,) in lines], [*fresh], suspected, number)
    return found


def field_maps(
    shown: Mapping[int, Shown], samples: Mapping[int, Sample], pools: Sequence[Pool]
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


def sampled(index: Index, shown: Iterable[Shown]) -> dict[int, Sample]:
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
