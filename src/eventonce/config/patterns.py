"""Patterns of sinks and rules that match no event type the presets know: for `eventonce check`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Final

from eventonce import presets
from eventonce.config import Config
from eventonce.envelope.topics import templates
from eventonce.rules.rule import glob
from eventonce.rules.tomltext import meant

FAMILY: Final = "v2."
"""How every Genesys topic begins: those are known one by one, and no wide pattern speaks for
them."""

LONGEST: Final = 300
"""Characters of a pattern: more than twice what EventBridge allows a type."""


def unknown(config: Config) -> list[str]:
    """A warning for each pattern of the file that matches no known type.

    It may be meant for a type of one's own; a slip looks just the same.
    """
    return [
        f"{place}: {pattern!r} matches no event type that the presets know"
        f"{meant(pattern, templates())}. A type of your own is fine; a slip would match nothing"
        for place, pattern in _patterns(config)
        if not _is_known(pattern)
    ]


def _patterns(config: Config) -> Iterator[tuple[str, str]]:
    for sink in config.sink:
        yield "sink.match", sink.match
    for rule in config.own_rules:
        for pattern in rule.match.type:
            yield f"rule {rule.name}: match", pattern


def _is_known(pattern: str) -> bool:
    if any(map(glob(pattern).fullmatch, templates())):
        return True
    return not pattern.startswith(FAMILY) and any(_overlap(pattern, one) for one in _globs())


@cache
def _globs() -> frozenset[str]:
    """What the rules of all presets match, apart from Genesys' topics."""
    return frozenset(
        pattern
        for name in presets.names()
        for rule in presets.load(name).rules
        for pattern in rule.match.type
        if not pattern.startswith(FAMILY)
    )


def _overlap(one: str, other: str) -> bool:
    """Whether some type fits both globs."""

    @cache
    def fit(at: int, its: int) -> bool:
        if at == len(one) or its == len(other):
            return not (one[at:] + other[its:]).strip("*")
        if one[at] == "*":
            return fit(at + 1, its) or fit(at, its + 1)
        if other[its] == "*":
            return fit(at, its + 1) or fit(at + 1, its)
        return one[at] == other[its] and fit(at + 1, its + 1)

    return len(one) <= LONGEST and fit(0, 0)
