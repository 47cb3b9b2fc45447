"""Why an event has the key it has, or what keeps it from having one, in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

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
    type: str
    """As the organisation, a part of every key: events of two types are never the same."""
    org: str
    parts: tuple[PartFound, ...]
    key: bytes | None
    order: int | None = None
    state: tuple[PartFound, ...] = ()
    missing: tuple[str, ...] = ()
    """What the event lacks, each with the reason; empty if it has a key."""
    by_content: tuple[str, ...] = ()
    """What the event lacks, where it has a key by its content instead: `missing = "hash"`."""
    replay: str = ""
    """The replay that brought it, where the rule makes that a part of the key."""


class Complaint(NamedTuple):
    """One thing that keeps an event from having a key."""

    said: str
    absent: bool
    """Whether it is not there at all; what is there is of no use as it is."""


def explanation(plan: Plan, own: Plan, claim: Claim | None, tree: Tree) -> Explanation:
    """What this plan, the rule's own or that of last resort, makes of the event; no claim where
    the values did not suffice."""
    rule = plan.rule
    values = plan.walk(tree)
    lacking = () if claim and plan is own else complaints(own, own.walk(tree), tree)
    said = tuple(complaint.said for complaint in lacking)
    state = rule.state or ("hash(body)",)
    is_state = rule.kind == "state"
    joined = (PartFound("part", tree.event.part, True),) if plan.shared and tree.event.part else ()
    return Explanation(
        rule=rule.name,
        kind=rule.kind,
        type=tree.event.type,
        org=tree.event.org,
        parts=(*_found(plan.texts, plan.walked.pieces, values), *joined),
        key=claim.key if claim else None,
        order=claim.order if claim else None,
        state=_found(state, plan.walked.contents, values) if is_state else (),
        missing=() if claim else said,
        by_content=said if claim else (),
        replay=tree.event.replay if rule.on_replay == "force" else "",
    )


def complaints(plan: Plan, values: Values, tree: Tree) -> Iterator[Complaint]:
    """Everything that keeps the event from having a key."""
    complete = True
    for text, piece in plan.everything:
        try:
            piece(values)
        except Incomplete as incomplete:
            complete = False
            reason = tree.obstacle(incomplete.path) if incomplete.absent else incomplete.reason
            yield Complaint(f"{text} {reason}", incomplete.absent)
    if complete:
        reason = "every part of the key is empty, so that all events of this type would share it"
        yield Complaint(reason, absent=False)


def refusal(plan: Plan, values: Values, tree: Tree) -> str:
    """All of them in one line, and what the rule's author can do where something is absent."""
    found = list(complaints(plan, values, tree))
    said = "; ".join(complaint.said for complaint in found)
    if not any(complaint.absent for complaint in found):
        return said
    other = ', or missing = "hash" to key on the content' if plan.kind == "fact" else ""
    return f'{said} (write a part that may be absent with "?"{other})'


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
