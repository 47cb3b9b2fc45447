"""A rule compiled: which values to take from an event, and what parts and order they give."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, Final, Literal

import msgspec

from eventonce.rules.evaluation import (
    Incomplete,
    Part,
    compiled,
    form_of,
    missing,
    order_of,
    place_of,
    same_either_way,
    slots_for,
)
from eventonce.rules.expressions import (
    Expression,
    Hash,
    Path,
    made_optional,
    parse,
    parse_path,
    paths,
)
from eventonce.rules.extraction import Picker, Slot, Tree, Values, fast, kind_of, slow
from eventonce.rules.instants import instant
from eventonce.rules.keys import is_empty
from eventonce.rules.rule import Missing, Rule

Kind = Literal["fact", "state", "hash", "id", "run"]

BODY: Final = Path("body", ())

FALLBACKS: Final[dict[Missing, tuple[tuple[Kind, tuple[str, ...]], ...]]] = {
    "invalid": (),
    "hash": (("hash", ("topic?", "hash(body)")),),
    "id": (("id", ("source?", "id", "hash(detail)")),),
    "run": (("id", ("source?", "id", "hash(detail)")), ("run", ())),
}
"""The keys of an event with a hole in its own, in the order they are tried. Its content is the body
alone, as the rest changes with every publish; beside the id it is the whole detail, since some call
`id` what is an entity's, and the source, within which a CloudEvent's id is unique. The last has no
parts at all: no delivery is a copy of another."""


class View(msgspec.Struct, frozen=True):
    """How to make a claim's numbers from values, given the way they were extracted."""

    parts: Callable[[Values], Sequence[Any]] | None
    """None where the values are the parts, as they are for most rules."""
    exists: Callable[[Values], bool]
    order: Callable[[Values], int] | None
    at: Callable[[Values], int | None] | None
    at_place: int | None
    """Where the time stands among the values, if it can be taken from there as it is."""
    content: Callable[[Values], Sequence[Any]] | None
    """What a version is told by, or a fact is verified by."""
    pieces: tuple[Part, ...]
    """The parts one by one, for telling what is wrong with them."""
    contents: tuple[Part, ...]


class Plan(msgspec.Struct, frozen=True):
    """One way to a key: a rule's own, that of an older version of it, or that of last resort."""

    rule: Rule
    kind: Kind
    texts: tuple[str, ...]
    trees: tuple[Expression, ...]
    prefixed: bool
    """Whether the key begins with the fact's own time."""
    slots: tuple[Slot, ...]
    picker: Picker | None
    picked: View
    """For values that came through the picker."""
    walked: View
    """For values that came by `slow`."""

    requires: tuple[Path, ...]

    shared: bool
    """Whether all events of one HTTP request may have this key: their part then joins it."""

    def fits(self, tree: Tree) -> bool:
        """Whether the event has all that the rule requires."""
        return all(map(tree.has, self.requires))

    def walk(self, tree: Tree) -> Values:
        """The values the slow way, which takes every event."""
        return slow(self.slots, tree)

    @property
    def everything(self) -> list[tuple[str, Callable[[Values], Any]]]:
        """What must be told of an event before it has a claim, with the text that asks for it."""
        asked: list[tuple[str, Callable[[Values], Any]]] = list(
            zip(self.texts, self.walked.pieces, strict=True)
        )
        if self.walked.order:
            asked.append((self.rule.order, self.walked.order))
            asked.extend(zip(self.rule.state, self.walked.contents, strict=False))
        return asked


def plan_for(rule: Rule, texts: Sequence[str], kind: Kind) -> Plan:
    """Compile this rule with these as the parts of its key."""
    trees = tuple(parse(text) for text in texts)
    own = kind in ("fact", "state")
    order = parse(rule.order) if rule.order and own else None
    # A time that is missing is missed, but makes no event invalid.
    at = made_optional(parse(rule.at)) if rule.at and own else None
    content = _content(rule) if own or kind == "hash" else ()
    existing = tuple(parse_path(text) for text in rule.requires)
    ignored = tuple(parse_path(text) for text in rule.ignore)
    every = [*trees, *content, *(tree for tree in (order, at) if tree)]
    slots = slots_for(every, existing)
    hashes = [tree for tree in every if isinstance(tree, Hash)]
    uniform = all(same_either_way(tree.of, ignored) for tree in hashes)
    views = [
        _view(trees, order, at, content, existing, ignored, slots, walked=walked)
        for walked in (False, True)
    ]
    return Plan(
        rule=rule,
        kind=kind,
        texts=tuple(texts),
        trees=trees,
        prefixed=kind == "fact" and at is not None and _is_settled_by(at, trees),
        slots=slots,
        picker=fast(slots) if uniform else None,
        picked=views[0],
        walked=views[1],
        requires=existing,
        shared=kind == "fact" and _is_shared(trees),
    )


