"""The values a rule reads, out of an event: picked by a struct made for just these paths, or by a
walk through the whole event where its shape is unusual. Both ways give the same values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, Final, Literal

import msgspec

from eventonce.errors import EnvelopeError
from eventonce.rules.expressions import EVENT_NAMES, Path, Root
from eventonce.rules.keys import ABSENT, decode_exact, is_empty, number
from eventonce.types import Event

Values = tuple[Any, ...]

SCALAR: Final = str | int | bool
"""No float: the struct then refuses it, and the walk gives an integral one as the integer it is."""

Need = Literal["scalar", "scalar?", "any", "any?"]
"""What a rule makes of a value: a single one, or any JSON; `?` where it may be absent."""

_TYPES: Final[dict[Need, Any]] = {"scalar": SCALAR, "scalar?": SCALAR | None}


class Slot(msgspec.Struct, frozen=True):
    """One value to extract: where it stands, and what it must be."""

    root: Root
    steps: tuple[str, ...]
    need: Need


class Tree:
    """An event unpacked, each part when first asked for."""

    __slots__ = ("_roots", "event")

    def __init__(self, event: Event) -> None:
        self.event = event
        self._roots: dict[Root, Any] = {}

    @property
    def nested(self) -> bool:
        """Whether the body is the detail's eventBody, rather than the detail itself."""
        detail = self.root("detail")
        return type(detail) is dict and "eventBody" in detail

    def root(self, root: Root) -> Any:
        """What paths of this root begin from."""
        if root not in self._roots:
            self._roots[root] = self._unpacked(root)
        return self._roots[root]

    def value(self, root: Root, steps: tuple[str, ...]) -> Any:
        """What stands there; ABSENT where the path leads nowhere."""
        return walk(self.root(root), steps)

    def has(self, path: Path) -> bool:
        """Whether something stands there; a blank text names nothing."""
        return not is_empty(walk(self.root(path.root), path.steps))

    def obstacle(self, path: Path) -> str:
        """Why the path leads nowhere, in the words of a complaint."""
        value = self.root(path.root)
        for place, step in enumerate(path.steps):
            if type(value) is not dict:
                crossed = ".".join((path.root, *path.steps[:place]))
                return f"is missing: {crossed} is {kind_of(value)}, not an object"
            value = value.get(step, ABSENT)
            if value is ABSENT:
                break
        if value is None:
            return "is null"
        return "is missing" if value is ABSENT else "is empty"

    def _unpacked(self, root: Root) -> Any:
        event = self.event
        match root:
            case "detail":
                return _unpacked(event.detail_raw, root)
            case "body":
                return self.root("detail")["eventBody"] if self.nested else self.root("detail")
            case "envelope":
                return _unpacked(event.envelope_raw or event.raw, root)
            case "headers":
                return dict(event.headers)
            case "event":
                return {name: value for name in EVENT_NAMES if (value := getattr(event, name))}


def walk(value: Any, steps: tuple[str, ...]) -> Any:
    """Follow the names through objects; ABSENT where one is not there."""
    for step in steps:
        if type(value) is not dict:
            return ABSENT
        value = value.get(step, ABSENT)
    return value


def kind_of(value: Any) -> str:
    """What JSON calls a value of this kind."""
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean"}
    return "null" if value is None else names.get(type(value), "a number")


def slow(slots: Sequence[Slot], tree: Tree) -> Values:
    """The values by walking; last of all, whether the body is the eventBody."""
    return (*[walk(tree.root(slot.root), slot.steps) for slot in slots], tree.nested)


class Picker(msgspec.Struct, frozen=True):
    """The quick way to the values: `read_off(decode(event.detail_raw))`, and then the others.

    Raises ValueError for an event it cannot take.
    """

    decode: Callable[[bytes | msgspec.Raw], Any]
    read_off: Callable[[Any], Values]
    together: bool
    """Whether the values are those of the struct's first field, in order: the quickest to read."""
    others: Callable[[Event], Values] | None
    """Of the values that do not stand in the detail."""


