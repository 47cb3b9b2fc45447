"""Reconciliation: the events of one list that never arrived in another, by their keys; and an
estimate of the events that neither list has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count
from typing import Any, Final

import msgspec

from eventonce.errors import EnvelopeError
from eventonce.rules import Ruleset
from eventonce.sources.files import Capture, Progress
from eventonce.sources.inputs import Place
from eventonce.study.arrivals import arrival
from eventonce.study.fields import leaves_of
from eventonce.study.index import UINT64_MASK, lines_at
from eventonce.study.scratch import Scratch
from eventonce.types import Event

KEY_ROW: Final = {"line": "BIGINT", "key": "UBIGINT", "kind": "VARCHAR"}
KeyOf = Callable[[Event], int]
"""A function that returns the key of an event in both lists; EnvelopeError if it has none."""


class Reconciled(msgspec.Struct, frozen=True):
    """The comparison of two lists, in events: copies count once."""

    expected: int
    seen: int
    both: int
    types: dict[str, int]
    """The missing events by type, most first."""
    keyless: int
    """Lines of either list that have no key, and cannot be compared."""

    @property
    def missing(self) -> int:
        """Events that were expected and never arrived."""
        return self.expected - self.both

    @property
    def neither(self) -> float | None:
        """The estimated number of events that neither list has, if both lost events by chance
        (Chapman's estimate); None if the lists share too few."""
        if self.both < 10:
            return None
        all_ = (self.expected + 1) * (self.seen + 1) / (self.both + 1) - 1
        return max(0.0, all_ - (self.expected + self.seen - self.both))


def by_rules(rules: Ruleset) -> KeyOf:
    """Return a function by which events are equal if production would give them one key."""

    def key(event: Event) -> int:
        _, claim = rules.plan(event, 0)
        version = (claim.order, claim.digest) if claim.order is not None else ()
        return hash((claim.key, *version)) & UINT64_MASK

    return key


def by_fields(paths: Sequence[str]) -> KeyOf:
    """Return a function by which events are equal if these fields are, for events of two forms."""

    def key(event: Event) -> int:
        leaves = leaves_of(bytes(event.detail_raw))
        values = [leaves.get(path) for path in paths]
        missing = [path for path, value in zip(paths, values, strict=True) if value is None]
        if missing:
            raise EnvelopeError(f"{missing[0]} is missing", place=missing[0])
        return hash(tuple(map(str, values))) & UINT64_MASK

    return key


def reconcile(
    expected: Sequence[Place],
    seen: Sequence[Place],
    key_of: KeyOf,
    missing: Callable[[bytes], object] | None = None,
    unread: list[str] | None = None,
    progress: Progress | None = None,
) -> Reconciled:
    """Compare two captures; `missing` is called once with each expected event that never arrived,
    and `unread` is described at `Capture`."""
    with Scratch() as scratch:
        keyless = count()
        captures: dict[str, Capture] = {}
        for name, paths in (("expected", expected), ("seen", seen)):
            scratch.table(name, KEY_ROW)
            half = progress and partial(_half, progress, len(captures))
            captures[name] = Capture(paths, unread=unread, progress=half)
            scratch.load(name, KEY_ROW, _rows(captures[name], key_of, keyless))
        counts = scratch.one(
            "SELECT (SELECT count(DISTINCT key) FROM expected) AS expected, "
            "(SELECT count(DISTINCT key) FROM seen) AS seen, "
            "(SELECT count(DISTINCT key) FROM expected SEMI JOIN seen USING (key)) AS both"
        )
        types = dict(
            scratch.rows(
                "SELECT coalesce(kind, ''), count(DISTINCT key) "
                "FROM expected ANTI JOIN seen USING (key) GROUP BY 1 ORDER BY 2 DESC, 1"
            )
        )
        if missing:
            lines = scratch.rows(
                "SELECT min(line) FROM expected ANTI JOIN seen USING (key) GROUP BY key ORDER BY 1"
            )
            for _, raw in lines_at(captures["expected"], (line for (line,) in lines)):
                missing(raw)
        return Reconciled(types=types, keyless=next(keyless), **counts)


def _half(progress: Progress, before: int, done: int, whole: int) -> None:
    """Tell the progress in one of two captures, each of which is a half of the work."""
    progress(before * whole + done, 2 * whole)


def _rows(capture: Capture, key_of: KeyOf, keyless: count[int]) -> Iterator[bytes]:
    for number, raw in enumerate(capture, start=1):
        event: Any = arrival(raw).event
        try:
            if not isinstance(event, Event):
                raise event
            key = key_of(event)
        except EnvelopeError:
            next(keyless)
            continue
        kind = event.type.replace("\t", " ").replace("\n", " ").replace("\r", " ")
        yield f"{number}\t{key}\t{kind}\n".encode("utf-8", "replace")
