"""The fields of events: how each behaves among events and among copies, learned without labels.

Two numbers say what a field is good for: u, how often two random events agree in it, and m, how
often two copies do. A field in which copies disagree is volatile; a field in which only copies
agree can identify an event.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import combinations, pairwise
from typing import Any, Final, NamedTuple

import msgspec

from eventonce.rules.expressions import Path, parse
from eventonce.study.units import DAY, MINUTE

Leaves = Mapping[str, Any]
"""The fields of a detail by their paths; a list is one value."""

RARE_U: Final = 0.05
"""The share of pairs of random events with the same value below which a field identifies."""
CONSTANT_U: Final = 0.95
"""The share of equal pairs above which a field is constant, and says nothing about an event."""
UNIQUE_SHARE: Final = 0.6
"""The share of different values above which nearly every event has its own."""
MIN_PAIRS: Final = 3
"""Pairs that must differ in the same fields before these count as volatile."""
LARGEST_GROUP: Final = 12
"""The most events with one value of which all pairs are compared."""
NOTICE_PATHS: Final = ("detail.metadata", "detail.timestamp")
"""Fields that Genesys writes anew with each notice: they are not part of the fact."""
TYPE_PATH: Final = "type"
"""The path of an event's type, which is in every key."""
WHOLE_DETAIL: Final = "hash(detail)"
MOST_PARTS: Final = 4
"""The most parts of a proposed key: a key of more parts is like a hash of the content."""
USUAL_DELAY: Final = MINUTE
"""Milliseconds between the time of an event and its arrival, for most events. The creation time of
an entity is no such time: later events of the entity are far from it."""
INSTANT_RANGE: Final = 400 * DAY
"""Milliseconds around an arrival in which a number can be an instant."""


INSTANT_LIMIT: Final = 10**15
"""The limit above which a number is no instant in milliseconds."""


class Sample(NamedTuple):
    """One event that is compared with others of its kind."""

    line: int
    id: int
    arrived: int
    leaves: Leaves


class Field(NamedTuple):
    """The statistics of one field."""

    path: str
    present: float
    """The share of events that have the field."""
    u: float
    unique: float
    """The share of different values among all."""
    time: bool
    """Whether its values are instants."""
    happened: bool = False
    """Whether the values are times of events: near the arrival, and seldom shared."""
    m: float | None = None
    """None if there are no copies under another transport id."""
    counter: bool = False
    """Whether the value rises within an entity."""
    attempts: bool = False
    """Whether the value counts the publications of an event: it rises only between copies."""

    @property
    def role(self) -> str:
        """The role of the field, as a word."""
        if self.m is not None and self.m < 0.9:
            return "volatile"
        if self.u > CONSTANT_U:
            return "constant"
        if self.time:
            return "time"
        if self.counter:
            return "order"
        return "identity" if self.u < RARE_U else "content"


class Learned(NamedTuple):
    """The findings about a kind of event, learned from its own copies."""

    fields: tuple[Field, ...]
    volatile: frozenset[str]
    """The fields that differ between copies."""
    key: tuple[str, ...]
    """The fields that tell events apart and are equal in copies; empty if nothing was proved, and
    the whole content if copies are equal in every byte."""


def leaves_of(detail: bytes) -> dict[str, Any]:
    """Return the fields of a detail, each under its path."""
    found: dict[str, Any] = {}
    try:
        _flatten(msgspec.json.decode(detail), "detail", found)
    except (ValueError, RecursionError):
        found["detail"] = hash(detail)
    return found


def _flatten(value: Any, path: str, found: dict[str, Any]) -> None:
    if type(value) is dict and value:
        for name, inner in value.items():
            if "." in name:
                # No path can name this field: it counts as a part of its object.
                found[path] = msgspec.json.encode(value, order="deterministic")
            else:
                _flatten(inner, f"{path}.{name}", found)
    elif type(value) in (list, dict):
        found[path] = msgspec.json.encode(value, order="deterministic")
    else:
        # As in keys, 1.0 is 1.
        found[path] = int(value) if type(value) is float and value.is_integer() else value


def content_of(leaves: Leaves, volatile: Collection[str] = ()) -> int:
    """Return a number for these fields without the volatile ones: made from their text, because
    Python gives -1 and -2, and 1 and true, the same hash."""
    return hash(repr(sorted(item for item in leaves.items() if item[0] not in volatile)))


def profile(samples: Sequence[Sample]) -> dict[str, Field]:
    """Return the fields of these events, without the statistics of copies."""
    values: dict[str, Counter[Any]] = defaultdict(Counter)
    times: Counter[str] = Counter()
    near: Counter[str] = Counter()
    for sample in samples:
        for path, value in sample.leaves.items():
            values[path][value] += 1
            at = instant_of(value)
            if at is not None and abs(at - sample.arrived) < INSTANT_RANGE:
                times[path] += 1
                near[path] += abs(at - sample.arrived) <= USUAL_DELAY
    found = {}
    for path, counts in values.items():
        total = counts.total()
        pairs = max(1, total * (total - 1))
        u = sum(times_ * (times_ - 1) for times_ in counts.values()) / pairs
        time = times[path] >= 0.95 * total
        happened = time and u < RARE_U and near[path] >= 0.8 * total
        found[path] = Field(path, total / len(samples), u, len(counts) / total, time, happened)
    return found


