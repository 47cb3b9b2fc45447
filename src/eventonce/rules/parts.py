"""The parts of a key in one event: the values at the paths of a rule, and the results of the rule's
expressions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final

import msgspec
from msgspec.structs import astuple

from eventonce.errors import EnvelopeError
from eventonce.rules.expressions import Each, Expression, Hash, Max, Path, Root, Time, Topic, paths
from eventonce.rules.instants import instant
from eventonce.rules.keys import (
    ABSENT,
    NAMELESS,
    content_hash,
    decode_exact,
    encode,
    is_empty,
    number,
)
from eventonce.types import MAX_ORDER, Event

Steps = tuple[str, ...]
Place = tuple[Root, Steps]
"""The place of a value: a path, whether it is optional or not."""

Values = tuple[Any, ...]
Extract = Callable[[Event], Values]
Part = Callable[[Values], Any]

EVENT_BODY: Final[Place] = ("detail", ("eventBody",))
"""The place of `eventBody`: `body` means the `eventBody` if an event has one, else the detail."""


class Incomplete(Exception):
    """A missing part of a key: its path, and the reason.

    The reason names the kind of a value and never the value itself, which may be personal: reasons
    are logged. `value` is for readers who see the whole event anyway.
    """

    def __init__(
        self, path: Path, reason: str, *, absent: bool = False, value: Any = ABSENT
    ) -> None:
        super().__init__(reason)
        self.path = path
        self.reason = reason
        self.absent = absent
        self.value = value


# --- the values of an event ---


class Tree:
    """A decoded event; each root is decoded at its first use."""

    __slots__ = ("_roots", "event")

    def __init__(self, event: Event) -> None:
        self.event = event
        self._roots: dict[Root, Any] = {}

    def value(self, root: Root, steps: Steps) -> Any:
        """Return the value at this path; ABSENT if there is none."""
        if root in ("event", "headers"):
            return _outside(self.event, root, steps[0])
        return walk(self._root(root), steps)

    def has(self, path: Path) -> bool:
        """Whether the event has a value at this path; a blank text does not count."""
        return not is_empty(self.value(path.root, path.steps))

    def _root(self, root: Root) -> Any:
        if root not in self._roots:
            if root == "body":
                nested = self.value(*EVENT_BODY)
                self._roots[root] = self._root("detail") if nested is ABSENT else nested
            else:
                event = self.event
                raw = event.detail_raw if root == "detail" else event.envelope_raw or event.raw
                try:
                    self._roots[root] = decode_exact(raw)
                except (ValueError, RecursionError) as error:
                    said = f"the event cannot be decoded: {error}"
                    raise EnvelopeError(said, place=root) from None
        return self._roots[root]


def walk(value: Any, steps: Steps) -> Any:
    """Follow the names through objects; return ABSENT if one is missing."""
    for step in steps:
        if type(value) is not dict:
            return ABSENT
        value = value.get(step, ABSENT)
    return value


def _outside(event: Event, root: Root, name: str) -> Any:
    """Return a value that is not in the event's JSON, or that the envelope reader has read."""
    if root == "headers":
        return event.headers.get(name, ABSENT)
    return getattr(event, name) or ABSENT


def extractor(places: Sequence[Place]) -> Extract:
    """Return a function from an event to its values at these places.

    Only these values are decoded if the event has the usual shape. The whole event is decoded if it
    has another one (no `eventBody` for a path of the body, no object in the middle of a path), if
    one place is inside another, or if a name has a character that no name of a struct may have.
    """

    def walked(event: Event) -> Values:
        value = Tree(event).value
        return tuple([value(root, steps) for root, steps in places])

    inside = [
        ("eventBody", *steps) if root == "body" else steps
        for root, steps in places
        if root in ("detail", "body")
    ]
    around = [steps for root, steps in places if root == "envelope"]
    outside = [(root, steps[0]) for root, steps in places if root in ("event", "headers")]
    names = "".join(step for steps in (*inside, *around) for step in steps)
    if _overlap(inside) or _overlap(around) or _UNNAMEABLE.search(names):
        return walked
    # Without an eventBody the body is the detail itself: then decoding to the struct must fail.
    needed = "eventBody" if any(root == "body" for root, _ in places) else ""
    decode, read = _decoder(inside, needed)
    unpack, take = _decoder(around)

    def others(event: Event) -> Values:
        values = take(unpack(event.envelope_raw or event.raw)) if around else ()
        return values + tuple([_outside(event, root, name) for root, name in outside])

    more = others if around or outside else None

    if more is None and len({steps[:-1] for steps in inside}) == 1 and len(inside[0]) == 2:
        # All values are in one object of the detail, mostly the body: two calls less.
        def extract_one(event: Event) -> Values:
            try:
                return astuple(decode(event.detail_raw).f0)
            except (ValueError, RecursionError):
                return walked(event)

        return extract_one

    def extract(event: Event) -> Values:
        try:
            values = read(decode(event.detail_raw))
            return values if more is None else values + more(event)
        except (ValueError, RecursionError):
            return walked(event)

    return extract


