"""Two events side by side, field by field, with what differs marked; values are masked unless they
are asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from eventonce.study.page.layout import folded
from eventonce.study.page.markup import Html, counted, data, joined, tag

ABSENT: Final = object()


class Pair(NamedTuple):
    """Two events that are compared."""

    title: str
    first: tuple[str, Mapping[str, Any]]
    """Such as `line 147`, and the fields by their paths."""
    copy: tuple[str, Mapping[str, Any]]

    @property
    def differing(self) -> list[str]:
        """The fields in which the two differ."""
        a, b = self.first[1], self.copy[1]
        return [path for path in {**a, **b} if a.get(path, ABSENT) != b.get(path, ABSENT)]


def side_by_side(pair: Pair, *, values: bool, opened: bool = False) -> Html:
    """The fields of both events; those that differ come first."""
    differing = pair.differing
    a, b = pair.first[1], pair.copy[1]
    same = [path for path in a if path not in set(differing)]
    rows = [_row(path, a, b, values=values, differs=True) for path in differing]
    rows += [_row(path, a, b, values=values, differs=False) for path in same]
    head = tag(
        "tr",
        tag("th", "field", scope="col"),
        tag("th", pair.first[0], scope="col"),
        tag("th", pair.copy[0], scope="col"),
    )
    told = f"{pair.title}: {counted(len(differing), 'field differs', 'fields differ')}"
    return folded(
        told,
        tag(
            "table",
            tag("caption", f"{pair.first[0]} and {pair.copy[0]}, field by field"),
            tag("thead", head),
            tag("tbody", *rows),
            class_="pair",
        ),
        opened=opened,
    )


def _row(
    path: str, a: Mapping[str, Any], b: Mapping[str, Any], *, values: bool, differs: bool
) -> Html:
    name = tag("th", tag("mark", "differs ") if differs else None, data(path), scope="row")
    cells = [tag("td", _value(side.get(path, ABSENT), values=values)) for side in (a, b)]
    return tag("tr", name, *cells, class_="differs" if differs else "same")


def _value(value: object, *, values: bool) -> Html:
    if value is ABSENT:
        return joined("absent")
    return data(value) if values else joined(masked(value))


def masked(value: object) -> str:
    """What may be said of a value without showing it: its kind, and how long a text is."""
    if isinstance(value, str):
        return f"text, {counted(len(value), 'character')}"
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, int | float):
        return "number"
    return "empty" if value is None else "list or object"
