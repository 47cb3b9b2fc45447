"""Fields of the forms of all pages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from eventonce.markup import Html, tag

AROUND: Final = " \t\r\n"
"""Signs that come along when a text is copied; any other one may be what is searched for."""


def typed(fields: Mapping[str, str], name: str) -> str:
    """The text of a field as it was typed, without the spaces around it; empty for none."""
    return fields.get(name, "").strip(AROUND)


def field(name: str, value: str, hint: str | None = None) -> Html:
    """A field for a text."""
    entry = tag(
        "input",
        name=name,
        value=value,
        placeholder=hint,
        autocomplete="off",
        spellcheck="false",
    )
    return tag("label", tag("span", name), entry)


def choice(name: str, options: Iterable[str], chosen: str) -> Html:
    """A field for one of these, or for any; what is chosen and none of them is kept."""
    known = dict.fromkeys(("", *options, chosen))
    told = [tag("option", one or "any", value=one, selected=one == chosen) for one in known]
    return tag("label", tag("span", name), tag("select", *told, name=name))
