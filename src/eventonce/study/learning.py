"""Learning from a capture: its kinds of event, and for kinds without a business key the volatile
fields and the fields that tell events apart."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple
from zlib import crc32

from eventonce.rules.explanation import Strength
from eventonce.study import fields
from eventonce.study.fields import Learned, Sample
from eventonce.study.index import UINT64_MASK, Index, Kind, samples_at
from eventonce.types import Event

MOST_SAMPLES: Final = 20_000
"""The number of events of a source from which its fields are learned."""
FIRST_SAMPLES: Final = 2_000
"""Events that show which values are rare; the others are chosen by these values."""
NO_TYPE: Final = "\0"
"""A type that no rule names."""
LEARNED_ROW: Final = {"line": "BIGINT", "key": "UBIGINT", "content": "UBIGINT"}


class Known(NamedTuple):
    """The properties of a kind, from one of its events."""

    kind: Kind
    events: int
    strength: Strength | None
    paths: frozenset[str]
    any_type: bool = False
    """Whether the rule takes events of any type: no rule names this type."""

    @property
    def weak(self) -> bool:
        """Whether the rule does not know the source: a copy under another id may pass."""
        if self.strength is None or self.strength == "business key":
            return False
        return self.strength != "content and time" or self.kind.rule.startswith("auto.")


class Pool(NamedTuple):
    """Kinds of one form, learned together."""

    kinds: tuple[int, ...]
    learned: Learned


def kinds_of(index: Index) -> dict[int, Known]:
    """Return the kinds of event in a capture, described by the first event of each."""
    first = {
        line: (hashed, events)
        for line, hashed, events in index.rows(
            "SELECT min(line), kind, count(*) FROM events GROUP BY kind ORDER BY 1"
        )
    }
    found = {
        hashed: Known(index.names.kinds[hashed], events, None, frozenset())
        for hashed, events in first.values()
    }
    for event, sample in samples_at(index.capture, iter(first)):
        hashed, _ = first[sample.line]
        explained = index.planned.rules.explain(event)
        found[hashed] = found[hashed]._replace(
            strength=None if explained.missing else explained.strength,
            paths=frozenset(sample.leaves),
            any_type=any(
                rule.name == found[hashed].kind.rule
                and rule.match.fits(event.form, event.source, NO_TYPE)
                for rule in index.planned.rules.rules
            ),
        )
    return found


def learn(index: Index, weak: dict[int, Known]) -> list[Pool]:
    """Learn the fields of sources without a business key, and the keys of all their events."""
    by_form: dict[tuple[str, frozenset[str]], list[int]] = defaultdict(list)
    for hashed, known in weak.items():
        by_form[known.kind.org, known.paths].append(hashed)
    pools = []
    for members in by_form.values():
        total = sum(weak[hashed].events for hashed in members)
        learned = fields.learn(_samples(index, members, total))
        pools.append(Pool(tuple(members), learned))
        if learned.key:
            index.load("learned", LEARNED_ROW, _keyed(index, members, learned))
    return pools


def _events(index: Index, kinds: Sequence[int]) -> Iterator[tuple[Event, Sample]]:
    """Yield all events of these kinds."""
    chosen = ", ".join(map(str, kinds))
    rows = index.rows(f"SELECT line FROM events WHERE kind IN ({chosen}) ORDER BY line")  # noqa: S608  numbers of ours
    return samples_at(index.capture, (line for (line,) in rows))


def _samples(index: Index, kinds: Sequence[int], total: int) -> list[Sample]:
    """Return events of these kinds. Of many, the first ones, and all that have one of the chosen
    rare values, so that copies stay together."""
    samples: list[Sample] = []
    rare: list[str] = []
    one_in = max(1, 4 * total // MOST_SAMPLES)
    for event, sample in _events(index, kinds):
        leaves = {fields.TYPE_PATH: event.type, **sample.leaves}
        if len(samples) == FIRST_SAMPLES:
            rare = [
                path for path, field in fields.profile(samples).items() if field.u < fields.RARE_U
            ]
        if len(samples) < FIRST_SAMPLES or any(_chosen(leaves.get(path), one_in) for path in rare):
            samples.append(sample._replace(leaves=leaves))
    return samples


def _chosen(value: Any, one_in: int) -> bool:
    """Return whether events with this value are chosen; unlike with `hash`, always the same."""
    return crc32(repr(value).encode("utf-8", "surrogatepass")) % one_in == 0


def _keyed(index: Index, kinds: Sequence[int], learned: Learned) -> Iterator[bytes]:
    for event, sample in _events(index, kinds):
        content = fields.content_of(sample.leaves, learned.volatile)
        leaves = {**sample.leaves, fields.WHOLE_DETAIL: content}
        if all(leaves.get(path) is not None for path in learned.key):
            key = hash(repr((event.type, *(leaves[path] for path in learned.key)))) & UINT64_MASK
            yield b"%d\t%d\t%d\n" % (sample.line, key, content & UINT64_MASK)
