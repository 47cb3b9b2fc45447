"""The values of an event that a rule reads, also for a key of last resort, and that therefore
cannot be redacted: a dead letter needs them to make its key again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal

from eventonce.rules.expressions import Each, Expression, Hash, Path, parse, parse_path, paths

Steps = tuple[str, ...]

BODIES: Final[tuple[Steps, ...]] = (("eventBody",), ())
"""The places of the body in the detail: with an eventBody, and without."""

ENVELOPED: Final[tuple[Steps, ...]] = (("detail",), ("data",), ("payload",), ())
"""The places of the detail in the envelopes."""

NAMED: Final[tuple[Steps, ...]] = (
    *(("id",), ("source",), ("type",), ("time",), ("timestamp",), ("eventType",), ("eventId",)),
    *(("detail-type",), ("detail",), ("topicName",), ("specversion",), ("data",), ("createdAt",)),
    *(("Type",), ("replay-name",), ("eventBody", "organizationId")),
    *(("postback", "eventType"), ("payload", "type")),
)
"""The fields by which an envelope is recognised and read; `match` needs them."""

Kind = Literal["fact", "state", "hash", "id", "run"]
"""The kind of a key."""

FALLBACKS: Final[Mapping[str, tuple[tuple[Kind, tuple[str, ...]], ...]]] = {
    "invalid": (),
    "hash": (("hash", ("topic?", "hash(body)")),),
    "id": (("id", ("source?", "id", "hash(detail)")),),
    "run": (("id", ("source?", "id", "hash(detail)")), ("run", ())),
}
"""By the rule's `missing`, the keys of an event whose own key has a missing part, in the order they
are tried. `hash` takes the body alone, because the rest changes with every publish. `id` also takes
the whole detail, because some sources send the id of an entity as `id`, and the source, within
which the id of a CloudEvent is unique. `run` has no parts: no delivery is a copy of another."""


def redactable(text: str) -> Path:
    """Parse the path of a value that may be redacted; ValueError for any other."""
    path = parse_path(text)
    if path.root not in ("detail", "body") or not path.steps or path.optional:
        raise ValueError(f"{text!r}: expected a path that begins with detail. or body.")
    for steps in absolute(path):
        if any(_overlap(steps, named) for named in NAMED if len(steps) <= len(named)):
            raise ValueError(f"{text!r}: the envelope of some events is read there")
    return path


def absolute(path: Path) -> list[Steps]:
    """Return all possible steps, from the detail on, of a path of the detail or the body."""
    return [(*body, *path.steps) for body in (BODIES if path.root == "body" else ((),))]


def read_anyway(rule: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the redacted paths that this rule reads, each with the field and text that read it."""
    ignored = [steps for text in rule.get("ignore", ()) for steps in _ignored(parse_path(text))]
    for text in rule.get("redact", ()):
        wanted = absolute(parse_path(text))
        for said, tree in _trees(rule):
            if any(_reads(tree, steps, ignored) for steps in wanted):
                yield text, said
                break


def _trees(rule: Mapping[str, Any]) -> Iterator[tuple[str, Expression]]:
    """Yield every expression that a rule reads, each with a description."""
    for field in ("key", "subject", "state"):
        for text in rule.get(field, ()):
            yield f"{field} {text!r}", parse(text)
    if rule.get("subject") and not rule.get("state"):
        yield "state 'hash(body)', which is the default", parse("hash(body)")
    for field in ("order", "at"):
        if rule.get(field):
            yield f"{field} {rule[field]!r}", parse(rule[field])
    for text in rule.get("requires", ()):
        yield f"requires {text!r}", parse_path(text)
    verified = rule.get("verify") or ()
    for text in ("body",) if verified is True else verified:
        yield f"verify {text!r}", Hash(parse_path(text))
    for older in rule.get("also", ()):
        if isinstance(older, str):
            yield f"also {older!r}", Hash(parse_path(older.removeprefix("sha256(")[:-1]))
        else:
            yield from ((f"also {text!r}", parse(text)) for text in older)
    missing = rule.get("missing", "invalid")
    for _, texts in FALLBACKS[missing]:
        yield from ((f"{text!r}, by missing = {missing!r}", parse(text)) for text in texts)


def _reads(tree: Expression, wanted: Steps, ignored: Sequence[Steps]) -> bool:
    """Whether the expression reads the value at these steps of the detail."""
    if isinstance(tree, Hash) and any(wanted[: len(one)] == one for one in ignored):
        return False
    more = [field.steps for field in tree.fields] if isinstance(tree, Each) else []
    for path in paths(tree):
        if path.root in ("event", "headers"):
            continue
        asked = [wanted]
        if path.root == "envelope":
            asked, places = [(*around, *wanted) for around in ENVELOPED], [path.steps]
        else:
            places = absolute(path)
        for place in places:
            for steps in [(*place, *field) for field in more] or [place]:
                if any(_overlap(steps, one) for one in asked):
                    return True
    return False


def _ignored(path: Path) -> list[Steps]:
    """Return the steps of an ignored path; for a path of the body, both places are ignored."""
    return absolute(path) if path.root in ("detail", "body") else []


def _overlap(one: Steps, other: Steps) -> bool:
    size = min(len(one), len(other))
    return one[:size] == other[:size]