def instant_of(value: Any) -> float | None:
    """Return a value as an instant in milliseconds; None if it cannot be one."""
    if type(value) is str:
        if not 10 < len(value) < 40 or value[4] != "-":
            return None
        try:
            at = datetime.fromisoformat(value)
            # In UTC without an offset, as in a key.
            return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000
        except (ValueError, OverflowError):
            return None
    if type(value) in (int, float) and abs(value) < INSTANT_LIMIT:
        return float(value if value > 10**11 else value * 1000)
    return None


def learn(samples: Sequence[Sample]) -> Learned:
    """Return the volatile fields and the key of these events, all of one kind."""
    known = profile(_different(samples))
    entities = [field.path for field in known.values() if field.u < RARE_U and not field.time]
    known |= {
        path: known[path]._replace(counter=True) for path in _counters(samples, known, entities)
    }
    pairs = list(_pairs(samples, [field.path for field in known.values() if field.u < RARE_U]))
    known |= {
        path: known[path]._replace(attempts=True) for path in _attempts(samples, pairs, known)
    }
    volatile = _volatile(pairs, known, entities)
    copies = [
        pair
        for pair in pairs
        if differing(*pair) <= volatile and _proved(*pair, volatile, known, entities)
    ]
    fields = agreed(known.values(), copies)
    key: tuple[str, ...] = ()
    if copies:
        # Without a volatile field, an id of the event cannot be told from an id of its sending.
        by_path = {field.path: field for field in fields}
        key = _key(samples, by_path, volatile, entities) if volatile else (WHOLE_DETAIL,)
    return Learned(ordered(fields), volatile, key)


ROLES: Final = ("identity", "order", "time", "content", "constant", "volatile")


def ordered(found: Iterable[Field]) -> tuple[Field, ...]:
    """Return the fields in the order of their roles."""
    return tuple(sorted(found, key=lambda field: (ROLES.index(field.role), field.u)))


def _counters(
    samples: Sequence[Sample], known: Mapping[str, Field], entities: Sequence[str]
) -> set[str]:
    """Return whole numbers that rise with every event of an entity."""
    numbers = [
        path
        for path, field in known.items()
        if not field.time and field.u < CONSTANT_U and field.present > 0.9
    ]
    happened = [path for path, field in known.items() if field.happened]
    rises: Counter[str] = Counter()
    steps: Counter[str] = Counter()
    for entity in entities:
        if known[entity].unique > UNIQUE_SHARE:
            continue
        for group in _blocks(samples, entity).values():
            if len(group) > LARGEST_GROUP:
                continue
            for path in numbers:
                told: list[tuple[float, Any]] = [
                    (_when(sample, happened), sample.leaves.get(path)) for sample in group
                ]
                if any(type(value) is not int for _, value in told):
                    continue
                for (_, a), (_, b) in pairwise(sorted(set(told))):
                    steps[path] += 1
                    rises[path] += b > a
    return {path for path in numbers if steps[path] >= 10 and rises[path] >= 0.95 * steps[path]}


def _when(sample: Sample, happened: Sequence[str]) -> float:
    """Return when an event happened: the earliest of its own times, else its arrival."""
    instants = (instant_of(sample.leaves.get(path)) for path in happened)
    return min((at for at in instants if at is not None), default=float(sample.arrived))


def _different(samples: Iterable[Sample]) -> list[Sample]:
    """Return one of all equal events: with copies, fields would look more common."""
    seen: dict[int, Sample] = {}
    for sample in samples:
        seen.setdefault(content_of(sample.leaves), sample)
    return list(seen.values())


def _attempts(
    samples: Sequence[Sample], pairs: Sequence[tuple[Sample, Sample]], known: Mapping[str, Field]
) -> set[str]:
    """Return counts of publications: whole numbers whose lowest value is the most frequent, and
    that differ between events which otherwise differ only in fields of a publication."""
    lowest = {
        path: counts.most_common(1)[0][0]
        for path, field in known.items()
        if field.u > 0.4 and not field.time and not field.counter
        for counts in [Counter[Any](sample.leaves.get(path) for sample in samples)]
        if all(type(value) is int for value in counts)
        and min(counts) == counts.most_common(1)[0][0]
    }
    begun: Counter[str] = Counter()
    steps: Counter[str] = Counter()
    for one, other in pairs:
        counted = [path for path in differing(one, other) if not _published(known[path])]
        if len(counted) == 1 and (path := counted[0]) in lowest:
            steps[path] += 1
            begun[path] += lowest[path] in (one.leaves[path], other.leaves[path])
    return {path for path in steps if steps[path] >= MIN_PAIRS and begun[path] >= 0.6 * steps[path]}


def _blocks(samples: Iterable[Sample], path: str) -> dict[Any, list[Sample]]:
    blocks: dict[Any, list[Sample]] = defaultdict(list)
    for sample in samples:
        if path in sample.leaves:
            blocks[sample.leaves[path]].append(sample)
    return blocks