def _is_shared(key: Sequence[Expression]) -> bool:
    """Whether nothing in this key is one event's own: headers belong to a request."""
    read = [path for tree in key for path in paths(tree)]
    return any(path.root == "headers" for path in read) and all(
        path.root == "headers" or (path.root == "event" and path.steps[0] not in ("id", "time"))
        for path in read
    )


def _content(rule: Rule) -> tuple[Expression, ...]:
    if rule.kind == "state":
        return tuple(parse(text) for text in rule.state) or (Hash(BODY),)
    if rule.verify is True:
        return (Hash(msgspec.structs.replace(BODY, optional=True)),)
    texts = rule.verify or ()
    return tuple(Hash(msgspec.structs.replace(parse_path(text), optional=True)) for text in texts)


def _is_settled_by(at: Expression, key: Sequence[Expression]) -> bool:
    """Whether events with this key all have this instant, so that it may stand in the key."""
    if at in (made_optional(part) for part in key):
        return True
    plain = {(part.root, part.steps) for part in key if isinstance(part, Path)}
    return all((path.root, path.steps) in plain for path in paths(at))


def _view(
    trees: Sequence[Expression],
    order: Expression | None,
    at: Expression | None,
    content: Sequence[Expression],
    existing: Sequence[Path],
    ignored: Sequence[Path],
    slots: Sequence[Slot],
    *,
    walked: bool,
) -> View:
    indexes = {(slot.root, slot.steps): index for index, slot in enumerate(slots)}

    def place(tree: Expression | None) -> int | None:
        return None if walked or tree is None else place_of(tree, slots)

    def part(tree: Expression) -> Part:
        index = place(tree)
        if index is not None:
            return itemgetter(index)
        return compiled(tree, indexes, ignored, walked=walked)

    pieces = tuple(part(tree) for tree in trees)
    contents = tuple(part(tree) for tree in content)
    return View(
        parts=_parts([place(tree) for tree in trees], pieces, len(slots)),
        exists=_exists([indexes[path.root, path.steps] for path in existing]),
        order=_order(order, part(order)) if order else None,
        at=_at(at, part(at)) if at else None,
        at_place=place(at),
        content=_several(contents) if contents else None,
        pieces=pieces,
        contents=contents,
    )


def _parts(
    places: Sequence[int | None], pieces: Sequence[Part], count: int
) -> Callable[[Values], Sequence[Any]] | None:
    known = [place for place in places if place is not None]
    if known == list(range(count)) and len(places) == count:
        return None
    if len(known) == len(places) > 1:
        return itemgetter(*known)
    return _several(pieces)


def _several(parts: Sequence[Part]) -> Callable[[Values], Sequence[Any]]:
    return lambda values: tuple([part(values) for part in parts])


def _exists(places: Sequence[int]) -> Callable[[Values], bool]:
    def exists(values: Values) -> bool:
        # A blank text names nothing: the next rule may know the event better.
        return not any(is_empty(values[place]) for place in places)

    return exists


def _order(tree: Expression, part: Part) -> Callable[[Values], int]:
    first = paths(tree)[0]

    def order(values: Values) -> int:
        value = part(values)
        place = order_of(value)
        if place is None:
            absent = is_empty(value)
            reason = (
                f"{missing(value)}: a version needs its order"
                if absent
                else f"is {kind_of(value)}, neither a whole number below 2^53 nor an ISO time"
                f"{_as_time(tree, value)}"
            )
            raise Incomplete(first, reason, absent=absent, value=value)
        return place

    return order


def _as_time(tree: Expression, value: Any) -> str:
    """What to write where a number with a fraction, which is no version, may be a time."""
    at = instant(value)
    if at is None or not isinstance(tree, Path):
        return ""
    path = ".".join((tree.root, *tree.steps))
    form = "s" if at == instant(value, "s") else "ms"
    return f': write time({path}, "{form}") if it is a time'


def _at(tree: Expression, part: Part) -> Callable[[Values], int | None]:
    form = form_of(tree)

    def at(values: Values) -> int | None:
        try:
            return instant(part(values), form)
        except Incomplete:
            return None

    return at