_UNNAMEABLE: Final = re.compile(r'[\\"\x00-\x1f]')
"""The characters that msgspec refuses in the name of a field."""


def _overlap(paths: Sequence[Steps]) -> bool:
    return any(
        not one or (place != other_place and other[: len(one)] == one)
        for place, one in enumerate(paths)
        for other_place, other in enumerate(paths)
    )


def _decoder(
    paths: Sequence[Steps], needed: str = ""
) -> tuple[Callable[[bytes | msgspec.Raw], Any], Callable[[Any], Values]]:
    """Return two functions: from JSON to a struct with only these fields, and from the struct to
    their values. The field `needed` must be there."""
    if not paths:
        return lambda _: None, lambda _: ()
    attributes: dict[Steps, str] = {}
    struct = _struct(paths, (), "", attributes, needed)
    decode = msgspec.json.Decoder(struct, float_hook=number).decode
    read: Callable[[Any], Any] = attrgetter(*(attributes[path] for path in paths))
    # `attrgetter` returns a value for one name, a tuple for several.
    return decode, read if len(paths) > 1 else lambda picked: (read(picked),)


def _struct(
    paths: Sequence[Steps],
    above: Steps,
    prefix: str,
    attributes: dict[Steps, str],
    needed: str,
) -> type[msgspec.Struct]:
    """Return a struct type for these paths, nested like them; fill `attributes` for each path."""
    below: dict[str, list[Steps]] = {}
    for path in paths:
        below.setdefault(path[0], []).append(path[1:])
    fields: list[Any] = []
    rename = {}
    for place, (step, rest) in enumerate(below.items()):
        # JSON names need not be Python names, so the fields are only numbered.
        name = f"f{place}"
        rename[name] = step
        attributes[(*above, step)] = prefix + name
        kind: Any = Any
        default: Any = ABSENT
        if rest[0]:
            kind = _struct(rest, (*above, step), f"{prefix}{name}.", attributes, "")
            default = msgspec.field(default_factory=kind)
        fields.append((name, kind) if step == needed else (name, kind, default))
    return msgspec.defstruct(
        "Picked", fields, rename=rename, kw_only=True, frozen=True, gc=False, eq=False
    )


# --- the parts of a key ---


def places_for(trees: Sequence[Expression], ignored: Sequence[Path] = ()) -> dict[Place, int]:
    """Return the places that these expressions read, each with its index among the values."""
    found: dict[Place, None] = {}
    for tree in trees:
        found.update(((path.root, path.steps), None) for path in paths(tree))
        if isinstance(tree, Hash) and len(set(left_out(tree.of, ignored))) > 1:
            found[EVENT_BODY] = None
    # In the order in which `extractor` returns the values.
    ranks: dict[Root, int] = {"detail": 0, "body": 0, "envelope": 1, "event": 2, "headers": 2}
    ordered = sorted(found, key=lambda place: ranks[place[0]])
    return {place: number for number, place in enumerate(ordered)}


def part(tree: Expression, places: Mapping[Place, int], ignored: Sequence[Path] = ()) -> Part:
    """Return the function for this expression, which raises Incomplete if it has no value."""
    match tree:
        case Path():
            return _path(tree, places)
        case Hash(of=path):
            return _hash(path, places, ignored)
        case Topic():
            return _topic(tree, places)
        case Time():
            return _time(tree, part(tree.of, places))
        case Max():
            return _max(tree, [part(one, places) for one in tree.of])
        case Each():
            return _each(tree, places)


def order_of(value: Any) -> int | None:
    """Return a value as an order: integers as they are, ISO times in milliseconds; else None.

    A number with a fraction is no order: seconds would be compared with milliseconds.
    """
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        digits = value.removeprefix("-")
        if digits.isascii() and digits.isdigit() and len(digits) <= len(str(MAX_ORDER)):
            value = int(value)
        else:
            value = instant(value, "iso")
    if not isinstance(value, int) or abs(value) > MAX_ORDER:
        return None
    return value


def form_of(tree: Expression) -> str:
    """Return the form to read the value of an expression as a time; `Time` gives milliseconds."""
    return "ms" if isinstance(tree, Time) else ""


def kind_of(value: Any) -> str:
    """Return the JSON name for the kind of a value."""
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean"}
    return "null" if value is None else names.get(type(value), "a number")


def missing(value: Any) -> str:
    """Return the words for an empty value."""
    if value is ABSENT:
        return "is missing"
    if value is None:
        return "is null"
    return f'is the text "{value}"' if value and value in NAMELESS else "is empty"


def _value(path: Path, places: Mapping[Place, int]) -> Part:
    """Return the function for a value of any kind; it raises if the path is required and empty."""
    place = places[path.root, path.steps]

    def value(values: Values) -> Any:
        found = values[place]
        if not path.optional and is_empty(found):
            raise Incomplete(path, missing(found), absent=True)
        return found

    return value


