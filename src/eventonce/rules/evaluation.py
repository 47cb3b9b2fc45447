"""What an expression says of the values it was given: a function from those values to one part."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec.msgpack import Ext

from eventonce.rules.expressions import Each, Expression, Hash, Max, Path, Root, Time, Topic, paths
from eventonce.rules.extraction import Need, Slot, Values, in_order, kind_of, walk
from eventonce.rules.instants import floor, instant
from eventonce.rules.keys import ABSENT, content_hash, encode, is_empty
from eventonce.types import MAX_ORDER

Part = Callable[[Values], Any]
Places = Mapping[tuple[Root, tuple[str, ...]], int]
"""Where in the values a path's own stands."""

Steps = tuple[str, ...]


class Incomplete(Exception):
    """This part cannot be told: where it was looked for, and why it will not do.

    The reason names the kind of a value and never the value itself, which may be personal: reasons
    are logged. `value` is for those who look at the event anyway.
    """

    def __init__(
        self, path: Path, reason: str, *, absent: bool = False, value: Any = ABSENT
    ) -> None:
        super().__init__(reason)
        self.path = path
        self.reason = reason
        self.absent = absent
        self.value = value


def slots_for(trees: Sequence[Expression], existing: Sequence[Path] = ()) -> tuple[Slot, ...]:
    """One slot for each value these expressions read, and for those that only must exist."""
    needs: dict[tuple[Root, Steps], set[Need]] = {}
    for tree in trees:
        for path in paths(tree):
            need: Need = "scalar" if tree is path else "any"
            if path.optional or isinstance(tree, Max):
                need = "scalar?" if tree is path else "any?"
            needs.setdefault((path.root, path.steps), set()).add(need)
    for path in existing:
        needs.setdefault((path.root, path.steps), set()).add("any")
    return in_order([Slot(root, steps, _strictest(all_)) for (root, steps), all_ in needs.items()])


def _strictest(needs: set[Need]) -> Need:
    # A part that must be a single value settles it: an event that fails there fails anyway.
    if "scalar" in needs:
        return "scalar"
    if needs == {"scalar?"}:
        return "scalar?"
    return "any" if needs == {"any"} else "any?"


def compiled(
    tree: Expression, places: Places, ignored: Sequence[Path] = (), *, walked: bool = True
) -> Part:
    """The function for this expression, which raises Incomplete where it has no value.

    `walked` values end with a flag that says where the body stood.
    """
    match tree:
        case Path():
            return _path(tree, places)
        case Hash(of=path):
            return _hash(path, places, ignored, len(places) if walked else None)
        case Topic():
            return _topic(tree, places)
        case Time():
            return _time(tree, compiled(tree.of, places))
        case Max():
            return _max(tree, [compiled(part, places) for part in tree.of])
        case Each():
            return _each(tree, places)


def place_of(tree: Expression, slots: Sequence[Slot]) -> int | None:
    """Where this part stands as it is among values from the struct, if the struct checked it."""
    for place, slot in enumerate(slots):
        if (
            isinstance(tree, Path)
            and (slot.root, slot.steps) == (tree.root, tree.steps)
            and slot.root in ("detail", "body", "envelope")
            and slot.need in (("scalar", "scalar?") if tree.optional else ("scalar",))
        ):
            return place
    return None