def _pairs(samples: Sequence[Sample], paths: Sequence[str]) -> Iterator[tuple[Sample, Sample]]:
    """Yield events under different transport ids that share a rare value: all copies do."""
    seen: set[tuple[int, int]] = set()
    for path in paths:
        for group in _blocks(samples, path).values():
            if 1 < len(group) <= LARGEST_GROUP:
                for one, other in combinations(group, 2):
                    if one.id != other.id and (one.line, other.line) not in seen:
                        seen.add((one.line, other.line))
                        yield one, other


def differing(one: Sample, other: Sample) -> frozenset[str]:
    """Return the fields in which two events differ."""
    a, b = one.leaves, other.leaves
    return frozenset(path for path in {**a, **b} if a.get(path, _ABSENT) != b.get(path, _ABSENT))


_ABSENT: Final = object()


def _volatile(
    pairs: Sequence[tuple[Sample, Sample]], known: Mapping[str, Field], entities: Sequence[str]
) -> frozenset[str]:
    """Return the fields that a source writes anew at each publication.

    The fewer fields differ in a pair, the more likely it is a pair of copies. So sets of fields are
    tried from the smallest. A set counts if a publication can write all of its fields (an instant,
    a trace, a count of publications), and the proof of a copy does not need them.
    """
    supported = Counter(differing(one, other) for one, other in pairs)
    examples = {differing(one, other): (one, other) for one, other in pairs}
    volatile: frozenset[str] = frozenset()
    for fields, support in sorted(supported.items(), key=lambda item: (len(item[0]), -item[1])):
        if support < MIN_PAIRS and fields - volatile:
            continue
        if all(_published(known[path]) for path in fields) and _proved(
            *examples[fields], volatile | fields, known, entities
        ):
            volatile |= fields
    return volatile


def _published(field: Field) -> bool:
    """Return whether each publication may write this field anew."""
    if field.counter:
        return False
    return field.time or field.unique > UNIQUE_SHARE or field.u > CONSTANT_U or field.attempts


def _proved(
    one: Sample,
    other: Sample,
    volatile: frozenset[str],
    known: Mapping[str, Field],
    entities: Sequence[str],
) -> bool:
    """Return whether two events agree in what they are about, and in their time or number.

    Agreement in all other fields proves nothing, because states return; nor does an id alone,
    because it may be the id of an entity.
    """
    same = {
        path
        for path, value in one.leaves.items()
        if path not in volatile and path in other.leaves and other.leaves[path] == value
    }
    return any(path in same for path in entities) and any(
        known[path].happened or known[path].counter for path in same
    )


def agreed(known: Iterable[Field], pairs: Sequence[tuple[Sample, Sample]]) -> list[Field]:
    """Return the fields, each with how often these copies agree in it. Equal copies say the same of
    every field, and count only if there are no others.
    """
    telling = [pair for pair in pairs if differing(*pair)] or pairs
    return [field._replace(m=_agreement(telling, field.path)) for field in known]


def _agreement(pairs: Sequence[tuple[Sample, Sample]], path: str) -> float | None:
    both = [
        one.leaves[path] == other.leaves[path]
        for one, other in pairs
        if path in one.leaves and path in other.leaves
    ]
    return sum(both) / len(both) if both else None


def _key(
    samples: Sequence[Sample],
    fields: Mapping[str, Field],
    volatile: frozenset[str],
    entities: Sequence[str],
) -> tuple[str, ...]:
    """Return the fewest fields that tell apart all events with different non-volatile fields."""
    usable = [
        field
        for field in fields.values()
        if field.path not in volatile
        and is_addressable(field.path)
        and field.u < CONSTANT_U
        and field.present > 0.999
        and (field.m is None or field.m > 0.999)
    ]
    # An entity with its count or time identifies an event; a time alone is unique by chance.
    usable.sort(
        key=lambda field: (field.path not in entities, not field.counter, not field.time, field.u)
    )
    contents = {sample.line: content_of(sample.leaves, volatile) for sample in samples}
    telling = [field.path for field in usable if field.u < RARE_U or field.counter]
    others = [field.path for field in usable if field.path not in telling]
    for size in range(1, MOST_PARTS + 1):
        for parts in combinations((*telling, *others)[:12], size):
            if all(fields[path].time for path in parts):
                continue
            if _separates(samples, parts, contents):
                return parts
    return ()


def is_addressable(path: str) -> bool:
    """Return whether a rule can name this field: some names have another meaning, or none."""
    try:
        found = parse(path)
    except ValueError:
        return False
    return isinstance(found, Path) and not found.optional and path.split(".")[1:] == [*found.steps]


def _separates(
    samples: Sequence[Sample], parts: Sequence[str], contents: Mapping[int, int]
) -> bool:
    """Return whether no two different events of one type have equal parts."""
    seen: dict[tuple[Any, ...], int] = {}
    for sample in samples:
        key = tuple(sample.leaves.get(path) for path in (TYPE_PATH, *parts))
        content = contents[sample.line]
        if seen.setdefault(key, content) != content:
            return False
    return True
