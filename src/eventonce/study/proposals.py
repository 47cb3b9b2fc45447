"""Proposed rules: for sources that no rule knows, with the evidence, as TOML."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from eventonce.study.fields import is_addressable
from eventonce.study.index import Index
from eventonce.study.learning import Known, Pool

COPIES_NEEDED: Final = 30
"""Copies under another id that a proposed rule needs: with none wrong among them, at most a tenth
of the drops is wrong, and the whole capture lowers this limit."""


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
    """Copies among these lines that have another transport id."""
    wrong: int
    """Drops whose content differs outside the volatile fields."""
    enough: bool
    agreement: dict[str, tuple[float | None, float]] = {}
    """For each part of the key m and u: how often copies, and other events, agree in it."""

    @property
    def bound(self) -> float:
        """The limit of the share of wrong drops, with 95 % confidence."""
        return min(1.0, (self.wrong + 3) / max(1, self.copies))


def proposals_of(
    index: Index, kinds: dict[int, Known], pools: Sequence[Pool]
) -> Iterator[Proposal]:
    """Yield a rule for each pool whose key was learned, counted on all lines of the pool."""
    named: Counter[str] = Counter()
    for kinds_of_pool, learned in pools:
        if not learned.key:
            continue
        chosen = ", ".join(map(str, kinds_of_pool))
        counts = index.one(
            f"""
            SELECT (SELECT count(*) FROM events WHERE kind IN ({chosen})) AS events,
                   count(*) AS copies, count(*) FILTER (e.id <> b.id) AS under_new_ids,
                   count(*) FILTER (l.content <> k.content) AS wrong
            FROM copies c JOIN events e USING (line) JOIN learned l USING (line)
            JOIN events b ON b.line = c.beside JOIN learned k ON k.line = c.beside
            WHERE e.kind IN ({chosen})
            """  # noqa: S608  numbers of ours
        )
        by_source = (
            "SELECT source FROM events "  # noqa: S608  likewise
            f"WHERE kind IN ({chosen}) GROUP BY 1 ORDER BY count(*) DESC"
        )
        sources = [index.names.sources[source] for (source,) in index.rows(by_source)]
        types = tuple(sorted({kinds[hashed].kind.type for hashed in kinds_of_pool}))
        name = sources[0] or types[0]
        named[name] += 1
        yield Proposal(
            name=name if named[name] == 1 else f"{name} {named[name]}",
            sources=tuple(sources),
            types=types,
            key=learned.key,
            volatile=tuple(sorted(learned.volatile)),
            enough=counts["under_new_ids"] >= COPIES_NEEDED and not counts["wrong"],
            agreement={
                field.path: (field.m, field.u)
                for field in learned.fields
                if field.path in learned.key
            },
            **counts,
        )


def toml(proposals: Iterable[Proposal]) -> str:
    """Return the proposed rules with their evidence; one without enough is commented out."""
    rules = [_rule(proposal) for proposal in proposals]
    return "\n\n".join(rules or ["# Nothing to propose: see the report of diagnose."]) + "\n"


def _rule(proposal: Proposal) -> str:
    rule = [
        "[[rule]]",
        f"name = {_quoted(proposal.name)}",
        f"match = {{ source = {_listed(proposal.sources)}, type = {_listed(proposal.types)} }}",
        f"key = {_listed(proposal.key)}",
    ]
    ignored = [path for path in proposal.volatile if is_addressable(path)]
    if ignored:
        # Shadow mode compares contents without these fields.
        rule.append(f"ignore = {_listed(ignored)}")
    text = f"""\
# Of {proposal.events:,} events it drops {proposal.copies:,}, {proposal.under_new_ids:,} of them \
under another transport id.
# {proposal.wrong or "None"} of these drops differ outside of what a publication writes \
({", ".join(proposal.volatile) or "nothing"}):
# fewer than {proposal.bound:.2%} of drops are wrong (95 %, as far as this capture tells)."""
    evidence = text.splitlines()
    evidence += [
        f"# {path}: copies agree in {m or 0:.1%} (m), other events in {u:.2%} (u)."
        for path, (m, u) in proposal.agreement.items()
    ]
    if proposal.enough:
        return "\n".join([*evidence, *rule])
    notes = []
    if proposal.under_new_ids < COPIES_NEEDED:
        notes.append(
            f"# Not enough yet: {COPIES_NEEDED} copies under another transport id are needed."
        )
    if proposal.wrong:
        notes.append("# Not proved: no drop may differ outside of what a publication writes.")
    return "\n".join([*notes, *evidence, *(f"# {line}" for line in rule)])


def _listed(texts: Iterable[str]) -> str:
    return f"[{', '.join(map(_quoted, texts))}]"


def _quoted(text: str) -> str:
    return msgspec.json.encode(text).decode()
