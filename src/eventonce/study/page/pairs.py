"""Two events side by side, field by field, with differences marked; values are masked unless they
are requested."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from eventonce.markup import Html, counted, data, dotted, joined, tag
from eventonce.study.page.layout import folded

ABSENT: Final = object()
UNMASKED: Final = frozenset({"arrived", "channel", "receives", "source", "type", "time"})
"""Fields of the delivery, without personal data: they are never masked."""


class Pair(NamedTuple):
    """Two events that are compared."""

    title: str
    first: tuple[str, Mapping[str, Any]]
    """The name of the first event, such as `line 147`, and its fields by their paths."""
    copy: tuple[str, Mapping[str, Any]]

    @property
    def differing(self) -> list[str]:
        """The fields in which the two differ."""
        a, b = self.first[1], self.copy[1]
        return [path for path in {**a, **b} if a.get(path, ABSENT) != b.get(path, ABSENT)]


def side_by_side(pair: Pair, *, values: bool) -> Html:
    """Return the fields of both events; those that differ come first."""
    differing = pair.differing
    a, b = pair.first[1], pair.copy[1]
    same = [path for path in a if path not in set(differing)]
    rows = [_row(path, a, b, values=values) for path in differing]
    rows += [_row(path, a, values=values) for path in same]
    head = tag(
        "tr",
        tag("th", "field", scope="col"),
        tag("th", pair.first[0], scope="col"),
        tag("th", pair.copy[0], scope="col"),
    )
    told = counted(len(differing), "field differs", "fields differ")
    return folded(
        f"{pair.title}: {told}",
        tag(
            "table",
            tag("caption", "What is not marked is the same in both."),
            tag("thead", head),
            tag("tbody", *rows),
            class_="pair",
        ),
    )


def _row(path: str, *sides: Mapping[str, Any], values: bool) -> Html:
    """Return a row with a field's value in each event, or the one value of both."""
    differs = len(sides) > 1
    span = None if differs else 2
    cells = [
        tag("td", _value(side.get(path, ABSENT), shown=values or path in UNMASKED), colspan=span)
        for side in sides
    ]
    name = tag("th", dotted(path), scope="row")
    return tag("tr", name, *cells, class_="differs" if differs else "same")


def _value(value: object, *, shown: bool) -> Html:
    if value is ABSENT:
        return joined("absent")
    if not shown:
        return joined(masked(value))
    return data(value.decode("utf-8", "replace") if isinstance(value, bytes) else value)


def masked(value: object) -> str:
    """Return the description of a masked value: its kind, and the length of a text."""
    if isinstance(value, str):
        return f"text, {counted(len(value), 'character')}"
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, int | float):
        return "number"
    return "empty" if value is None else "list or object"
