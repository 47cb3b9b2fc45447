"""Why an event has the key it has, or what keeps it from having one, in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import msgspec
from msgspec.msgpack import Ext

from eventonce.rules.evaluation import Incomplete, Part
from eventonce.rules.extraction import Tree, Values
from eventonce.rules.keys import ABSENT
from eventonce.rules.plans import Plan
from eventonce.types import Claim


class PartFound(msgspec.Struct, frozen=True):
    """One part of a key in one event; a hash is shown in hexadecimal."""

    expression: str
    value: Any
    present: bool


class Explanation(msgspec.Struct, frozen=True):
    """Which rule, which parts, which key; without a key, what is missing."""

    rule: str
    kind: Literal["fact", "state"]
    parts: tuple[PartFound, ...]
    key: bytes | None
    order: int | None = None
    state: tuple[PartFound, ...] = ()
    missing: tuple[str, ...] = ()
    """What the event lacks, each with the reason; empty if it has a key."""
    replay: str = ""
    """The replay that brought it, where the rule makes that a part of the key."""


def explanation(plan: Plan, values: Values, claim: Claim | None, tree: Tree) -> Explanation:
    """What these values of the plan come to; no claim where they did not suffice."""
    rule = plan.rule
    state = rule.state or ("hash(body)",)
    is_state = rule.kind == "state"
    return Explanation(
        rule=rule.name,
        kind=rule.kind,
        parts=_found(plan.texts, plan.walked.pieces, values),
        key=claim.key if claim else None,
        order=claim.order if claim else None,
        state=_found(state, plan.walked.contents, values) if is_state else (),
        missing=() if claim else tuple(complaints(plan, values, tree)),
        replay=tree.event.replay if rule.on_replay == "force" else "",
    )


def complaints(plan: Plan, values: Values, tree: Tree) -> Iterator[str]:
    """Everything that keeps the event from having a key."""
    complete = True
    for text, piece in plan.everything:
        try:
            piece(values)
        except Incomplete as incomplete:
            complete = False
            reason = tree.obstacle(incomplete.path) if incomplete.absent else incomplete.reason
            yield f"{text} {reason}"
    if complete:
        yield "every part of the key is empty, so that all events of this type would share it"


def advice(plan: Plan) -> str:
    """What the rule's author can do about an incomplete event."""
    if plan.kind == "fact":
        return 'write a part that may be absent with "?", or missing = "hash" to key on the content'
    return 'write a part that may be absent with "?"'


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
