"""The form fields of all pages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from eventonce.markup import Html, tag

TRIMMED: Final = " \t\r\n"
"""The characters that are often copied with a text; any other may belong to the text."""


def typed(fields: Mapping[str, str], name: str) -> str:
    """Return the text of a field without the spaces around it; empty for none."""
    return fields.get(name, "").strip(TRIMMED)


def field(name: str, value: str, hint: str | None = None) -> Html:
    """Return a field for a text."""
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
    """Return a field for one of these options, or for any. If the chosen value is none of them, it
    is added."""
    known = dict.fromkeys(("", *options, chosen))
    told = [tag("option", one or "any", value=one, selected=one == chosen) for one in known]
    return tag("label", tag("span", name), tag("select", *told, name=name))
