"""Patterns: whether two event patterns of EventBridge may match the same event, or two globs the
same text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from eventonce.envelope.topics import templates
from eventonce.rules.rule import glob

Pattern = dict[str, Any]
Fields = dict[tuple[str, ...], Sequence[Any]]
"""The matchers of each field, by the field's path."""

TYPE_FIELD: Final = "detail-type"


class UnknownPattern(NamedTuple):
    """A pattern of a handler, a sink or a rule that matches no known event type."""

    place: str
    pattern: str
    near: str
    """A question about a known type that is nearly the same; empty if there is none."""

    def __str__(self) -> str:
        return (
            f"{self.place}: {self.pattern!r} matches no event type that the presets know{self.near}"
        )


def overlap(one: Pattern, other: Pattern) -> bool:
    """Whether some event may match both patterns. A matcher that is not understood, such as a
    numeric one, counts as a match."""
    return any(_meet(some, others) for some in _choices(one) for others in _choices(other))


def covers(wide: Pattern, narrow: Pattern) -> bool:
    """Whether each event that matches the narrow pattern surely matches the wide one: for every
    field of the wide pattern, each matcher of the narrow one implies one of its matchers."""
    return all(any(_within(one, its) for its in _choices(wide)) for one in _choices(narrow))


def shared_type(one: Pattern, other: Pattern) -> str:
    """Return a known event type that both patterns match; empty if neither names a type, or if no
    known type matches both."""
    if TYPE_FIELD not in one and TYPE_FIELD not in other:
        return ""
    known = ((it, {TYPE_FIELD: [it]}) for it in sorted(templates()))
    return next((it for it, only in known if overlap(one, only) and overlap(other, only)), "")


def globs_meet(one: str, other: str) -> bool:
    """Whether some text matches both globs."""
    # From the end: whether the rest of `one` and each rest of `other` match a common text. Without
    # recursion, because a value of a pattern may have a thousand characters.
    meets = [not other[at:].strip("*") for at in range(len(other) + 1)]
    for character in reversed(one):
        longer = [character == "*" and meets[-1]]
        for at in reversed(range(len(other))):
            if "*" in (character, other[at]):
                longer.append(meets[at] or longer[-1])
            else:
                longer.append(character == other[at] and meets[at + 1])
        meets = longer[::-1]
    return meets[0]


def _choices(pattern: Pattern, path: tuple[str, ...] = ()) -> Iterator[Fields]:
    """Yield the patterns without `$or` that are together the same as this pattern."""
    found: list[Fields] = [{}]
    for name, value in pattern.items():
        inner: list[Fields]
        if name == "$or":
            inner = [choice for one in value for choice in _choices(one, path)]
        elif isinstance(value, dict):
            inner = list(_choices(value, (*path, name)))
        else:
            inner = [{(*path, name): value}]
        found = [{**some, **more} for some in found for more in inner]
    yield from found


def _meet(one: Fields, other: Fields) -> bool:
    return all(
        any(_same(some, its) for some in one[path] for its in other[path])
        for path in one.keys() & other.keys()
    )


def _within(narrow: Fields, wide: Fields) -> bool:
    return all(
        path in narrow and all(any(_implies(one, its) for its in matchers) for one in narrow[path])
        for path, matchers in wide.items()
    )


def _implies(one: Any, other: Any) -> bool:
    """Whether each value that satisfies the first matcher surely satisfies the second."""
    match other:
        case {"prefix": str(text)}:
            begin = one.get("prefix") if isinstance(one, dict) else one
            return isinstance(begin, str) and begin.startswith(text)
        case {"suffix": str(text)}:
            end = one.get("suffix") if isinstance(one, dict) else one
            return isinstance(end, str) and end.endswith(text)
        case {"exists": True}:
            return not (isinstance(one, dict) and one.get("exists") is False)
        case _:
            return bool(one == other)


def _same(one: Any, other: Any) -> bool:
    """Whether some value may satisfy both matchers."""
    for some, its in ((one, other), (other, one)):
        if isinstance(some, dict) and "exists" in some:
            absent = isinstance(its, dict) and its.get("exists") is False
            return bool(some["exists"]) is not absent
        if isinstance(some, dict) and "anything-but" in some and not isinstance(its, dict):
            # A matcher that no glob can express would exclude too much.
            excluded = [it for it in map(_glob, _listed(some["anything-but"])) if it != "*"]
            return not any(glob(it).fullmatch(_glob(its)) for it in excluded)
    return globs_meet(_glob(one), _glob(other))


def _listed(value: Any) -> list[Any]:
    """Return the matchers of an `anything-but`, which may also be `{"prefix": [...]}`."""
    if isinstance(value, dict):
        return [{name: it} for name, inner in value.items() for it in _listed(inner)]
    return value if isinstance(value, list) else [value]


def _glob(matcher: Any) -> str:
    """Return the matcher as a glob; a wider glob if none can express the matcher."""
    match matcher:
        case str():
            return matcher
        case {"prefix": str(text)}:
            return f"{text}*"
        case {"suffix": str(text)}:
            return f"*{text}"
        case {"wildcard": str(text)}:
            return text
        case dict():
            return "*"
        case _:
            return str(matcher)
