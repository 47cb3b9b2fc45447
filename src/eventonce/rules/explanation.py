"""The explanation of a key in words: its parts, or the reasons why an event has no key."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal, NamedTuple

import msgspec
from msgspec.msgpack import Ext

from eventonce.rules.claims import Key
from eventonce.rules.expressions import Expression, Hash, Root, Time, Topic, parse, paths
from eventonce.rules.keys import ABSENT
from eventonce.rules.parts import Incomplete, Part, Tree, Values, kind_of, missing
from eventonce.types import Claim, Event

Strength = Literal["business key", "transport id", "content and time", "content", "none"]
"""The proof that an event is a copy: the event's own business key; the id that its transport gave
it; its whole content, with or without a time in it; or no proof."""


class PartFound(msgspec.Struct, frozen=True):
    """One part of a key in one event; a hash is shown in hexadecimal."""

    expression: str
    value: Any
    present: bool


class Explanation(msgspec.Struct, frozen=True):
    """The rule, the parts and the key of an event; without a key, the parts that are missing."""

    rule: str
    kind: Literal["fact", "state"]
    type: str
    """The event type. Like the organisation it is part of every key: events of two types are never
    the same, unless the rule has a scope."""
    org: str
    parts: tuple[PartFound, ...]
    key: bytes | None
    strength: Strength
    remember: float
    """Seconds for which a copy is recognised; 0 if copies cannot be recognised."""
    subject: str = ""
    """Of a state, the values of the parts in one text, as the history has it."""
    order: int | None = None
    state: tuple[PartFound, ...] = ()
    missing: tuple[str, ...] = ()
    """The parts that the event lacks, each with the reason; empty if it has a key."""
    lacking: tuple[str, ...] = ()
    """The parts that the event lacks, if `missing` of the rule gives it another key, or none."""
    scope: str = ""
    """The word in the key in place of the type."""
    replay: str = ""
    """The replay that brought the event, if the rule makes it a part of the key."""


class Complaint(NamedTuple):
    """One missing part, because of which an event has no key."""

    said: str
    value: str
    """The value, for readers who may see it; empty if there is none."""
    absent: bool
    """Whether the part is absent; otherwise its value cannot be used."""


def explanation(key: Key, own: Key, claim: Claim | None, event: Event) -> Explanation:
    """Explain an event by this key, the rule's own or a fallback; without a claim if a part is
    missing."""
    rule = key.rule
    values = key.extract(event)
    lacking = () if claim and key is own else complaints(own, event)
    said = tuple(complaint.said + complaint.value for complaint in lacking)
    state = rule.state or ("hash(body)",)
    is_state = key.kind == "state"
    always = key.kind == "run"
    parts = _found(key.texts, key.parts, values)
    joined = (PartFound("part", event.part, True),) if key.shared and event.part else ()
    return Explanation(
        rule=rule.name,
        kind="state" if is_state else "fact",
        type=event.type,
        org=event.org,
        parts=(*parts, *joined),
        key=claim.key if claim and not always else None,
        strength=_strength(key, parts),
        remember=0 if always else int(rule.remember) / 1000,
        subject=subject_text(key, values) if is_state and claim else "",
        order=claim.order if claim else None,
        state=_found(state, key.content, values) if is_state else (),
        missing=() if claim else said,
        lacking=said if claim else (),
        scope=rule.scope if key is own else "",
        replay=event.replay if rule.on_replay == "force" else "",
    )


def subject_text(key: Key, values: Values) -> str:
    """The values of the parts of a subject in one text; a part that says nothing is left out."""
    parts = _found(key.texts, key.parts, values)
    found = (part.value for part in parts if part.present and part.value is not None)
    return ", ".join(
        value if isinstance(value, str) else msgspec.json.encode(value).decode() for value in found
    )


def complaints(key: Key, event: Event) -> Iterator[Complaint]:
    """Yield every missing part, because of which the event does not have this key."""
    asked: list[tuple[str, Part]] = list(zip(key.texts, key.parts, strict=True))
    if key.order:
        asked.append((key.rule.order, key.order))
        asked.extend(zip(key.rule.state, key.content, strict=False))
    if key.at and key.prefixed:
        asked.append((key.rule.at, key.at))
    values = key.extract(event)
    complete = True
    for text, part in asked:
        try:
            part(values)
        except Incomplete as incomplete:
            complete = False
            reason = _obstacle(event, incomplete) if incomplete.absent else incomplete.reason
            there = incomplete.value is not ABSENT and not incomplete.absent
            value = f" ({_short(incomplete.value)})" if there else ""
            yield Complaint(f"{text} {reason}", value, incomplete.absent)
    if complete:
        reason = "every part of the key is empty, so that all events of this type would share it"
        yield Complaint(reason, "", absent=False)


def refusal(key: Key, event: Event) -> str:
    """Return all missing parts in one line, with advice for the rule's author if one is absent."""
    found = list(complaints(key, event))
    said = "; ".join(complaint.said for complaint in found)
    if not any(complaint.absent for complaint in found):
        return said
    if key.rule.missing == "id":
        return f"{said}, and it has no transport id to use instead"
    return (
        f'{said} (write a part that may be absent with "?"; missing = "id" uses the transport id '
        "instead)"
    )