def _path(path: Path, places: Mapping[Place, int]) -> Part:
    value_of = _value(path, places)

    def scalar(values: Values) -> Any:
        value = value_of(values)
        if isinstance(value, (dict, list)):
            raise Incomplete(path, f"is {kind_of(value)}: write hash(...) to use all of it")
        return value

    return scalar


def _hash(path: Path, places: Mapping[Place, int], ignored: Sequence[Path]) -> Part:
    value_of = _value(path, places)
    nested, flat = left_out(path, ignored)
    body = places[EVENT_BODY] if nested != flat else None

    def hashed(values: Values) -> Any:
        value = value_of(values)
        if value is ABSENT or value is None:
            return value
        for steps in flat if body is not None and values[body] is ABSENT else nested:
            value = _without(value, steps)
        try:
            return content_hash(encode(value))
        except RecursionError:
            raise Incomplete(path, "is nested too deep to be hashed") from None

    return hashed


def left_out(path: Path, ignored: Sequence[Path]) -> list[tuple[Steps, ...]]:
    """Return the ignored paths inside this path, relative to it: with an eventBody, and without."""
    found = []
    for body in (("detail", "eventBody"), ("detail",)):
        start, *below = (
            (*body, *one.steps) if one.root == "body" else (one.root, *one.steps)
            for one in (path, *ignored)
        )
        size = len(start)
        found.append(tuple(one[size:] for one in below if one[:size] == start and one != start))
    return found


def _without(value: Any, steps: Steps) -> Any:
    """Return a copy of the value without the field at these steps."""
    if type(value) is not dict or steps[0] not in value:
        return value
    if len(steps) == 1:
        return {name: item for name, item in value.items() if name != steps[0]}
    return {**value, steps[0]: _without(value[steps[0]], steps[1:])}


def _topic(tree: Topic, places: Mapping[Place, int]) -> Part:
    value_of = _value(tree.of, places)

    def segment(values: Values) -> Any:
        topic = value_of(values)
        if not isinstance(topic, str):
            if tree.of.optional and (topic is ABSENT or topic is None):
                return topic
            raise Incomplete(tree.of, f"is {kind_of(topic)}, not a topic name")
        segments = topic.split(".")
        if tree.index >= len(segments):
            if tree.of.optional:
                return ABSENT
            raise Incomplete(tree.of, f"has only {len(segments)} segments")
        if not tree.of.optional and is_empty(segments[tree.index]):
            raise Incomplete(tree.of, f"has an empty segment {tree.index}")
        return segments[tree.index]

    return segment


def _time(tree: Time, inner: Part) -> Part:
    form = tree.form or form_of(tree.of)
    first = paths(tree)[0]

    def moment(values: Values) -> Any:
        value = inner(values)
        if is_empty(value):
            return value
        at = instant(value, form)
        if at is None:
            expected = f' of the form "{form}"' if form else ""
            reason = f"is {kind_of(value)}, not a time{expected}"
            raise Incomplete(first, reason, value=value)
        return at - at % tree.width

    return moment


def _max(tree: Max, parts: Sequence[Part]) -> Part:
    everywhere = paths(tree)

    def largest(values: Values) -> Any:
        found = []
        for one, path in zip(parts, tree.of, strict=True):
            try:
                value = one(values)
            except Incomplete as incomplete:
                if not incomplete.absent:
                    raise
                continue
            if is_empty(value):
                continue
            order = order_of(value)
            if order is None:
                reason = f"is {kind_of(value)}, neither a whole number nor a time"
                raise Incomplete(paths(path)[0], reason, value=value)
            found.append(order)
        if found:
            return max(found)
        if all(path.optional for path in everywhere):
            return ABSENT
        raise Incomplete(everywhere[0], "is missing, and so are the others", absent=True)

    return largest


def _each(tree: Each, places: Mapping[Place, int]) -> Part:
    value_of = _value(tree.of, places)

    def items(values: Values) -> Any:
        found = value_of(values)
        if found is ABSENT or found is None:
            return found
        if type(found) is not list:
            raise Incomplete(tree.of, f"is {kind_of(found)}, not an array")
        if not found and not tree.of.optional:
            raise Incomplete(tree.of, "is empty", absent=True)
        return sorted((_fields(tree, item) for item in found), key=encode)

    return items


def _fields(tree: Each, item: Any) -> Any:
    if not tree.fields:
        if isinstance(item, (dict, list)) or item is None:
            raise Incomplete(tree.of, f"holds {kind_of(item)}: name the fields to take")
        if is_empty(item):
            raise Incomplete(tree.of, "holds an empty text")
        return item
    fields = []
    for field in tree.fields:
        value = walk(item, field.steps)
        if isinstance(value, (dict, list)):
            raise Incomplete(tree.of, f"holds {kind_of(value)} as {'.'.join(field.steps)}")
        if is_empty(value) and not field.optional:
            raise Incomplete(tree.of, f"holds an item without {'.'.join(field.steps)}")
        fields.append(value)
    return fields
