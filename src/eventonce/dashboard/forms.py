"""The forms that select what a page shows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from eventonce.markup import Html, tag

TRIMMED: Final = " \t\r\n"
"""The characters that are often copied with a text; any other may belong to the text."""


def typed(fields: Mapping[str, str], name: str) -> str:
    """Return the text of a field without the spaces around it; empty for none."""
    return fields.get(name, "").strip(TRIMMED)


class FilterForm(NamedTuple):
    """The form of a page that selects by fields; its link has all of them."""

    path: str
    button: str
    first: Sequence[str]
    """The names of the fields that are always shown."""
    more: Sequence[str]
    """The names of the others, which are folded unless one of them is given."""
    hints: Mapping[str, str]
    choices: Mapping[str, Iterable[str]]
    """The values of the fields that have one of a list."""
    kept: Sequence[str] = ()
    """The names of fields that the form only passes on."""

    def filled(
        self,
        given: Mapping[str, str],
        may_search: Callable[[str], bool],
        defaults: Mapping[str, str] = MappingProxyType({}),
    ) -> Html:
        """Return the form with the given values, and only with fields that may be searched."""
        values = {**defaults, **given}

        def fields(names: Sequence[str]) -> list[Html]:
            return [self._field(name, values.get(name, "")) for name in filter(may_search, names)]

        kept = [
            tag("input", type="hidden", name=name, value=values[name])
            for name in self.kept
            if name in values
        ]
        return tag(
            "form",
            tag(
                "div",
                *fields(self.first),
                tag("button", self.button, type="submit", class_="main"),
                class_="fields",
            ),
            tag(
                "details",
                tag("summary", "More fields"),
                tag("div", *fields(self.more), class_="fields"),
                open=any(name in given for name in self.more),
            ),
            *kept,
            action=self.path,
            method="get",
            role="search",
        )

    def _field(self, name: str, value: str) -> Html:
        """Return a field for a text, or for one of its choices; a value that is none of them is
        added."""
        if name in self.choices:
            known = dict.fromkeys(("", *self.choices[name], value))
            told = [tag("option", one or "any", value=one, selected=one == value) for one in known]
            entry = tag("select", *told, name=name)
        else:
            entry = tag(
                "input",
                name=name,
                value=value,
                placeholder=self.hints.get(name),
                autocomplete="off",
                spellcheck="false",
            )
        return tag("label", tag("span", name), entry)