def _obstacle(event: Event, incomplete: Incomplete) -> str:
    """Return why the event has no value at the path."""
    root, steps = incomplete.path.root, incomplete.path.steps
    value = Tree(event).value
    if root not in ("event", "headers"):
        for end in range(len(steps)):
            crossed = value(root, steps[:end])
            if crossed is not ABSENT and type(crossed) is not dict:
                name = ".".join((root, *steps[:end]))
                return f"is missing: {name} is {kind_of(crossed)}, not an object"
    return missing(value(root, steps))


def _short(value: Any) -> str:
    text = bytes(value.data).decode() if isinstance(value, Ext) else str(value)
    return repr(text[:40])


def _strength(key: Key, parts: Sequence[PartFound]) -> Strength:
    """Return the strength of this key, by the parts that the event has."""
    if key.kind == "run":
        return "none"
    at = {(path.root, path.steps) for path in paths(parse(key.rule.at))} if key.rule.at else set()
    timed, named = False, set[str]()
    for tree, part in zip(key.trees, parts, strict=True):
        if not part.present or isinstance(tree, Hash):
            continue
        if isinstance(tree, Time) or _place(tree) in at or _place(tree) == _PUBLISHED:
            timed = True
        elif isinstance(tree, Topic) or _place(tree) not in _KINDS:
            named.add("transport id" if _place(tree) in _TRANSPORT else "business key")
    if "business key" in named:
        return "business key"
    if named:
        return "transport id"
    return "content and time" if timed else "content"


def _place(tree: Expression) -> tuple[Root, tuple[str, ...]]:
    """Return the place of the first value of a part; all headers count as one place."""
    path = paths(tree)[0]
    return path.root, () if path.root == "headers" else path.steps


_TRANSPORT: Final = frozenset[tuple[Root, tuple[str, ...]]]((("event", ("id",)), ("headers", ())))
_PUBLISHED: Final = ("event", ("time",))
_KINDS: Final = frozenset[tuple[Root, tuple[str, ...]]](
    (*(("event", (name,)) for name in ("type", "source", "org")), ("detail", ("topicName",)))
)
"""Paths that tell kinds of event apart, and not events."""


def _found(texts: Sequence[str], pieces: Sequence[Part], values: Values) -> tuple[PartFound, ...]:
    found = []
    for text, piece in zip(texts, pieces, strict=True):
        try:
            value = piece(values)
        except Incomplete:
            value = ABSENT
        found.append(PartFound(text, _shown(value), value is not ABSENT))
    return tuple(found)


def _shown(value: Any) -> Any:
    if isinstance(value, list):
        return [_shown(item) for item in value]
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Ext):
        return bytes(value.data).decode() or None
    return value