def order_of(value: Any) -> int | None:
    """A value as a place in a history: integers as they are, ISO times in milliseconds.

    A number with a fraction is none: read as seconds it would be compared with milliseconds.
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


def shown(value: Any) -> str:
    """A value as `explain` shows it: short, and as it was written."""
    text = bytes(value.data).decode() if isinstance(value, Ext) else str(value)
    return repr(text[:40])


def missing(value: Any) -> str:
    """What is said of a value that names nothing."""
    if value is ABSENT:
        return "is missing"
    return "is null" if value is None else "is empty"


def _value(path: Path, places: Places) -> Part:
    """The value of a path, whatever it is; an empty one only where it is optional."""
    place = places[path.root, path.steps]

    def value(values: Values) -> Any:
        found = values[place]
        if not path.optional and is_empty(found):
            raise Incomplete(path, missing(found), absent=True)
        return found

    return value


def _path(path: Path, places: Places) -> Part:
    value_of = _value(path, places)

    def scalar(values: Values) -> Any:
        value = value_of(values)
        if isinstance(value, (dict, list)):
            raise Incomplete(path, f"is {kind_of(value)}: write hash(...) to use all of it")
        return value

    return scalar


def _hash(path: Path, places: Places, ignored: Sequence[Path], flag: int | None) -> Part:
    value_of = _value(path, places)
    nested, flat = _below(path, ignored, nested=True), _below(path, ignored, nested=False)

    def hashed(values: Values) -> Any:
        value = value_of(values)
        if value is ABSENT or value is None:
            return value
        for steps in nested if flag is None or values[flag] else flat:
            value = _without(value, steps)
        try:
            return content_hash(encode(value))
        except RecursionError:
            raise Incomplete(path, "is nested too deep to be hashed") from None

    return hashed


def same_either_way(path: Path, ignored: Sequence[Path]) -> bool:
    """Whether a hash leaves the same fields out wherever the body stands."""
    return path.root == "body" or (
        _below(path, ignored, nested=True) == _below(path, ignored, nested=False)
    )


def _below(path: Path, ignored: Sequence[Path], *, nested: bool) -> tuple[Steps, ...]:
    """The ignored paths inside this one, from it on."""

    def absolute(one: Path) -> tuple[str, ...]:
        if one.root != "body":
            return (one.root, *one.steps)
        return ("detail", "eventBody", *one.steps) if nested else ("detail", *one.steps)

    start = absolute(path)
    below = (absolute(one) for one in ignored)
    return tuple(one[len(start) :] for one in below if one[: len(start)] == start and one != start)


def _without(value: Any, steps: Steps) -> Any:
    """A copy of the value that lacks what stands at these steps."""
    if type(value) is not dict or steps[0] not in value:
        return value
    if len(steps) == 1:
        return {name: item for name, item in value.items() if name != steps[0]}
    return {**value, steps[0]: _without(value[steps[0]], steps[1:])}


def _topic(tree: Topic, places: Places) -> Part:
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
            raise Incomplete(tree.of, f"has nothing as its segment {tree.index}")
        return segments[tree.index]

    return segment


def form_of(tree: Expression) -> str:
    """How to read an expression's value as a time: what is one already is not guessed at again."""
    return "ms" if isinstance(tree, Time) else ""


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
        return floor(at, tree.width)

    return moment


def _max(tree: Max, parts: Sequence[Part]) -> Part:
    everywhere = paths(tree)

    def largest(values: Values) -> Any:
        found = []
        for part, path in zip(parts, tree.of, strict=True):
            try:
                value = part(values)
            except Incomplete as incomplete:
                if not incomplete.absent:
                    raise
                continue
            if is_empty(value):
                continue
            order = order_of(value)
            if order is None:
                reason = f"is {kind_of(value)}, neither whole nor a time"
                raise Incomplete(paths(path)[0], reason, value=value)
            found.append(order)
        if found:
            return max(found)
        if all(path.optional for path in everywhere):
            return ABSENT
        raise Incomplete(everywhere[0], "is missing, and so are the others", absent=True)

    return largest


def _each(tree: Each, places: Places) -> Part:
    value_of = _value(tree.of, places)

    def items(values: Values) -> Any:
        found = value_of(values)
        if found is ABSENT or found is None:
            return found
        if type(found) is not list:
            raise Incomplete(tree.of, f"is {kind_of(found)}, not an array")
        if not found and not tree.of.optional:
            raise Incomplete(tree.of, "is empty", absent=True)
        picked = [_fields(tree, item) for item in found]
        return sorted(picked, key=encode)

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