def fast(slots: Sequence[Slot]) -> Picker | None:
    """How to pick these values; None where one lies inside another, which only a walk can give."""
    detail = [_within_detail(slot) for slot in slots if slot.root in ("detail", "body")]
    # Without an eventBody the body is the detail itself: the struct then must not fit.
    needed = "eventBody" if any(slot.root == "body" for slot in slots) else ""
    envelope = [slot for slot in slots if slot.root == "envelope"]
    others = [slot for slot in slots if slot.root in ("event", "headers")]
    if _overlap(detail) or _overlap(envelope):
        return None
    decode, read_off = _decoder(detail, needed)
    parents = {slot.steps[:-1] for slot in detail}
    together = len(parents) == 1 and len(next(iter(parents))) == 1
    if not envelope and not others:
        return Picker(decode, read_off, together, None)
    unpack, take = _decoder(envelope)

    def rest(event: Event) -> Values:
        values = take(unpack(event.envelope_raw or event.raw)) if envelope else ()
        return values + tuple([_plain(event, slot) for slot in others])

    return Picker(decode, read_off, together, rest)


def in_order(slots: Sequence[Slot]) -> tuple[Slot, ...]:
    """The slots in the order in which a picker gives their values."""
    ranks: dict[Root, int] = {"detail": 0, "body": 0, "envelope": 1, "event": 2, "headers": 2}
    return tuple(sorted(slots, key=lambda slot: ranks[slot.root]))


def _within_detail(slot: Slot) -> Slot:
    return slot if slot.root == "detail" else Slot("detail", ("eventBody", *slot.steps), slot.need)


def _overlap(slots: Sequence[Slot]) -> bool:
    return any(
        not one.steps or (one is not other and other.steps[: len(one.steps)] == one.steps)
        for one in slots
        for other in slots
    )


def _decoder(
    slots: Sequence[Slot], needed: str = ""
) -> tuple[Callable[[bytes | msgspec.Raw], Any], Callable[[Any], Values]]:
    """Decode JSON into a struct that has only these fields, and read them off it.

    A field by the `needed` name must be there, whatever the slots say.
    """
    if not slots:
        return lambda _: None, lambda _: ()
    names: dict[tuple[str, ...], str] = {}
    struct = _struct([(slot.steps, slot) for slot in slots], (), names, needed)
    decode = msgspec.json.Decoder(struct, float_hook=number).decode
    read_off: Callable[[Any], Any] = attrgetter(*[names[slot.steps] for slot in slots])
    # Of a single name it gives the value, of several a tuple.
    return decode, read_off if len(slots) > 1 else lambda picked: (read_off(picked),)


def _struct(
    leaves: Sequence[tuple[tuple[str, ...], Slot]],
    prefix: tuple[str, ...],
    names_of: dict[tuple[str, ...], str],
    needed: str = "",
) -> type[msgspec.Struct]:
    """A struct type for these paths, nested as they are; notes each path's attribute name."""
    groups: dict[str, list[tuple[tuple[str, ...], Slot]]] = {}
    for steps, slot in leaves:
        groups.setdefault(steps[0], []).append((steps[1:], slot))
    fields: list[Any] = []
    rename = {}
    for place, (step, below) in enumerate(groups.items()):
        # JSON names need not be Python names, so the fields are only numbered.
        name = f"f{place}"
        rename[name] = step
        if below[0][0]:
            kind: Any = _struct(below, (*prefix, name), names_of)
            default: Any = msgspec.field(default_factory=kind)
        else:
            kind = _TYPES.get(below[0][1].need, Any)
            default = ABSENT
            names_of[below[0][1].steps] = ".".join((*prefix, name))
        optional = step != needed and all(slot.need.endswith("?") for _, slot in below)
        fields.append((name, kind, default) if optional else (name, kind))
    return msgspec.defstruct(
        "Picked", fields, rename=rename, kw_only=True, frozen=True, gc=False, eq=False
    )


def _plain(event: Event, slot: Slot) -> Any:
    if slot.root == "headers":
        return event.headers.get(slot.steps[0], ABSENT)
    return getattr(event, slot.steps[0]) or ABSENT


def _unpacked(raw: bytes | msgspec.Raw, place: str) -> Any:
    try:
        return decode_exact(raw)
    except (ValueError, RecursionError) as error:
        raise EnvelopeError(f"the event cannot be unpacked: {error}", place=place) from None
